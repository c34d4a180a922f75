"""Names that routers and experts of several publishers share."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import linear
from llmcalc.config import Config
from llmcalc.families.parts.frame import ATTENTION, BLOCK

SPARSE = f"{BLOCK}.block_sparse_moe"


def o_proj(c: Config, layers: Layers, bias: bool = False) -> Parts:
    """The output projection of grouped-query attention."""
    return linear(f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias)
