"""Every round trip that a tensor is put through: scalar floats, integers, block formats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from llmcalc.errors import InputError
from llmcalc.formats.block import BLOCKS
from llmcalc.formats.codecs import block as blocks
from llmcalc.formats.codecs import ggml
from llmcalc.formats.codecs.integer import Way, quantise, ways
from llmcalc.formats.codecs.scalar import Array, stored
from llmcalc.formats.element import dtype
from llmcalc.formats.floats import FLOATS
from llmcalc.values.measure import Summary, Trip

_FLOATS = (
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
_NARROW = ("float6_e2m3", "float6_e3m2", "float4_e2m1")
_GGML = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "tq2_0", "tq1_0")
_BLOCKS = (
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxint8",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "nvfp4",
    "nf4",
    "bnb_fp4",
)


def trips(columns: int, name: str | None = None) -> list[tuple[str, str, float, Trip]]:
    """Format, how it is scaled, bits per weight and the trip, for rows of that width.

    Of all formats or of one. None of a ggml format whose blocks do not divide a row; a format that
    nothing here writes is an InputError.
    """
    every = list(_all(columns))
    found = [trip for trip in every if name is None or trip[0] == name]
    if not found and name not in _GGML:
        known = dict.fromkeys([*(trip[0] for trip in every), *_GGML])
        raise InputError(f"numbers are not put through {name}", hint=f"formats: {', '.join(known)}")
    return found


def _all(columns: int) -> Iterator[tuple[str, str, float, Trip]]:
    for name in _FLOATS:
        bits = float(FLOATS[name].stored_bits or FLOATS[name].bits)
        yield name, "as it is", bits, partial(_cast, name=name)
    for name in ("float8_e4m3fn", "float8_e5m2", *_NARROW):
        per_row = 32 / columns  # a float32 scale
        yield name, "scaled per row", FLOATS[name].bits + per_row, partial(_scaled, name=name)
    for width in (8, 4, 2):
        yield from _integers(width, columns)
    for name in _BLOCKS:
        yield name, "per block", BLOCKS[name].bits, partial(_block, name=name)
    for name in _GGML:
        if columns % dtype(name).block == 0:
            yield name, "per block", dtype(name).bits, partial(_ggml, name=name)


def _integers(bits: int, columns: int) -> Iterator[tuple[str, str, float, Trip]]:
    """Integers of so many bits: scales of 16 bits, and a zero as wide as a number where affine."""
    restricted, _, affine, _ = ways(bits)
    name = f"int{bits}"
    by_column = partial(_by_column, way=restricted)
    by_block = partial(_by_block, way=restricted)
    yield name, "symmetric, per tensor", float(bits), partial(by_column, whole=True)
    yield name, "symmetric, per row", bits + 16 / columns, partial(by_block, block=columns)
    yield name, "symmetric, per column", float(bits), partial(by_column, whole=False)
    for block in (128, 64, 32):
        if block < columns:
            how = f"symmetric, per {block}"
            yield name, how, bits + 16 / block, partial(by_block, block=block)
    block = min(128, columns)
    each = bits + (16 + bits) / block
    yield name, f"affine, per {block}", each, partial(_by_block, way=affine, block=block)


def _cast(rows: Array, _: Summary, name: str) -> tuple[Array, int]:
    """Each number rounded; how many are beyond the largest."""
    top = float(FLOATS[name].largest)
    return stored(rows, name), int((np.abs(rows) > top).sum())


def _scaled(rows: Array, _: Summary, name: str) -> tuple[Array, int]:
    """Each row scaled so that its largest magnitude is the format's largest."""
    most = np.abs(rows).max(axis=1, keepdims=True)  # (rows, 1)
    scales = np.where(most > 0, most / float(FLOATS[name].largest), 1.0)
    return stored(rows / scales, name) * scales, 0


def _by_column(rows: Array, summary: Summary, way: Way, whole: bool) -> tuple[Array, int]:
    """Scales that rows share: one for the tensor, or one per column."""
    most = np.full(rows.shape[1], summary.largest) if whole else summary.columns  # (columns)
    scales = np.where(most > 0, most / way.highest, 1.0)
    codes = np.clip(np.rint(rows / scales), way.lowest, way.highest)  # (rows, columns)
    return codes * scales, 0


def _by_block(rows: Array, _: Summary, way: Way, block: int) -> tuple[Array, int]:
    return _along_rows(rows, block, lambda flat: quantise(flat, way, block))


def _block(rows: Array, summary: Summary, name: str) -> tuple[Array, int]:
    known = blocks.quantiser(name)
    assert known is not None
    if name == "nvfp4":  # its second scale is the whole tensor's
        known = partial(blocks.nvfp4, whole=summary.largest)
    return _along_rows(rows, BLOCKS[name].block, known)


def _ggml(rows: Array, _: Summary, name: str) -> tuple[Array, int]:
    coded = ggml.round_trip(rows.reshape(-1), dtype(name))
    return coded.values.reshape(rows.shape), 0


def _along_rows(rows: Array, block: int, quantise_flat: blocks.Quantise) -> tuple[Array, int]:
    """Blocks lie along rows, the last of a row filled up with zeros."""
    columns = rows.shape[1]
    short = -columns % block
    wide = np.pad(rows, ((0, 0), (0, short))) if short else rows  # (rows, columns + short)
    coded = quantise_flat(np.ascontiguousarray(wide).reshape(-1))
    back = coded.values.reshape(wide.shape)
    return back[:, :columns], coded.clipped
