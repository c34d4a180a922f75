"""State-space models without attention: Mamba 1 and 2, RWKV-4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import embed, linear, lm_head, norm, state_mixer, tensor, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, runs
from llmcalc.families.parts.running import common
from llmcalc.families.parts.scan import Scan, dt_rank, expanded, mamba1, mamba2

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("mamba", "falcon_mamba")
def mamba(c: Config) -> Parts:
    """Mamba and Falcon-Mamba: nothing but selective scans."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "backbone.layers.{layer}"
    given = c.raw.get("intermediate_size", c.raw.get("ssm.inner_size"))
    d_inner = Dim(given, "d_inner") if given else expanded(c)
    scan = Scan(d_inner, c.d_state, c.d_conv, dt_rank(c, "time_step_rank", "ssm.time_step_rank"))
    yield from embed("backbone.embeddings", c.vocab, d)
    yield from norm(f"{block}.norm", d, layers)
    yield from mamba1(
        f"{block}.mixer", d, scan, layers, c.flag("use_conv_bias"), c.flag("use_bias")
    )
    yield from norm("backbone.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "backbone.embeddings.weight"))


@family("mamba2")
def mamba_2(c: Config) -> Parts:
    """Mamba 2 and Codestral Mamba."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "backbone.layers.{layer}"
    heads = c.size("n_heads", None, "num_heads")
    scan = Scan(
        expanded(c), c.d_state, c.d_conv, heads=Dim(heads, "n_ssm_heads"), groups=c.n_groups
    )
    bias = c.flag("use_bias")
    yield from embed("backbone.embeddings", c.vocab, d)
    yield from norm(f"{block}.norm", d, layers)
    yield from mamba2(f"{block}.mixer", d, scan, layers, c.flag("use_conv_bias"), bias, bias)
    yield from norm("backbone.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "backbone.embeddings.weight"))


@family("rwkv")
def rwkv(c: Config) -> Parts:
    """RWKV 4 (arXiv 2305.13048): time mixing with a decay per channel.

    Five vectors per layer are all it keeps.
    """
    d, layers, block = c.d_model, Layers.all(c.n_layers), "rwkv.blocks.{layer}"
    a = c.optional("attention_hidden_size") or d
    d_ff = c.size("d_ff", 4 * d)
    att, ffn = f"{block}.attention", f"{block}.feed_forward"
    yield from embed("rwkv.embeddings", c.vocab, d)
    yield from norm(
        f"{block}.pre_ln", d, layers.where("n_first_layers", lambda i: i == 0), bias=True
    )
    yield from norm(f"{block}.ln1", d, layers, bias=True)
    for name in ("time_decay", "time_first"):
        yield tensor(f"{att}.{name}", (a,), "state", "ssm.a", layers)
    for name in ("key", "value", "receptance"):
        yield tensor(f"{att}.time_mix_{name}", (1, 1, d), "scale", "mix", layers)
    for name, role in (("key", "attn.k"), ("value", "attn.v"), ("receptance", "attn.q")):
        yield from linear(f"{att}.{name}", a, d, role, layers)
    yield state_mixer(layers, State("conv", d, Dim(2)), State("recurrent", d, Dim(3), "float32"))
    yield from linear(f"{att}.output", d, a, "attn.o", layers)
    yield from norm(f"{block}.ln2", d, layers, bias=True)
    for name in ("key", "receptance"):
        yield tensor(f"{ffn}.time_mix_{name}", (1, 1, d), "scale", "mix", layers)
    yield from linear(f"{ffn}.key", d_ff, d, "mlp.up", layers)
    yield from linear(f"{ffn}.receptance", d, d, "mlp.gate", layers)
    yield from linear(f"{ffn}.value", d, d_ff, "mlp.down", layers)
    yield from norm("rwkv.ln_out", d, bias=True)
    yield from lm_head("head", c.vocab, d, tie(c, "rwkv.embeddings.weight"))


@runs("mamba")
def mamba_runs(c: Config) -> Forward:
    """Mamba: selective scans alone; their sizes are those of the weights."""
    return common(c, positions="none")
