"""Tencent: Hunyuan, dense and with experts, Youtu."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import correction_bias, experts, gqa_normed, linear, mix, qk_norm, qkv, swiglu
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, MLP, gated, pre_norm, routed, split
from llmcalc.families.parts.latent import latent, sparse_layers


@family("youtu")
def youtu(c: Config) -> Parts:
    """Youtu-LLM: latent attention with a dense MLP."""
    yield from pre_norm(c, lambda layers, window: latent(c, layers, window), gated(c))


@family("hunyuan_v1_moe")
def hunyuan_moe(c: Config) -> Parts:
    """Hunyuan-A13B: routed experts and one shared MLP of the same width."""

    def feed_forward(layers: Layers) -> Parts:
        k = c.get("moe_topk", c.get("num_experts_per_tok"))
        active = (
            Dim(max(k), "n_active_experts") if isinstance(k, list) and k else c.n_active_experts
        )
        yield from linear(f"{MLP}.gate.wg", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff, layers)
        yield from experts(one, c.n_experts, active)
        yield from swiglu(f"{MLP}.shared_mlp", c.d_model, c.d_ff, layers)

    yield from pre_norm(
        c, lambda layers, window: hunyuan_attention(c, layers, window), feed_forward
    )


@family("hunyuan_v1_dense")
def hunyuan(c: Config) -> Parts:
    """Hunyuan dense: norms on queries and keys, after the rotation."""
    yield from pre_norm(c, lambda layers, window: hunyuan_attention(c, layers, window), gated(c))


def hunyuan_attention(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Grouped-query attention with Hunyuan's names for the norms on queries and keys."""
    bias = c.flag("attention_bias")
    yield from qkv(ATTENTION, c, layers, bias)
    yield from qk_norm(ATTENTION, c, layers, names=("query_layernorm", "key_layernorm"))
    yield mix(c, layers, window)
    yield from linear(
        f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
    )


@family("hy_v3")
def hy_v3(c: Config) -> Parts:
    """Hunyuan 3: norms on queries and keys, a shared MLP, biases by flag."""
    kinds = sparse_layers(c, ["dense"] + ["sparse"] * (c.layers - 1))
    bias, mlp_bias, p = c.flag("attention_bias"), c.flag("mlp_bias"), f"{MLP}.shared_mlp"

    def moe(layers: Layers) -> Parts:
        yield from routed(c, layers, c.d_ff_expert, router="router.gate")
        yield from correction_bias(f"{MLP}.expert_bias", c.n_experts, layers)
        width = c.d_ff_expert * c.n_shared_experts if c.n_shared_experts else c.d_ff
        yield from swiglu(p, c.d_model, width, layers, mlp_bias)

    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        split(lambda i: kinds[i] != "sparse", gated(c, mlp_bias), moe),
    )
