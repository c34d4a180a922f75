"""Baidu: ERNIE 4.5."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import experts, gqa, linear, swiglu, tensor
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, MLP, gated, pre_norm, split


@family("ernie4_5")
def ernie(c: Config) -> Parts:
    """ERNIE 4.5 dense: one flag for every bias."""
    bias = c.flag("use_bias")
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c, bias)
    )


@family("ernie4_5_moe")
def ernie_moe(c: Config) -> Parts:
    """ERNIE 4.5 with experts between two layers, at an interval.

    The router's correction is a parameter.
    """
    bias, n = c.flag("use_bias"), c.n_experts
    first, last = c.size("moe_layer_start_index", 0, least=0), c.get("moe_layer_end_index", -1)
    last, every = c.layers - 1 if last in (None, -1) else last, c.size("moe_layer_interval", 1)

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{MLP}.gate", n, c.d_model, "router", layers)
        yield tensor(f"{MLP}.moe_statics.e_score_correction_bias", (1, n), "add", "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff_expert, layers)
        yield from experts(one, n, c.n_active_experts)
        if c.n_shared_experts:
            yield from swiglu(
                f"{MLP}.shared_experts", c.d_model, c.d_ff_expert * c.n_shared_experts, layers, bias
            )

    is_dense = lambda i: not ((i + 1) % every == 0 and first <= i <= last)
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        split(is_dense, gated(c, bias), moe),
    )
    if bias:
        yield tensor("lm_head.bias", (c.vocab,), "add", "head")
