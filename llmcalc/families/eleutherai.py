"""EleutherAI: GPT-Neo, GPT-J, GPT-NeoX and Pythia."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, linear, lm_head, mlp, norm, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family, runs
from llmcalc.families.openai import gpt2_runs
from llmcalc.families.parts.frame import joint_attention
from llmcalc.families.parts.running import common, rotary

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("gpt_neo")
def gpt_neo(c: Config) -> Parts:
    """GPT-Neo: every other layer masks to a window, which the cache does not use."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_ff = c.size("d_ff", 4 * d)
    yield from embed("transformer.wte", c.vocab, d)
    yield from embed("transformer.wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    for name in ("q", "k", "v"):
        yield from linear(f"{block}.attn.attention.{name}_proj", d, d, f"attn.{name}", layers)
    kinds = _gpt_neo_kinds(c)
    local, others = layers.split("local", lambda i: kinds[i] == "local")
    mixer = attention(others, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield mixer
    yield replace(mixer, layers=local, sight=Dim(c.size("window_size"), "window"))
    yield from linear(f"{block}.attn.attention.out_proj", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("c_fc", "c_proj"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


def _gpt_neo_kinds(c: Config) -> list[str]:
    """``global`` or ``local`` per layer, from ``attention_types`` = [[kinds, how often], ...], else
    alternating.
    """
    listed = c.kinds("attention_layers")
    if listed is not None:
        return [str(kind) for kind in listed]
    groups = c.get("attention_types") or [[["global", "local"], -(-c.layers // 2)]]
    try:
        named = (str(kind) for pattern, times in groups for _ in range(times) for kind in pattern)
        kinds = list(islice(named, int(c.layers)))
    except (TypeError, ValueError):
        raise ConfigError("gpt_neo: attention_types is not a list of [kinds, how often]") from None
    if len(kinds) < c.layers:
        raise ConfigError(
            f"gpt_neo: attention_types names {len(kinds)} kinds for {c.layers} layers"
        )
    return kinds


@family("gptj", "codegen")
def gptj(c: Config) -> Parts:
    """GPT-J and CodeGen: rotary positions, parallel residual behind one LayerNorm, a bias on the
    head.
    """
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    if c.family == "codegen":
        yield from linear(f"{block}.attn.qkv_proj", 3 * d, d, "attn.qkv", layers)
    else:
        for name in ("q", "k", "v"):
            yield from linear(f"{block}.attn.{name}_proj", d, d, f"attn.{name}", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.attn.out_proj", d, d, "attn.o", layers)
    yield from mlp(f"{block}.mlp.", d, c.size("d_ff", 4 * d), layers, ("fc_in", "fc_out"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"), bias=True)


@family("gpt_neox")
def gpt_neox(c: Config) -> Parts:
    """GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373)."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "gpt_neox.layers.{layer}"
    yield from embed("gpt_neox.embed_in", c.vocab, d)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from joint_attention(f"{block}.attention", c, layers, c.flag("attention_bias"))
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, c.d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("gpt_neox.final_layer_norm", d, bias=True)
    yield from lm_head("embed_out", c.vocab, d, tie(c, "gpt_neox.embed_in.weight"))


@runs("gpt_neox")
def gpt_neox_runs(c: Config) -> Forward:
    """GPT-NeoX and Pythia: attention and MLP in parallel behind two norms, a quarter of each head
    turns.
    """
    join = "parallel" if c.flag("use_parallel_residual", True) else "pre"
    return common(
        c,
        norm="layer",
        join=join,
        qkv="heads",
        rotary=rotary(c, int(c.split_head_dim), partial=0.25),
    )


runs("gpt_neo")(gpt2_runs)
