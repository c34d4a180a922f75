"""State-space models and their blocks: Mamba 1 and 2, Falcon-Mamba."""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import embed, linear, lm_head, norm, state_mixer, tensor, tie
from llmcalc.config import Config
from llmcalc.dims import Dim, ceil_div
from llmcalc.families import family


def conv(name: str, channels: Dim, width: Dim, layers: Layers, bias: bool) -> Parts:
    """A short causal convolution, one filter per channel."""
    yield tensor(f"{name}.weight", (channels, 1, width), "conv", "ssm.conv", layers)
    if bias:
        yield tensor(f"{name}.bias", (channels,), "add", "ssm.conv", layers)


def dt_rank(c: Config, *keys: str) -> Dim:
    """The rank of the step size; ``auto`` or absent is d_model / 16, rounded up."""
    given = next((c.get(k) for k in keys if c.get(k) is not None), "auto")
    return (
        Dim(given, "dt_rank")
        if isinstance(given, int)
        else Dim(ceil_div(int(c.d_model), 16), "dt_rank")
    )


@dataclass(frozen=True, slots=True)
class Scan:
    """The sizes of a Mamba block: inner width, state, convolution, step rank.

    Heads and groups for Mamba 2.
    """

    d_inner: Dim
    d_state: Dim
    d_conv: Dim
    dt_rank: Dim = Dim(0)  # noqa: RUF009
    heads: Dim = Dim(0)  # noqa: RUF009
    groups: Dim = Dim(0)  # noqa: RUF009


def mamba1(p: str, d: Dim, s: Scan, layers: Layers, conv_bias: bool, bias: bool) -> Parts:
    """Mamba's selective scan (arXiv 2312.00752).

    A sequence keeps a convolution window and a float32 state.
    """
    yield from linear(f"{p}.in_proj", 2 * s.d_inner, d, "ssm.in", layers, bias)
    yield from conv(f"{p}.conv1d", s.d_inner, s.d_conv, layers, conv_bias)
    yield from linear(f"{p}.x_proj", s.dt_rank + 2 * s.d_state, s.d_inner, "ssm.x", layers)
    yield from linear(f"{p}.dt_proj", s.d_inner, s.dt_rank, "ssm.dt", layers, True)
    yield tensor(f"{p}.A_log", (s.d_inner, s.d_state), "state", "ssm.a", layers)
    yield tensor(f"{p}.D", (s.d_inner,), "scale", "ssm.d", layers)
    yield state_mixer(
        layers,
        State("conv", s.d_inner, s.d_conv),
        State("recurrent", s.d_inner, s.d_state, "float32"),
    )
    yield from linear(f"{p}.out_proj", d, s.d_inner, "ssm.out", layers, bias)


def mamba2(
    p: str,
    d: Dim,
    s: Scan,
    layers: Layers,
    conv_bias: bool,
    in_bias: bool,
    out_bias: bool,
    gated: bool = True,
) -> Parts:
    """Mamba 2 (arXiv 2405.21060): one scalar decay per head, B and C shared by groups."""
    channels = s.d_inner + 2 * s.groups * s.d_state
    yield from linear(f"{p}.in_proj", s.d_inner + channels + s.heads, d, "ssm.in", layers, in_bias)
    yield from conv(f"{p}.conv1d", channels, s.d_conv, layers, conv_bias)
    for name, role in (("dt_bias", "ssm.dt"), ("A_log", "ssm.a"), ("D", "ssm.d")):
        yield tensor(f"{p}.{name}", (s.heads,), "state", role, layers)
    yield state_mixer(
        layers,
        State("conv", channels, s.d_conv),
        State("recurrent", s.d_inner, s.d_state, "float32"),
        n_heads=s.heads,
    )
    if gated:
        yield from norm(f"{p}.norm", s.d_inner, layers, role="ssm.norm")
    yield from linear(f"{p}.out_proj", d, s.d_inner, "ssm.out", layers, out_bias)


def expanded(c: Config, key: str = "expand") -> Dim:
    """The inner width: ``expand`` times d_model, which need not be whole before it is
    multiplied.
    """
    return Dim(int((c.get(key) or 2) * int(c.d_model)), "d_inner")


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
