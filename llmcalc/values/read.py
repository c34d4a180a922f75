"""The numbers of a checkpoint's tensors, rows at a time, so that memory does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmcalc.errors import InputError
from llmcalc.formats.codecs.ggml import dequantise
from llmcalc.formats.codecs.scalar import KINDS, Array
from llmcalc.formats.element import dtype
from llmcalc.sources.header import Header, Stored
from llmcalc.text import shorten

CHUNK = 1 << 20
"""Elements that are looked at together."""


def rows_and_columns(stored: Stored) -> tuple[int, int]:
    """A tensor as a matrix: the last axis is a row."""
    columns = stored.shape[-1] if stored.shape else 1
    return (stored.elements // columns if columns else 0), columns


def check(name: str, stored: Stored) -> None:
    """Refuses what holds no floats: nothing at all, integers (packed codes), a few bits each."""
    shown = shorten(name)
    if not stored.elements:
        raise InputError(f"tensor {shown} is empty: its shape is {list(stored.shape)}")
    form = dtype(stored.dtype)
    if form.name in KINDS and form.block == 1:
        return
    if form.block > 4:
        if not stored.shape or stored.shape[-1] % form.block:
            raise InputError(
                f"tensor {shown} has the shape {list(stored.shape)}, no whole number of {form.name}"
                " blocks"
            )
        return
    raise InputError(
        f"tensor {shown} is stored as {form.name}: no tensor of floats",
        hint=(
            "packed codes mean something with their scales alone; a wider checkpoint has the"
            " numbers"
        ),
    )


def chunks(folder: Path, header: Header, name: str) -> Iterator[Array]:
    """Some whole rows of a tensor at a time, (rows, columns) in float64, in order.

    The file's bytes are mapped and not executed.
    """
    stored = header.tensors[name]
    check(name, stored)
    form = dtype(stored.dtype)
    rows, columns = rows_and_columns(stored)
    row_bytes = columns // form.block * form.size
    step = max(1, CHUNK // columns)
    path = folder / stored.file
    try:
        if path.stat().st_size < stored.offset + stored.n_bytes:
            raise InputError(f"{path.name} has become shorter since its header was read")
        for first in range(0, rows, step):
            n = min(step, rows - first)
            begin = stored.offset + first * row_bytes
            mapped = np.memmap(path, np.uint8, "r", begin, (n, row_bytes))
            yield _numbers(mapped, form.name, form.block, name).reshape(n, columns)
            del mapped  # the mapping ends, and its pages with it
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from None


def _numbers(raw: np.memmap, form: str, block: int, name: str) -> Array:
    """The numbers of rows of bytes, float64."""
    if block > 1:
        return dequantise(np.array(raw), form, name).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is no reason to warn
        return np.frombuffer(raw.tobytes(), KINDS[form]).astype(np.float64)
