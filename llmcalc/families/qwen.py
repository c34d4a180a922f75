"""Qwen 2 to 3 and the models that share their blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import gqa, gqa_normed, linear, swiglu
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, MLP, gated, pre_norm, routed, split


def late_windows(c: Config) -> frozenset[int]:
    """Qwen's windows: off unless ``use_sliding_window``, then from ``max_window_layers`` on."""
    if not (c.flag("use_sliding_window") and c.optional("window")):
        return (
            c.sliding(lambda i: False)
            if c.get("layer_types") and c.optional("window")
            else frozenset()
        )
    first = c.size("max_window_layers", 0, least=0)
    return c.sliding(lambda i: i >= first)


@family("qwen2", "mimo")
def qwen2(c: Config) -> Parts:
    """Qwen2 and 2.5 (arXiv 2407.10671): biases on q, k and v, always."""
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, True, False),
        gated(c),
        late_windows(c),
    )


@family("qwen3")
def qwen3(c: Config) -> Parts:
    """Qwen3 dense (arXiv 2505.09388): norms on queries and keys instead of biases."""
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        gated(c),
        late_windows(c),
    )


def dense_layers(c: Config) -> Callable[[int], bool]:
    """Qwen's rule for layers without experts: listed ones, and those that the sparse step skips."""
    listed: Any = c.get("mlp_only_layers") or []
    step = c.size("decoder_sparse_step", 1)
    return lambda i: i in listed or (i + 1) % step != 0


@family("qwen2_moe")
def qwen2_moe(c: Config) -> Parts:
    """Qwen1.5-MoE: routed experts beside one shared expert with a gate of its own."""
    bias = c.flag("qkv_bias")

    def moe(layers: Layers) -> Parts:
        yield from routed(c, layers, c.d_ff_expert)
        yield from swiglu(
            f"{MLP}.shared_expert", c.d_model, c.size("shared_expert_intermediate_size"), layers
        )
        yield from linear(f"{MLP}.shared_expert_gate", 1, c.d_model, "router", layers)

    last = c.size("max_window_layers", 0, least=0)
    slides = c.flag("use_sliding_window") and c.optional("window")
    sliding = c.sliding(lambda i: slides and (i + 1) % 2 and i < last)
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias, False),
        split(dense_layers(c), gated(c), moe),
        sliding,
    )


@family("qwen3_moe")
def qwen3_moe(c: Config) -> Parts:
    """Qwen3 with experts: no shared one."""
    bias = c.flag("attention_bias")
    slides = c.flag("use_sliding_window") and c.optional("window")
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        split(dense_layers(c), gated(c), lambda layers: routed(c, layers, c.d_ff_expert)),
        c.sliding(lambda i: slides),
    )


@family("mellum")
def mellum(c: Config) -> Parts:
    """Mellum 2: Qwen3's blocks, experts where ``mlp_layer_types`` says so."""
    kinds = c.kinds("mlp_layer_types") or ["sparse"] * c.layers
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        split(
            lambda i: kinds[i] != "sparse",
            gated(c),
            lambda layers: routed(c, layers, c.d_ff_expert),
        ),
        c.sliding(lambda i: False),
    )
