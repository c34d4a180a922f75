"""Blocks of ggml as torch reads them back, by the gguf package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmcalc.sources.header import Stored

if TYPE_CHECKING:
    pass

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def ggml(rows: Tensor, stored: Stored, name: str) -> Tensor:
    """Rows of ggml blocks to float32, by the ``gguf`` package."""
    from llmcalc.formats.codecs.ggml import dequantise

    return torch.from_numpy(dequantise(rows.numpy(), stored.dtype, name)).view(stored.shape)
