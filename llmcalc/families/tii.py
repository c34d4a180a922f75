"""TII: Falcon, Falcon-H1 (Falcon Mamba is Mamba's structure)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, gqa, linear, lm_head, mlp, norm, swiglu, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, runs
from llmcalc.families.parts.frame import ATTENTION, BLOCK
from llmcalc.families.parts.hybrid import MAMBA, mamba2_scan
from llmcalc.families.parts.running import common, rotary
from llmcalc.families.parts.scan import expanded, mamba2

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("falcon")
def falcon(c: Config) -> Parts:
    """Falcon (arXiv 2311.16867): one or two norms before a parallel block, or the serial one of the
    RW models.
    """
    c = (
        Config({**c.raw, "hidden_size": c.raw["n_embed"]}, defaults=c.defaults)
        if c.raw.get("n_embed")
        else c
    )
    d, layers, block, bias = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.h.{layer}",
        c.flag("bias"),
    )
    new, d_h = c.flag("new_decoder_architecture"), c.split_head_dim
    n_kv = c.n_kv_heads if new else Dim(1, "n_kv_heads") if c.flag("multi_query") else c.n_heads
    width = (c.n_heads + 2 * n_kv) * d_h if new or c.flag("multi_query") else 3 * d
    two = c.get("num_ln_in_parallel_attn") == 2 or (
        c.get("num_ln_in_parallel_attn") is None and new
    )
    first = ("ln_attn", "ln_mlp") if c.flag("parallel_attn") and two else ("input_layernorm",)
    yield from embed("transformer.word_embeddings", c.vocab, d)
    for name in first:
        yield from norm(f"{block}.{name}", d, layers, bias=True)
    yield from linear(f"{block}.self_attention.query_key_value", width, d, "attn.qkv", layers, bias)
    yield replace(
        attention(layers, c.n_heads, n_kv, d_h, d_h), cached_heads=c.n_heads if new else None
    )
    yield from linear(f"{block}.self_attention.dense", d, d, "attn.o", layers, bias)
    if not c.flag("parallel_attn"):
        yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    d_ff = c.size("d_ff", 4 * d, "ffn_hidden_size")
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"), bias)
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.word_embeddings.weight"))


@family("falcon_h1")
def falcon_h1(c: Config) -> Parts:
    """Falcon-H1 (arXiv 2507.22448): Mamba 2 and attention side by side in every layer."""
    d, layers = c.d_model, Layers.all(c.n_layers)
    given = c.optional("mamba_d_ssm")
    scan = mamba2_scan(c, Dim(given, "d_inner") if given else expanded(c, "mamba_expand"))
    in_bias, out_bias = c.flag("mamba_proj_bias"), c.flag("projectors_bias")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from mamba2(
        MAMBA,
        d,
        scan,
        layers,
        c.flag("mamba_conv_bias"),
        in_bias,
        out_bias,
        c.flag("mamba_rms_norm"),
    )
    yield from gqa(ATTENTION, c, layers, None, c.flag("attention_bias"))
    yield from norm(f"{BLOCK}.pre_ff_layernorm", d, layers)
    yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, c.flag("mlp_bias"))
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@runs("falcon")
def falcon_runs(c: Config) -> Forward:
    """Falcon: heads by group in one projection, parallel blocks.

    The RW models use ALiBi, scaled with the scores.
    """
    new = c.flag("new_decoder_architecture")
    alibi = c.flag("alibi")
    return common(
        c,
        norm="layer",
        join="parallel" if new or c.flag("parallel_attn") else "pre",
        qkv="groups" if new or c.flag("multi_query") else "heads",
        positions="alibi" if alibi else "rotary",
        alibi_dtype="bfloat16",
        alibi_scaled=True,
        rotary=None if alibi else rotary(c, int(c.split_head_dim)),
    )
