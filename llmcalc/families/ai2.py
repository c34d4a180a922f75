"""Ai2: OLMo 1 to 3, OLMoE, FlexOlmo, the hybrid."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    by_window,
    embed,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    mix,
    norm,
    qkv,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim, ceil_div
from llmcalc.families import family, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.delta import DELTA, delta_state
from llmcalc.families.parts.frame import ATTENTION, BLOCK, gated, post_norm, pre_norm, routed
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.qwen import qwen3_moe_runs


@family("olmoe")
def olmoe(c: Config) -> Parts:
    """OLMoE (arXiv 2409.02060): small experts, norms on whole queries and keys."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, bias)
        yield from norm(f"{ATTENTION}.q_norm", c.d_model, layers, role="attn.q_norm")
        yield from norm(
            f"{ATTENTION}.k_norm", c.split_head_dim * c.n_kv_heads, layers, role="attn.k_norm"
        )
        yield mix(c, layers, window)
        yield from linear(
            f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
        )

    yield from pre_norm(c, attend, lambda layers: routed(c, layers, c.d_ff))


@family("olmo_hybrid")
def olmo_hybrid(c: Config) -> Parts:
    """OLMo hybrid: gated delta nets with a norm before, attention with norms after in every fourth
    layer.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    default = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(c.layers)]
    default[-1] = "full_attention" if "full_attention" not in default else default[-1]
    kinds = c.kinds("layer_types") or default
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    key_heads = c.size("n_linear_key_heads", int(c.n_heads), "linear_num_key_heads")
    heads = c.size("n_linear_heads", int(c.n_heads), "linear_num_value_heads")
    d_k = c.size("linear_key_head_dim", int(0.75 * int(d) / int(key_heads)))
    d_v = c.size("linear_value_head_dim", 2 * int(d_k))
    keys, values, width = (
        key_heads * d_k,
        heads * d_v,
        c.size("d_conv", 4, "linear_conv_kernel_dim"),
    )
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.attention_layer_norm", d, linear_layers)
    for name, out in (
        ("q", keys),
        ("k", keys),
        ("v", values),
        ("a", heads),
        ("b", heads),
        ("g", values),
    ):
        yield from linear(f"{DELTA}.{name}_proj", out, d, "ssm.in", linear_layers)
    channels = 2 * keys + values
    # the reference writes its joint filter in three chunks of equal size
    third = ceil_div(channels, 3)
    for name, share in (("q", third), ("k", third), ("v", channels - 2 * third)):
        yield tensor(
            f"{DELTA}.{name}_conv1d.weight", (share, 1, width), "conv", "ssm.conv", linear_layers
        )
    yield tensor(f"{DELTA}.A_log", (heads,), "state", "ssm.a", linear_layers)
    yield tensor(f"{DELTA}.dt_bias", (heads,), "state", "ssm.dt", linear_layers)
    yield from delta_state(linear_layers, channels, width, heads, d_k, d_v)
    yield from norm(f"{DELTA}.o_norm", d_v, linear_layers, role="ssm.norm")
    yield from linear(f"{DELTA}.o_proj", d, values, "ssm.out", linear_layers)
    yield from gqa_normed(ATTENTION, c, full, None, c.flag("attention_bias"), False)
    yield from norm(f"{BLOCK}.feedforward_layer_norm", d, layers)
    yield from gated(c)(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", d, full)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("flex_olmo")
def flex_olmo(c: Config) -> Parts:
    """FlexOlmo: OLMo 2's frame around experts."""
    bias = c.flag("attention_bias")
    yield from post_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias, False),
        lambda layers: routed(c, layers, c.d_ff),
    )


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


runs("olmo2", "olmo3")(llama_runs)
runs("olmoe")(qwen3_moe_runs)
