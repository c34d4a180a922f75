"""Cohere: Command R, Aya, Command A with experts."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    by_window,
    embed,
    gqa,
    linear,
    lm_head,
    mix,
    norm,
    qkv,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, gated, routed, split
from llmcalc.families.parts.latent import sparse_layers


@family("cohere", "cohere2")
def cohere(c: Config) -> Parts:
    """Command R: attention and MLP in parallel behind one norm; the second generation
    adds windows.
    """
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")
    every = c.get("sliding_window_pattern") or 4
    sliding = c.sliding(lambda i: (i + 1) % every) if c.family == "cohere2" else c.sliding()
    qk = c.family == "cohere" and c.flag("use_qk_norm")

    def attend(group: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, group, bias)
        if qk:
            yield tensor(
                f"{ATTENTION}.q_norm.weight", (c.n_heads, c.head_dim), "scale", "attn.q_norm", group
            )
            yield tensor(
                f"{ATTENTION}.k_norm.weight",
                (c.n_kv_heads, c.head_dim),
                "scale",
                "attn.k_norm",
                group,
            )
        yield mix(c, group, window)
        yield from linear(
            f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", group, bias
        )

    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers)
    yield from by_window(c, layers, sliding, attend)
    yield from gated(c)(layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


@family("cohere2_moe")
def cohere2_moe(c: Config) -> Parts:
    """Command A with experts: parallel residual, a prefix of dense layers with its own window
    pattern.
    """
    layers, d, bias = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias")
    prefix = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < prefix else "sparse" for i in range(c.layers)])
    every, first = (
        c.size("sliding_window_pattern", 4),
        c.size("prefix_dense_sliding_window_pattern", 1),
    )
    sliding = c.sliding(lambda i: (i + 1) % first if i < prefix else (i - prefix + 1) % every)
    dense_width = c.optional("prefix_dense_intermediate_size") or c.d_ff

    def moe(group: Layers) -> Parts:
        yield from routed(c, group, c.d_ff)
        if c.n_shared_experts:
            yield from swiglu(f"{MLP}.shared_experts", d, c.d_ff * c.n_shared_experts, group)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, sliding, lambda ls, window: gqa(ATTENTION, c, ls, window, bias))
    yield from split(
        lambda i: kinds[i] != "sparse", lambda ls: swiglu(MLP, d, dense_width, ls), moe
    )(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))
