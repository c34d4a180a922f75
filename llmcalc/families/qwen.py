"""Alibaba: Qwen 1 to 3, dense and with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, gqa, gqa_normed, linear, lm_head, norm, swiglu, tie
from llmcalc.config import Config
from llmcalc.families import family, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.checks import refuse
from llmcalc.families.parts.frame import ATTENTION, MLP, gated, pre_norm, routed, split
from llmcalc.families.parts.running import normalised
from llmcalc.families.parts.windows import dense_layers, late_windows

if TYPE_CHECKING:
    from llmcalc.forward import Forward


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


@family("qwen")
def qwen1(c: Config) -> Parts:
    """Qwen 1 (arXiv 2309.16609): each half of the given inner width is one of the two gates."""
    refuse(c, "visual", "vision towers")
    refuse(c, "audio", "audio towers")
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_h, bias, half = (
        c.size("head_dim", 128, "kv_channels"),
        not c.flag("no_bias", True),
        c.d_ff // 2,
    )
    a = c.n_heads * d_h
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.ln_1", d, layers)
    yield from linear(f"{block}.attn.c_attn", 3 * a, d, "attn.qkv", layers, True)
    yield attention(layers, c.n_heads, c.n_heads, d_h, d_h)
    yield from linear(f"{block}.attn.c_proj", d, a, "attn.o", layers, bias)
    yield from norm(f"{block}.ln_2", d, layers)
    yield from linear(f"{block}.mlp.w1", half, d, "mlp.up", layers, bias)
    yield from linear(f"{block}.mlp.w2", half, d, "mlp.gate", layers, bias)
    yield from linear(f"{block}.mlp.c_proj", d, half, "mlp.down", layers, bias)
    yield from norm("transformer.ln_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


@runs("qwen3_moe", "qwen2_moe")
def qwen3_moe_runs(c: Config) -> Forward:
    """Qwen and OLMoE with experts: probabilities over all, made to sum to one by flag."""
    return replace(llama_runs(c), router=normalised(c.flag("norm_topk_prob")))


runs("qwen2", "qwen3")(llama_runs)
