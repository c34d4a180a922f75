"""DeepSeek: from the first to V3.2, latent attention and experts."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import gqa
from llmcalc.config import Config
from llmcalc.families import family, runs
from llmcalc.families.parts.frame import (
    ATTENTION,
    FeedForward,
    dense_first,
    gated,
    pre_norm,
    routed_with_shared,
    split,
)
from llmcalc.families.parts.latent import latent, sparse_attention, sparse_layers
from llmcalc.families.parts.running import common, first_given, number, rotary, router

if TYPE_CHECKING:
    from llmcalc.forward import Forward, Router


@family("deepseek_v2")
def deepseek_v2(c: Config) -> Parts:
    """DeepSeek-V2 (arXiv 2405.04434): latent attention, shared experts, no correction of the
    router.
    """
    bias = c.flag("mlp_bias")
    moe: FeedForward = lambda layers: routed_with_shared(c, layers, None, bias)
    yield from pre_norm(
        c, lambda layers, window: latent(c, layers, window), dense_first(c, gated(c, bias), moe)
    )


@family("deepseek_v3", "kimi_k2", "sarvam_mla")
def deepseek_v3(c: Config) -> Parts:
    """DeepSeek-V3, R1 (arXiv 2412.19437) and Kimi K2; multi-token-prediction layers are
    left out.
    """
    feed_forward = dense_first(c, gated(c), lambda layers: routed_with_shared(c, layers))
    yield from pre_norm(c, lambda layers, window: latent(c, layers, window), feed_forward)


@family("deepseek_v32")
def deepseek_v32(c: Config) -> Parts:
    """DeepSeek-V3.2: V3 with an indexer in every layer."""
    first = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    moe = split(
        lambda i: kinds[i] != "sparse", gated(c), lambda layers: routed_with_shared(c, layers)
    )
    yield from pre_norm(c, lambda layers, _: sparse_attention(c, layers, layers), moe, frozenset())


@family("deepseek")
def deepseek_v1(c: Config) -> Parts:
    """DeepSeekMoE 16B (arXiv 2401.06066) and DeepSeek LLM: ordinary attention, routed and shared
    experts.
    """
    bias, first, every = (
        c.flag("attention_bias"),
        c.size("n_dense_layers", 0, least=0),
        c.size("moe_layer_freq", 1),
    )
    sparse = c.optional("n_experts")

    def moe(layers: Layers) -> Parts:
        whole = (
            c
            if c.raw.get("n_shared_experts") is not None
            else Config({**c.raw, "n_shared_experts": 0}, defaults=c.defaults)
        )
        yield from routed_with_shared(whole, layers, None)

    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        split(lambda i: not sparse or i < first or i % every != 0, gated(c), moe),
    )


@runs("deepseek_v2", "deepseek_v3")
def deepseek_runs(c: Config) -> Forward:
    """DeepSeek-V2 and V3: latent attention, experts in groups; YaRN also scales the scores."""
    third = c.family == "deepseek_v3"
    turn = rotary(
        c, int(c.qk_rope_head_dim), interleaved=not third or c.flag("rope_interleave", True)
    )
    scale = float(int(c.qk_nope_head_dim) + int(c.qk_rope_head_dim)) ** -0.5
    stretch, weight = turn.settings.get("factor"), turn.settings.get("mscale_all_dim")
    if turn.kind != "default" and weight and stretch and stretch > 1:
        scale *= (0.1 * weight * log(stretch) + 1.0) ** 2
    return common(c, rotary=turn, scale=scale, router=_deepseek_router(c, third))


def _deepseek_router(c: Config, third: bool) -> Router:
    grouped = third or first_given(c, ("topk_method",), "greedy") == "group_limited_greedy"
    return router(
        scores="sigmoid" if third else "softmax",
        normalise=third and c.flag("norm_topk_prob", True),
        scale=number(c, "routed_scaling_factor"),
        groups=int(first_given(c, ("n_group",), 1)) if grouped else 1,
        kept=int(first_given(c, ("topk_group",), 1)) if grouped else 1,
        group_best=2 if third else 1,
    )
