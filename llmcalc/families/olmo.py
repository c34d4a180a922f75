"""OLMo, Cohere and Phi: frames of their own around the usual attention."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    by_window,
    embed,
    fused_swiglu,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    mix,
    mlp,
    norm,
    qkv,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, gated, post_norm, pre_norm


@family("olmo")
def olmo(c: Config) -> Parts:
    """OLMo 1 (arXiv 2402.00838): its norms have no parameters."""
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")
    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from by_window(
        c, layers, c.sliding(), lambda ls, window: gqa(ATTENTION, c, ls, window, bias)
    )
    yield from gated(c)(layers)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


@family("olmo2")
def olmo2(c: Config) -> Parts:
    """OLMo 2 (arXiv 2501.00656): norms after, and on whole queries and keys."""
    bias = c.flag("attention_bias")
    yield from post_norm(
        c, lambda ls, window: gqa_normed(ATTENTION, c, ls, window, bias, False), gated(c)
    )


@family("olmo3")
def olmo3(c: Config) -> Parts:
    """OLMo 3: OLMo 2 with windows in three of four layers."""
    bias = c.flag("attention_bias")
    sliding = c.sliding(lambda i: (i + 1) % 4)
    yield from post_norm(
        c, lambda ls, window: gqa_normed(ATTENTION, c, ls, window, bias, False), gated(c), sliding
    )


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


@family("phi")
def phi(c: Config) -> Parts:
    """Phi 1 to 2 (arXiv 2309.05463): parallel residual behind one LayerNorm, biases everywhere, the
    head's too.
    """
    layers, d = Layers.all(c.n_layers), c.d_model
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers, bias=True)
    yield from qkv(ATTENTION, c, layers, True)
    if c.flag("qk_layernorm"):
        yield from norm(f"{ATTENTION}.q_layernorm", c.split_head_dim, layers, True, "attn.q_norm")
        yield from norm(f"{ATTENTION}.k_layernorm", c.split_head_dim, layers, True, "attn.k_norm")
    yield from by_window(c, layers, c.sliding(), lambda ls, window: iter((mix(c, ls, window),)))
    yield from linear(f"{ATTENTION}.dense", d, c.n_heads * c.head_dim, "attn.o", layers, True)
    yield from mlp(f"{MLP}.", d, c.d_ff, layers, ("fc1", "fc2"))
    yield from norm("model.final_layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c), bias=True)


def fused_attention(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Grouped-query attention with q, k and v in one matrix."""
    width = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
    yield from linear(f"{ATTENTION}.qkv_proj", width, c.d_model, "attn.qkv", layers)
    yield mix(c, layers, window)
    yield from linear(f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers)


@family("phi3")
def phi3(c: Config) -> Parts:
    """Phi-3, 3.5 and 4-mini (arXiv 2404.14219): fused q, k, v and fused gate, up."""
    yield from pre_norm(
        c,
        lambda layers, window: fused_attention(c, layers, window),
        lambda layers: fused_swiglu(MLP, c.d_model, c.d_ff, layers),
    )
