"""Arrays through block formats and back: one scale for a block of numbers, codes for each.

Sources: OCP Microscaling Formats v1.0 (MX); NVIDIA's NVFP4 (e4m3 scale per 16, one float32 scale
per tensor); bitsandbytes 0.50 (NF4 and FP4 tables, absmax per 64); arXiv 2305.14314 (NF4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmcalc.formats.codecs.scalar import Array, stored
from llmcalc.formats.floats import FLOATS


@dataclass(frozen=True, slots=True)
class Coded:
    """A quantised array: what comes back, one scale and zero point per block, the codes, how many
    were clipped.

    ``values`` and ``codes`` have the array's own length, ``scales`` and ``zeros`` one number per
    block. Codes are numbers of the element's format (6 for the largest of e2m1), or integers.
    """

    values: Array
    codes: Array
    scales: Array
    block: int
    clipped: int
    zeros: Array | None = None


def blocks_of(numbers: Array, block: int) -> Array:
    """A flat array as rows of one block, the last filled up with zeros."""
    short = -numbers.size % block
    return np.concatenate([numbers, np.zeros(short)]).reshape(-1, block)


_ELEMENTS = {
    "mxfp8_e4m3": ("float8_e4m3fn", 8),
    "mxfp8_e5m2": ("float8_e5m2", 15),
    "mxfp6_e2m3": ("float6_e2m3", 2),
    "mxfp6_e3m2": ("float6_e3m2", 4),
    "mxfp4": ("float4_e2m1", 2),
    "mxint8": ("int8", 0),
}
"""Microscaling format to its element and the exponent of the element's largest power of two."""


def largest(name: str) -> float:
    """The largest magnitude of a Microscaling format's or NVFP4's element.

    Beyond it a scaled number is clipped.
    """
    element = "float4_e2m1" if name == "nvfp4" else _ELEMENTS[name][0]
    return 127 / 64 if element == "int8" else float(FLOATS[element].largest)


RULES = ("floor", "ceil")
"""How the shared exponent is found: OCP's floor(log2 amax) - emax, which clips; or the least that
clips nothing.
"""


def micro(numbers: Array, name: str, rule: str = "floor") -> Coded:
    """Blocks of 32 with a shared power of two.

    By the ``floor`` rule what exceeds the element's largest is clipped.

    >>> micro(np.array([960.0, 957.0]), "mxfp8_e4m3").values.tolist()
    [896.0, 896.0]
    """
    element, top_exponent = _ELEMENTS[name]
    top = largest(name)
    rows = blocks_of(numbers, 32)
    most = np.abs(rows).max(axis=1)
    if rule == "floor":
        exponents = np.frexp(most)[1] - 1 - top_exponent
    else:
        mantissa, exponents = np.frexp(most / top)
        exponents = exponents - (mantissa == 0.5)
    scales = np.ldexp(1.0, np.where(most > 0, np.clip(exponents, -127, 127), -127))
    scaled = rows / scales[:, None]
    codes = (
        np.clip(np.rint(scaled * 64), -127, 127) / 64
        if element == "int8"
        else stored(scaled, element)
    )
    return _coded(numbers, codes * scales[:, None], codes, scales, np.abs(scaled) > top)


def nvfp4(numbers: Array, whole: float | None = None) -> Coded:
    """Blocks of 16 numbers of e2m1, an e4m3 scale for each, and a float32 scale that uses e4m3 up
    to 448.

    ``whole`` is the tensor's largest magnitude where the numbers are only some of it.
    """
    rows = blocks_of(numbers, 16)
    most = np.abs(rows).max(axis=1)
    outer = (
        float(np.float32((most.max(initial=0.0) if whole is None else whole) / (448 * 6))) or 1.0
    )
    scales = stored(most / 6 / outer, "float8_e4m3fn") * outer
    safe = np.where(scales > 0, scales, 1.0)
    scaled = np.where(scales[:, None] > 0, rows / safe[:, None], 0.0)
    codes = stored(scaled, "float4_e2m1")
    return _coded(numbers, codes * scales[:, None], codes, scales, np.abs(scaled) > 6)


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""NF4's sixteen levels: quantiles of a normal distribution, with an exact zero (arXiv 2305.14314,
appendix E).
"""
_FP4_HALF = (0.0, 0.0052083335, 0.16666667, 0.25, 0.33333334, 0.5, 0.6666667, 1.0)
BNB_FP4 = tuple(sorted({-x for x in _FP4_HALF} | set(_FP4_HALF)))
"""bitsandbytes' FP4, which is not e2m1: its smallest level is 1/192."""
TABLES: Mapping[str, tuple[float, ...]] = {"nf4": NF4, "bnb_fp4": BNB_FP4}


def table(numbers: Array, levels: tuple[float, ...], block: int = 64) -> Coded:
    """Blocks scaled by their largest magnitude, every number to the nearest of a table's levels."""
    rows = blocks_of(numbers, block)
    scales = np.abs(rows).max(axis=1)
    known = np.array(levels)
    scaled = rows / np.where(scales > 0, scales, 1.0)[:, None]
    index = np.searchsorted((known[1:] + known[:-1]) / 2, scaled)
    codes = known[index]
    return _coded(numbers, codes * scales[:, None], codes, scales, np.zeros_like(rows, bool), block)


def _coded(
    numbers: Array,
    values: Array,
    codes: Array,
    scales: Array,
    clipped: NDArray[np.bool_],
    block: int | None = None,
) -> Coded:
    """Blocks as a flat array again, without the zeros that filled up the last."""
    n = numbers.size
    return Coded(
        values=values.reshape(-1)[:n],
        codes=codes.reshape(-1)[:n],
        scales=scales,
        block=block or values.shape[1],
        clipped=int(clipped.reshape(-1)[:n].sum()),
    )


Quantise = Callable[[Array], Coded]


def quantiser(name: str) -> Quantise | None:
    """What makes a block format of a flat array, by its default rule.

    None for a format that is not described here.
    """
    if name in _ELEMENTS:
        return partial(micro, name=name)
    if name in TABLES:
        return partial(table, levels=TABLES[name])
    return nvfp4 if name == "nvfp4" else None
