"""OpenAI: GPT-1 and 2, Whisper, gpt-oss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    attention,
    conv1d_gpt2,
    embed,
    gqa,
    linear,
    lm_head,
    norm,
    stacked,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import UnavailableError
from llmcalc.families import family, runs
from llmcalc.families.parts.encoder_decoder import decoder_stack, encoder_stack, is_causal, width
from llmcalc.families.parts.frame import ATTENTION, MLP, pre_norm
from llmcalc.families.parts.running import (
    ACTIVATIONS,
    clamp,
    common,
    first_given,
    number,
    rotary,
    router,
)

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("whisper")
def whisper(c: Config) -> Parts:
    """Whisper (arXiv 2212.04356): two convolutions over the sound, then BART's layers.

    Keys have no bias.
    """
    d, source = width(c), c.max_source_positions
    if not is_causal(c):
        for name, channels in (("conv1", c.num_mel_bins), ("conv2", d)):
            yield tensor(f"model.encoder.{name}.weight", (d, channels, 3), "conv", "conv")
            yield tensor(f"model.encoder.{name}.bias", (d,), "add", "conv")
        yield from embed("model.encoder.embed_positions", source, d, "embed.position")
        yield from encoder_stack("model.encoder", c, d, False)
        yield from norm("model.encoder.layer_norm", d, bias=True)
    yield from embed("model.decoder.embed_tokens", c.vocab, d)
    yield from embed("model.decoder.embed_positions", c.max_target_positions, d, "embed.position")
    yield from decoder_stack("model.decoder", c, d, False, source)
    yield from norm("model.decoder.layer_norm", d, bias=True)
    to = "model.decoder.embed_tokens.weight" if c.tied else None
    yield tensor("proj_out.weight", (c.vocab, d), "matmul", "head", tied_to=to)


@family("gpt_oss")
def gpt_oss(c: Config) -> Parts:
    """gpt-oss (arXiv 2508.10925): sinks, biases, stacked and transposed experts, windows in every
    other layer.
    """
    bias, n, k, d = c.flag("attention_bias"), c.n_experts, c.n_active_experts, c.d_model

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    def feed_forward(layers: Layers) -> Parts:
        p = f"{MLP}.experts"
        yield from linear(f"{MLP}.router", n, d, "router", layers, True)
        gate_up = tensor(
            f"{p}.gate_up_proj", (d, 2 * c.d_ff), "matmul", "mlp.gate_up", layers, transposed=True
        )
        gate_up_bias = tensor(f"{p}.gate_up_proj_bias", (2 * c.d_ff,), "add", "mlp.gate_up", layers)
        down = tensor(f"{p}.down_proj", (c.d_ff, d), "matmul", "mlp.down", layers, transposed=True)
        down_bias = tensor(f"{p}.down_proj_bias", (d,), "add", "mlp.down", layers)
        yield from stacked(iter((gate_up, gate_up_bias, down, down_bias)), n, k)

    yield from pre_norm(c, attend, feed_forward, c.sliding(lambda i: i % 2 == 0))


@family("gpt2")
def gpt2(c: Config) -> Parts:
    """GPT-2 and GPT-3: Conv1D storage, fused q, k and v, tied head (Radford et al. 2019)."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "h.{layer}"
    d_ff = c.size("d_ff", 4 * d)
    yield from embed("wte", c.vocab, d)
    yield from embed("wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    yield from conv1d_gpt2(f"{block}.attn.c_attn", d, 3 * d, "attn.qkv", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.head_dim, c.head_dim)
    yield from conv1d_gpt2(f"{block}.attn.c_proj", d, d, "attn.o", layers)
    if c.flag("add_cross_attention"):
        yield from norm(f"{block}.ln_cross_attn", d, layers, bias=True)
        yield from conv1d_gpt2(f"{block}.crossattention.q_attn", d, d, "cross.q", layers)
        yield from conv1d_gpt2(f"{block}.crossattention.c_attn", d, 2 * d, "cross.kv", layers)
        yield from conv1d_gpt2(f"{block}.crossattention.c_proj", d, d, "cross.o", layers)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from conv1d_gpt2(f"{block}.mlp.c_fc", d, d_ff, "mlp.up", layers)
    yield from conv1d_gpt2(f"{block}.mlp.c_proj", d_ff, d, "mlp.down", layers)
    yield from norm("ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "wte.weight"))


@family("openai-gpt")
def gpt1(c: Config) -> Parts:
    """GPT-1: norms after, no norm at the end, no cache in the reference."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.tokens_embed", c.vocab, d)
    yield from embed("transformer.positions_embed", c.max_context, d, "embed.position")
    yield from conv1d_gpt2(f"{block}.attn.c_attn", d, 3 * d, "attn.qkv", layers)
    yield replace(
        attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim), kind="none"
    )
    yield from conv1d_gpt2(f"{block}.attn.c_proj", d, d, "attn.o", layers)
    yield from norm(f"{block}.ln_1", d, layers, True)
    yield from conv1d_gpt2(f"{block}.mlp.c_fc", d, 4 * d, "mlp.up", layers)
    yield from conv1d_gpt2(f"{block}.mlp.c_proj", 4 * d, d, "mlp.down", layers)
    yield from norm(f"{block}.ln_2", d, layers, True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.tokens_embed.weight"))


@runs("gpt_oss")
def gpt_oss_runs(c: Config) -> Forward:
    """gpt-oss: YaRN, a clamped gate, scores over the chosen experts."""
    default = {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    given = (
        c.raw
        if first_given(c, ("rope_parameters", "rope_scaling"), None)
        else {**c.raw, "rope_parameters": default}
    )
    turn = rotary(Config(given, defaults=c.defaults), int(c.head_dim), 150_000.0)
    limits = clamp(number(c, "swiglu_alpha", 1.702), number(c, "swiglu_limit", 7.0))
    return common(c, rotary=turn, router=router(before=False), clamp=limits)


@runs("gpt2")
def gpt2_runs(c: Config) -> Forward:
    """GPT-2 and GPT-Neo: learned positions, LayerNorm; GPT-Neo does not scale its scores."""
    if c.flag("add_cross_attention"):
        raise UnavailableError(
            "running gpt2 with cross-attention is not supported: it needs a second sequence"
        )
    scaled = c.family == "gpt2" and c.flag("scale_attn_weights", True)
    return common(
        c,
        norm="layer",
        positions="learned",
        scale=None if scaled else 1.0,
        scale_by_layer=c.flag("scale_attn_by_inverse_layer_idx"),
        activation=str(first_given(c, ACTIVATIONS, "gelu_new")),
    )
