"""Alibaba: Qwen3-Next and Qwen3.5, whose layers are gated delta nets but for every fourth."""

from __future__ import annotations

from typing import Any

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import embed, linear, lm_head, mix, norm, qk_norm, swiglu, tensor, tie
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.delta import DELTA, delta_state
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, gated, routed, split
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.windows import dense_layers


def gated_delta(c: Config, layers: Layers, joint: bool) -> Parts:
    """Gated delta net (arXiv 2412.06464) with Qwen's names.

    ``joint``: q, k, v, z in one projection.
    """
    d, heads = c.d_model, c.size("n_linear_heads", None, "linear_num_value_heads")
    d_k, d_v = c.linear_key_head_dim, c.linear_value_head_dim
    keys, values = c.linear_num_key_heads * d_k, heads * d_v
    channels = 2 * keys + values
    if joint:
        yield from linear(f"{DELTA}.in_proj_qkvz", channels + values, d, "ssm.in", layers)
        yield from linear(f"{DELTA}.in_proj_ba", 2 * heads, d, "ssm.in", layers)
    else:
        sizes = {"qkv": channels, "z": values, "b": heads, "a": heads}
        for name, width in sizes.items():
            yield from linear(f"{DELTA}.in_proj_{name}", width, d, "ssm.in", layers)
    width = c.size("d_conv", None, "linear_conv_kernel_dim")
    yield tensor(f"{DELTA}.conv1d.weight", (channels, 1, width), "conv", "ssm.conv", layers)
    yield tensor(f"{DELTA}.dt_bias", (heads,), "state", "ssm.dt", layers)
    yield tensor(f"{DELTA}.A_log", (heads,), "state", "ssm.a", layers)
    yield from delta_state(layers, channels, width, heads, d_k, d_v)
    yield from norm(f"{DELTA}.norm", d_v, layers, role="ssm.norm")
    yield from linear(f"{DELTA}.out_proj", d, values, "ssm.out", layers)


def gated_attention(c: Config, layers: Layers) -> Parts:
    """Grouped-query attention whose q projection brings an output gate along."""
    kv, bias = c.n_kv_heads * c.head_dim, c.flag("attention_bias")
    yield from linear(
        f"{ATTENTION}.q_proj", 2 * c.n_heads * c.head_dim, c.d_model, "attn.q", layers, bias
    )
    yield from linear(f"{ATTENTION}.k_proj", kv, c.d_model, "attn.k", layers, bias)
    yield from linear(f"{ATTENTION}.v_proj", kv, c.d_model, "attn.v", layers, bias)
    yield from qk_norm(ATTENTION, c, layers)
    yield mix(c, layers)
    yield from linear(
        f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
    )


def qwen_hybrid(c: Config, joint: bool, feed_forward: Any) -> Parts:
    """Three delta-net layers to one of gated attention."""
    d, layers, every = c.d_model, Layers.all(c.n_layers), c.get("full_attention_interval") or 4
    kinds = c.kinds("layer_types") or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(c.layers)
    ]
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        yield from gated_delta(c, linear_layers, joint)
    if full.indices:
        yield from gated_attention(c, full)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from feed_forward(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def qwen_experts(c: Config, layers: Layers) -> Parts:
    """Routed experts beside one shared expert with a gate of its own."""
    yield from routed(c, layers, c.d_ff_expert)
    yield from swiglu(
        f"{MLP}.shared_expert", c.d_model, c.size("shared_expert_intermediate_size"), layers
    )
    yield from linear(f"{MLP}.shared_expert_gate", 1, c.d_model, "router", layers)


@family("qwen3_next")
def qwen3_next(c: Config) -> Parts:
    """Qwen3-Next: gated delta nets, gated attention in every fourth layer, 512 experts."""
    yield from qwen_hybrid(
        c, True, split(dense_layers(c), gated(c), lambda ls: qwen_experts(c, ls))
    )


@family("qwen3_5_text")
def qwen3_5_text(c: Config) -> Parts:
    """Qwen3.5's dense language model."""
    yield from qwen_hybrid(c, False, gated(c))


@family("qwen3_5_moe_text")
def qwen3_5_moe_text(c: Config) -> Parts:
    """Qwen3.5's language model with experts in every layer."""
    yield from qwen_hybrid(c, False, lambda layers: qwen_experts(c, layers))
