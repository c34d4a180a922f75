"""Arrays through ggml's block formats and back, by the gguf package's own quantisers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.formats.codecs.block import Coded, blocks_of
from llmcalc.formats.codecs.scalar import Array
from llmcalc.formats.element import DType
from llmcalc.text import shorten


def dequantise(rows: NDArray[np.uint8], form: str, name: str | None = None) -> NDArray[np.float32]:
    """Rows of blocks as numbers; an error names the tensor that they are of, if there is one.

    What gguf does not read, or no whole number of blocks, is an error.
    """
    try:
        import gguf
    except ImportError:
        raise UnavailableError("reading GGUF weights needs gguf", hint=install("live")) from None
    try:
        return np.asarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[form.upper()]))
    except (NotImplementedError, KeyError):
        whose = f"tensor {shorten(name)} is {form}" if name is not None else f"this is {form}"
        raise UnavailableError(f"{whose}, which the gguf package does not read back") from None
    except ValueError as error:
        whose = f"tensor {shorten(name)} is" if name is not None else "this is"
        raise InputError(f"{whose} not a whole number of {form} blocks: {error}") from None


def round_trip(numbers: Array, form: DType) -> Coded:
    """A flat array quantised and read back; a format that gguf cannot write is an
    UnavailableError.
    """
    try:
        import gguf
    except ImportError:
        raise UnavailableError(
            f"quantising to {form.name} needs gguf", hint=install("live")
        ) from None
    rows = blocks_of(numbers, form.block).astype(np.float32)
    try:
        kind = gguf.GGMLQuantizationType[form.name.upper()]
        values = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
    except (NotImplementedError, KeyError):
        raise UnavailableError(f"the gguf package has no quantiser for {form.name}") from None
    n = numbers.size
    flat = np.asarray(values, dtype=np.float64).reshape(-1)[:n]
    return Coded(
        values=flat,
        codes=np.full(n, np.nan),
        scales=np.full(len(rows), np.nan),
        block=form.block,
        clipped=0,
    )
