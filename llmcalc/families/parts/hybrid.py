"""Layers of two kinds, Mamba's and attention."""

from __future__ import annotations

from collections.abc import Callable

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import gqa
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families.parts.frame import ATTENTION, BLOCK
from llmcalc.families.parts.scan import Scan

MAMBA = f"{BLOCK}.mamba"


def two_kinds(c: Config, is_linear: Callable[[int], bool]) -> tuple[Layers, Layers]:
    """The recurrent layers and the attention layers."""
    layers = Layers.all(c.n_layers)
    return layers.where("n_linear_layers", is_linear), layers.where(
        "n_attention_layers", lambda i: not is_linear(i)
    )


def attention_in(c: Config, layers: Layers, bias: bool = False) -> Parts:
    """Grouped-query attention in some layers, if there are any."""
    return gqa(ATTENTION, c, layers, None, bias) if layers.indices else iter(())


def mamba2_scan(c: Config, d_inner: Dim) -> Scan:
    """Mamba 2's sizes under the ``mamba_`` keys."""
    heads = c.size("n_ssm_heads", None, "mamba_n_heads")
    groups = c.size("n_groups", None, "mamba_n_groups")
    if c.get("mamba_d_head") not in (None, "auto") and c.mamba_d_head * heads != d_inner:
        raise ConfigError(
            f"{c.family}: mamba_d_head x mamba_n_heads is not the inner width {int(d_inner)}"
        )
    return Scan(d_inner, c.d_state, c.d_conv, heads=heads, groups=groups)
