"""Hugging Face with BigCode and BigScience: SantaCoder, StarCoder2, BLOOM, SmolLM3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, gqa, linear, lm_head, mlp, norm, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import UnavailableError
from llmcalc.families import family, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.frame import ATTENTION, MLP, gated, joint_attention, pre_norm
from llmcalc.families.parts.running import common, rotary

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("gpt_bigcode")
def gpt_bigcode(c: Config) -> Parts:
    """StarCoder (arXiv 2305.06161):

    GPT-2 with ordinary matrices, one key/value head unless told otherwise.
    """
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_ff, d_h = c.size("d_ff", 4 * d), c.split_head_dim
    n_kv = Dim(1, "n_kv_heads") if c.flag("multi_query") else c.n_heads
    width = d + 2 * n_kv * d_h if c.flag("multi_query") else 3 * d
    yield from embed("transformer.wte", c.vocab, d)
    yield from embed("transformer.wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    yield from linear(f"{block}.attn.c_attn", width, d, "attn.qkv", layers, True)
    yield attention(layers, c.n_heads, n_kv, d_h, d_h)
    yield from linear(f"{block}.attn.c_proj", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("c_fc", "c_proj"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


@family("bloom")
def bloom(c: Config) -> Parts:
    """BLOOM (arXiv 2211.05100): ALiBi positions, a norm on the embedding."""
    c = (
        Config({**c.raw, "hidden_size": c.raw["n_embed"]}, defaults=c.defaults)
        if c.raw.get("n_embed")
        else c
    )
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.word_embeddings", c.vocab, d)
    yield from norm("transformer.word_embeddings_layernorm", d, bias=True)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from joint_attention(f"{block}.self_attention", c, layers, True)
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, 4 * d, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.word_embeddings.weight"))


@family("smollm3")
def smollm3(c: Config) -> Parts:
    """SmolLM3: every fourth layer without rotary positions, which is where a window goes if one is
    used.
    """
    every = c.size("no_rope_layer_interval", 4)
    no_rope = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(c.layers)]
    slides = c.flag("use_sliding_window") and c.optional("window")
    sliding = c.sliding(lambda i: slides and not no_rope[i])
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        gated(c, c.flag("mlp_bias")),
        sliding,
    )


@family("starcoder2")
def starcoder2(c: Config) -> Parts:
    """StarCoder2 (arXiv 2402.19173): LayerNorm and biases around grouped-query attention."""
    bias = c.flag("use_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from mlp(f"{MLP}.", c.d_model, c.d_ff, layers, ("c_fc", "c_proj"), bias)

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )


@runs("smollm3")
def smollm3_runs(c: Config) -> Forward:
    """SmolLM3: every fourth layer does not turn."""
    every = int(c.get("no_rope_layer_interval", 4))
    turned = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(c.layers)]
    plain = frozenset(i for i, flag in enumerate(turned) if not flag)
    return replace(llama_runs(c), rotary=rotary(c, int(c.head_dim), 2_000_000.0), unrotated=plain)


@runs("starcoder2")
def starcoder2_runs(c: Config) -> Forward:
    """StarCoder2: LayerNorm and biases around grouped-query attention."""
    return common(c, norm="layer", rotary=rotary(c, int(c.head_dim)))


@runs("bloom")
def bloom_runs(c: Config) -> Forward:
    """BLOOM: ALiBi, a norm on the embedding, tanh GELU."""
    if c.flag("apply_residual_connection_post_layernorm"):
        raise UnavailableError("running bloom with residuals after its norms is not supported")
    return common(c, norm="layer", positions="alibi", qkv="heads", activation="gelu_pytorch_tanh")
