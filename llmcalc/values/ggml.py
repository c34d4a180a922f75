"""Arrays through ggml's block formats and back, by the gguf package's own quantisers."""

from __future__ import annotations

import numpy as np

from llmcalc.dtypes import DType
from llmcalc.errors import UnavailableError
from llmcalc.values.blocks import Coded, blocks_of
from llmcalc.values.scalar import Array


def round_trip(numbers: Array, form: DType) -> Coded:
    """A flat array quantised and read back; a format that gguf cannot write is an UnavailableError."""
    try:
        import gguf
    except ImportError:
        raise UnavailableError(f"quantising to {form.name} needs gguf", hint="pip install 'llmcalc[live]'") from None
    rows = blocks_of(numbers, form.block).astype(np.float32)
    try:
        kind = gguf.GGMLQuantizationType[form.name.upper()]
        values = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
    except (NotImplementedError, KeyError):
        raise UnavailableError(f"the gguf package has no quantiser for {form.name}") from None
    n = numbers.size
    flat = np.asarray(values, dtype=np.float64).reshape(-1)[:n]
    return Coded(flat, np.full(n, np.nan), np.full(len(rows), np.nan), form.block, 0)
