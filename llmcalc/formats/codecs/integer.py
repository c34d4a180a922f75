"""Integer quantisation step by step: scale, zero point, codes and what comes back.

``q = round(x / s) + z``, clipped to the codes; ``x̂ = (q - z)·s``. Source: arXiv 1806.08342
(Krishnamoorthi 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmcalc.formats.codecs.block import Coded, blocks_of
from llmcalc.formats.codecs.scalar import Array


@dataclass(frozen=True, slots=True)
class Way:
    """How codes lie on the numbers: symmetric around 0 on a restricted or the full range, or
    affine.
    """

    name: str
    bits: int
    lowest: int
    highest: int

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is 0."""
        return self.name != "affine"


def ways(bits: int) -> list[Way]:
    """The three in use. Restricted: -127..127, so that -x has a code where x has; full:
    -128..127.
    """
    top = 2 ** (bits - 1) - 1
    return [
        Way("symmetric, restricted", bits, -top, top),
        Way("symmetric, full", bits, -top - 1, top),
        Way("affine", bits, -top - 1, top),
    ]


def quantise(numbers: Array, way: Way, block: int | None = None) -> Coded:
    """A flat array in blocks, or whole: one scale and zero point each; halves are rounded to even.

    The affine range is widened to hold 0, as torch's observers do, so that 0 comes back exactly. An
    array of zeros has scale 1.

    >>> quantise(np.array([-1.0, -0.5, 0.3, 0.75]), ways(8)[0]).codes.tolist()
    [-127.0, -64.0, 38.0, 95.0]
    """
    rows = blocks_of(numbers, block or max(numbers.size, 1))
    if way.symmetric:
        span = (way.highest - way.lowest) / 2
        scales = np.abs(rows).max(axis=1) / span
        zeros = np.zeros_like(scales)
    else:
        low, high = np.minimum(rows.min(axis=1), 0.0), np.maximum(rows.max(axis=1), 0.0)
        scales = (high - low) / (way.highest - way.lowest)
        zeros = np.rint(way.lowest - low / np.where(scales > 0, scales, 1.0))
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
