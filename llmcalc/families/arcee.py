"""Arcee: AFM, dense and with experts."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    by_window,
    embed,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    mlp,
    norm,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, gated, pre_norm, routed, split


@family("arcee")
def arcee(c: Config) -> Parts:
    """AFM: Llama with a squared-ReLU MLP of two matrices."""
    bias, mlp_bias = c.flag("attention_bias"), c.flag("mlp_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        lambda layers: mlp(
            f"{MLP}.", c.d_model, c.d_ff, layers, ("up_proj", "down_proj"), mlp_bias
        ),
    )


@family("afmoe")
def afmoe(c: Config) -> Parts:
    """Trinity: sandwich norms, gated attention, a correction of the router that is a parameter."""
    layers, d, bias = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias")
    every = c.size("global_attn_every_n_layers", 4)
    dense = c.size("num_dense_layers", 0, least=0)

    def attend(group: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, group, window, bias)
        yield from linear(f"{ATTENTION}.gate_proj", c.n_heads * c.head_dim, d, "attn.gate", group)

    def moe(group: Layers) -> Parts:
        yield from routed(c, group, c.d_ff_expert, router="router.gate")
        yield tensor(f"{MLP}.expert_bias", (c.n_experts,), "add", "router", group)
        if c.n_shared_experts:
            yield from swiglu(f"{MLP}.shared_experts", d, c.d_ff_expert * c.n_shared_experts, group)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, c.sliding(lambda i: (i + 1) % every), attend)
    for name in ("post_attention_layernorm", "pre_mlp_layernorm"):
        yield from norm(f"{BLOCK}.{name}", d, layers)
    yield from split(lambda i: i < dense, gated(c), moe)(layers)
    yield from norm(f"{BLOCK}.post_mlp_layernorm", d, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))
