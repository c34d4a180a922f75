"""Mamba's scan, the first and the second."""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import linear, norm, state_mixer, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim, ceil_div


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
