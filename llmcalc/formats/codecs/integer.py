"""Integer quantisation step by step: scale, zero point, codes and what comes back.

``q = round(x / s) + z``, clipped to the codes; ``x̂ = (q - z)·s``. Source: arXiv 1806.08342
(Krishnamoorthi 2018).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmcalc.formats.codecs.block import Coded, blocks_of
from llmcalc.formats.codecs.scalar import Array


@dataclass(frozen=True, slots=True)
class Way:
    """How codes lie on the numbers: symmetric around 0 on a restricted or the full range, or
    affine.

    ``widened``: the range of the numbers is widened to hold 0, which then comes back exactly.
    """

    name: str
    bits: int
    lowest: int
    highest: int
    widened: bool = True

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is 0."""
        return self.name.startswith("symmetric")


NARROW = "affine, range not widened"
"""The name of the affine rule whose range is that of the numbers alone."""


def ways(bits: int, signed: bool = True) -> list[Way]:
    """The rules in use, by the integers that codes are.

    Restricted: -127..127, so that -x has a code where x has; full: -128..127. Unsigned codes have
    the affine rules alone.
    """
    top = 2 ** (bits - 1) - 1
    lowest, highest = (-top - 1, top) if signed else (0, 2 * top + 1)
    whole = Way(name="affine", bits=bits, lowest=lowest, highest=highest)
    affine = [whole, replace(whole, name=NARROW, widened=False)]
    if not signed:
        return affine
    return [
        replace(whole, name="symmetric, restricted", lowest=-top),
        replace(whole, name="symmetric, full"),
        *affine,
    ]


def quantise(numbers: Array, way: Way, block: int | None = None) -> Coded:
    """A flat array in blocks, or whole: one scale and zero point each; halves are rounded to even.

    The affine range is widened to hold 0, as torch's observers do, so that 0 comes back exactly;
    where it is not, the zero point is clamped into the codes. An array of one value has scale 1.

    >>> quantise(np.array([-1.0, -0.5, 0.3, 0.75]), ways(8)[0]).codes.tolist()
    [-127.0, -64.0, 38.0, 95.0]
    """
    rows = blocks_of(numbers, block or max(numbers.size, 1))
    if way.symmetric:
        span = (way.highest - way.lowest) / 2
        scales = np.abs(rows).max(axis=1) / span
        zeros = np.zeros_like(scales)
    else:
        low, high = rows.min(axis=1), rows.max(axis=1)
        if way.widened:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        scales = (high - low) / (way.highest - way.lowest)
        zeros = np.rint(way.lowest - low / np.where(scales > 0, scales, 1.0))
        zeros = np.clip(zeros, way.lowest, way.highest)  # a zero point is a code too
    scales = np.where(scales > 0, scales, 1.0)
    found = np.rint(rows / scales[:, None]) + zeros[:, None]
    codes = np.clip(found, way.lowest, way.highest)
    values = (codes - zeros[:, None]) * scales[:, None]
    n = numbers.size
    clipped = int((found != codes).reshape(-1)[:n].sum())
    return Coded(
        values=values.reshape(-1)[:n],
        codes=codes.reshape(-1)[:n],
        scales=scales,
        block=rows.shape[1],
        clipped=clipped,
        zeros=zeros,
    )
