"""Google: Gemma 1 to 3, VaultGemma, and RecurrentGemma."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts, State
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
    state_mixer,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.frame import ATTENTION, BLOCK, gated, pre_norm
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.running import first_given, rotary
from llmcalc.families.parts.scan import conv
from llmcalc.families.parts.towers import named, siglip
from llmcalc.families.parts.wrapper import language, text_of

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("gemma")
def gemma(c: Config) -> Parts:
    """Gemma (arXiv 2403.08295)."""
    bias = c.flag("attention_bias")
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c))


@family("gemma2")
def gemma2(c: Config) -> Parts:
    """Gemma 2 (arXiv 2408.00118): norms before and after, every other layer with a window."""
    yield from sandwich(c, False, c.sliding(lambda i: i % 2 == 0))


@family("gemma3_text")
def gemma3_text(c: Config) -> Parts:
    """Gemma 3's language model (arXiv 2503.19786): five layers with a window to one without, norms
    on q and k.
    """
    every = c.get("sliding_window_pattern") or 6
    yield from sandwich(c, True, c.sliding(lambda i: (i + 1) % every))


def sandwich(c: Config, qk: bool, sliding: frozenset[int]) -> Parts:
    """Gemma's frame: a norm before and after attention and MLP."""
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")
    attend = gqa_normed if qk else gqa

    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers)
    yield from by_window(
        c, layers, sliding, lambda ls, window: attend(ATTENTION, c, ls, window, bias)
    )
    yield from norm(f"{BLOCK}.post_attention_layernorm", c.d_model, layers)
    yield from norm(f"{BLOCK}.pre_feedforward_layernorm", c.d_model, layers)
    yield from gated(c)(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", c.d_model, layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


@family("vaultgemma")
def vaultgemma(c: Config) -> Parts:
    """VaultGemma: Gemma 2 without the norms after."""
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")

    def attend(group: Layers, window: Dim | None) -> Parts:
        return gqa(ATTENTION, c, group, window, bias)

    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers)
    yield from by_window(c, layers, c.sliding(lambda i: i % 2 == 0), attend)
    yield from norm(f"{BLOCK}.pre_feedforward_layernorm", c.d_model, layers)
    yield from gated(c)(layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


@family("recurrent_gemma")
def recurrent_gemma(c: Config) -> Parts:
    """RecurrentGemma (arXiv 2404.07839): two gated linear recurrences to one layer of local
    attention.
    """
    d, layers, p = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.temporal_block"
    pattern = c.get("block_types") or ["recurrent", "recurrent", "attention"]
    recurrent, full = two_kinds(c, lambda i: pattern[i % len(pattern)] == "recurrent")
    w, n, d_conv = c.optional("lru_width") or d, c.n_heads, c.size("d_conv", 4, "conv1d_width")
    window = c.size("window", None, "sliding_window", "attention_window_size")
    half = c.d_ff // 2
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.temporal_pre_norm", d, layers)
    for name in ("linear_y", "linear_x"):
        yield from linear(f"{p}.{name}", w, d, "ssm.in", recurrent, True)
    yield from conv(f"{p}.conv_1d", w, d_conv, recurrent, True)
    yield tensor(f"{p}.rg_lru.recurrent_param", (w,), "state", "ssm.a", recurrent)
    for name in ("input_gate", "recurrent_gate"):
        yield tensor(f"{p}.rg_lru.{name}_weight", (n, w // n, w // n), "matmul", "ssm.x", recurrent)
        yield tensor(f"{p}.rg_lru.{name}_bias", (n, w // n), "add", "ssm.x", recurrent)
    yield state_mixer(
        recurrent, State("conv", w, d_conv - 1), State("recurrent", w, Dim(1), "float32")
    )
    yield from linear(f"{p}.linear_out", d, w, "ssm.out", recurrent, True)
    if full.indices:
        yield from qkv(p, c, full, c.flag("attention_bias"))
        yield mix(c, full, window)
        yield from linear(f"{p}.o_proj", d, c.n_heads * c.head_dim, "attn.o", full, True)
    yield from norm(f"{BLOCK}.channel_pre_norm", d, layers)
    yield from swiglu(f"{BLOCK}.mlp_block", d, half, layers, True)
    yield from norm("model.final_norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("gemma3")
def gemma3(c: Config) -> Parts:
    """Gemma 3 with SigLIP: one matrix into the language model."""
    vision, text = (
        inner(c, "vision_config", "siglip_vision_model"),
        text_of(c, "gemma3_text", c.tied),
    )
    yield from siglip(vision, "vision_tower")
    h = named(vision, "hidden_size")
    yield tensor(
        "multi_modal_projector.mm_input_projection_weight", (h, text.d_model), "matmul", "projector"
    )
    yield from norm("multi_modal_projector.mm_soft_emb_norm", h, role="projector")
    yield from language(text)


@runs("gemma")
def gemma_runs(c: Config) -> Forward:
    """Gemma: norms scale by one more than their weight, embeddings by the root of the width."""
    added = "attention.key_length" not in c.raw  # a GGUF stores the weights with the one added
    activation = str(c.get("hidden_activation") or "gelu_pytorch_tanh")
    return replace(
        llama_runs(c), norm_adds_one=added, activation=activation, embed_scale=sqrt(int(c.d_model))
    )


@runs("gemma2", "gemma3_text")
def gemma2_runs(c: Config) -> Forward:
    """Gemma 2 and 3: norms before and after, soft caps where set, two bases in the third."""
    third = c.family == "gemma3_text"
    scalar = first_given(c, ("query_pre_attn_scalar",), None)
    caps = [first_given(c, (f"{what}_logit_softcapping",), None) for what in ("attn", "final")]
    local = first_given(c, ("rope_local_base_freq",), 10_000.0)
    plain = Config({**c.raw, "rope_theta": local, "rope_scaling": None}, defaults=c.defaults)
    return replace(
        gemma_runs(c),
        activation=str(first_given(c, ("hidden_activation", "hidden_act"), "gelu_pytorch_tanh")),
        join="sandwich",
        rotary=rotary(c, int(c.head_dim), 1e6 if third else 10_000.0),
        local_rotary=rotary(plain, int(c.head_dim), local, "sliding_attention") if third else None,
        scale=None if scalar is None else float(scalar) ** -0.5,
        score_cap=caps[0],
        logit_cap=caps[1],
    )
