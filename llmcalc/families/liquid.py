"""Liquid: LFM2 and 3, short convolutions among attention."""

from __future__ import annotations

from typing import Any

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import (
    W123,
    by_window,
    correction_bias,
    embed,
    experts,
    gqa_normed,
    linear,
    lm_head,
    mix,
    norm,
    qk_norm,
    qkv,
    state_mixer,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.parts.frame import ATTENTION, BLOCK, dense_first
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.towers import named, siglip
from llmcalc.families.parts.wrapper import llm_with_top_head, text_of


def short_conv(c: Config, layers: Layers) -> Parts:
    """LFM2's mixer: a gated convolution over a few tokens, which are all it keeps."""
    p, d, bias = f"{BLOCK}.conv", c.d_model, c.flag("conv_bias")
    width = c.size("d_conv", None, "conv_L_cache")
    yield from linear(f"{p}.in_proj", 3 * d, d, "ssm.in", layers, bias)
    yield tensor(f"{p}.conv.weight", (d, 1, width), "conv", "ssm.conv", layers)
    if bias:
        yield tensor(f"{p}.conv.bias", (d,), "add", "ssm.conv", layers)
    yield state_mixer(layers, State("conv", d, width))
    yield from linear(f"{p}.out_proj", d, d, "ssm.out", layers, bias)


def lfm_frame(c: Config, feed_forward: Any, attend: Any, convs: Layers, full: Layers) -> Parts:
    """LFM2's frame: an operator, a feed-forward, and the final norm under an embedding's name."""
    d, layers = c.d_model, Layers.all(c.n_layers)
    tied = c.flag("tie_embedding", c.tied)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.operator_norm", d, layers)
    if convs.indices:
        yield from short_conv(c, convs)
    if full.indices:
        yield from attend(full)
    yield from norm(f"{BLOCK}.ffn_norm", d, layers)
    yield from feed_forward(layers)
    yield from norm("model.embedding_norm", d)
    yield from lm_head("lm_head", c.vocab, d, "model.embed_tokens.weight" if tied else None)


def lfm2_attention(c: Config, layers: Layers) -> Parts:
    """LFM2's attention: norms per head, the output projection under another name."""
    yield from qkv(ATTENTION, c, layers)
    yield from qk_norm(ATTENTION, c, layers, names=("q_layernorm", "k_layernorm"))
    yield mix(c, layers)
    yield from linear(f"{ATTENTION}.out_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers)


def lfm2_width(c: Config) -> Dim:
    """LFM2's inner width: two thirds of the given one, scaled and rounded up, unless adjustment is
    off.
    """
    given = c.size("d_ff", None, "block_ff_dim", "intermediate_size")
    if not c.flag("block_auto_adjust_ff_dim", True):
        return given
    width = int(2 * int(given) / 3)
    factor, unit = c.get("block_ffn_dim_multiplier", 1.0), int(c.size("block_multiple_of", 256))
    if factor is not None:
        width = -(-int(factor * width) // unit) * unit
    return Dim(width, "d_ff")


@family("lfm2")
def lfm2(c: Config) -> Parts:
    """LFM2: short convolutions, attention in some layers."""
    listed = c.get("full_attn_idxs")
    kinds = c.kinds("layer_types") or [
        "full_attention" if listed is None or i in listed else "conv" for i in range(c.layers)
    ]
    convs, full = two_kinds(c, lambda i: kinds[i] == "conv")
    width = lfm2_width(c)
    yield from lfm_frame(
        c,
        lambda layers: swiglu(f"{BLOCK}.feed_forward", c.d_model, width, layers, names=W123),
        lambda layers: lfm2_attention(c, layers),
        convs,
        full,
    )


@family("lfm2_moe")
def lfm2_moe(c: Config) -> Parts:
    """LFM2 with experts after the leading dense layers."""
    from llmcalc.errors import ConfigError

    kinds = c.kinds("layer_types")
    if kinds is None:
        raise ConfigError(
            "lfm2_moe: the config has no layer_types, which this family cannot do without"
        )
    convs, full = two_kinds(c, lambda i: kinds[i] == "conv")
    p, d = f"{BLOCK}.feed_forward", c.d_model

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{p}.gate", c.n_experts, d, "router", layers)
        if c.flag("use_expert_bias"):
            yield from correction_bias(f"{p}.expert_bias", c.n_experts, layers)
        one = swiglu(f"{p}.experts.{{expert}}", d, c.d_ff_expert, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    dense = c.size("n_dense_layers", 0, "num_dense_layers", least=0)
    feed_forward = dense_first(
        c, lambda layers: swiglu(p, d, c.d_ff, layers, names=W123), moe, int(dense)
    )
    yield from lfm_frame(c, feed_forward, lambda layers: lfm2_attention(c, layers), convs, full)


@family("lfm3")
def lfm3(c: Config) -> Parts:
    """LFM3: LFM2 with windows, gated attention and norms after."""
    d, bias, sandwich = c.d_model, c.flag("attention_bias"), c.flag("use_sandwich_norm")
    kinds = c.kinds("layer_types") or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv"
        for i in range(c.layers)
    ]
    convs, attending = two_kinds(c, lambda i: kinds[i] == "conv")
    sliding = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")

    def block(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, layers, window, bias)
        if c.flag("use_attention_gate"):
            yield from linear(f"{ATTENTION}.gate_proj", c.n_heads, d, "attn.gate", layers)

    def feed_forward(layers: Layers) -> Parts:
        if sandwich:
            yield from norm(f"{BLOCK}.post_operator_norm", d, layers)
        yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, names=W123)
        if sandwich:
            yield from norm(f"{BLOCK}.post_ffn_norm", d, layers)

    yield from lfm_frame(
        c, feed_forward, lambda layers: by_window(c, layers, sliding, block), convs, attending
    )


@family("lfm2_vl")
def lfm2_vl(c: Config) -> Parts:
    """LFM2-VL: SigLIP 2, patches unshuffled into the projector."""
    vision, tied = (
        inner(c, "vision_config", "siglip2_vision_model"),
        c.flag("tie_embedding", c.tied),
    )
    text = text_of(c, "lfm2", tied)
    h, factor, p = named(vision, "hidden_size"), c.downsample_factor, "model.multi_modal_projector"
    width, joined, bias = c.projector_hidden_size, h * factor * factor, c.flag("projector_bias")
    yield from siglip(vision, "model.vision_tower", linear_patches=True)
    if c.flag("projector_use_layernorm"):
        yield from norm(f"{p}.layer_norm", joined, bias=True, role="projector")
    yield from linear(f"{p}.linear_1", width, joined, "projector", bias=bias)
    yield from linear(f"{p}.linear_2", text.d_model, width, "projector", bias=bias)
    yield from llm_with_top_head(text)
