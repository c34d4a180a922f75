"""What a tensor holds, and what a format makes of it: moments, histogram, errors, in two passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmcalc.formats.codecs.scalar import Array

Source = Callable[[], Iterator[Array]]
"""A tensor's rows from the beginning, as often as they are asked for."""

BINS = 31


@dataclass
class Summary:
    """A tensor in numbers; NaN and infinities are counted and left out of the rest."""

    elements: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    subnormal: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""
    energy: float = 0.0
    columns: Array = field(default_factory=lambda: np.zeros(0))
    """The largest magnitude of every column."""

    @property
    def finite(self) -> int:
        """How many elements are numbers."""
        return self.elements - self.nan - self.inf

    @property
    def std(self) -> float:
        """Standard deviation, divisor n."""
        return math.sqrt(self.squares / self.finite) if self.finite else 0.0

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high)) if self.finite else 0.0


def summarise(source: Source, smallest_normal: float) -> Summary:
    """The first pass: counts, range and moments (merged by Chan's rule).

    Below ``smallest_normal`` is subnormal.
    """
    s = Summary()
    for rows in source():  # (rows, columns)
        finite = np.isfinite(rows)
        s.elements += rows.size
        s.nan += int(np.isnan(rows).sum())
        s.inf += int(np.isinf(rows).sum())
        known = rows[finite]  # (numbers)
        held = np.where(finite, rows, 0.0)
        most = np.abs(held).max(axis=0)  # (columns)
        s.columns = np.maximum(s.columns, most) if s.columns.size else most
        if not known.size:
            continue
        before = s.finite - known.size
        share = known.size / s.finite
        mean = float(known.mean())
        apart = mean - s.mean
        # the chunk's own spread, and how far its mean is from the one so far
        s.squares += float(((known - mean) ** 2).sum()) + apart * apart * before * share
        s.mean += apart * share
        s.energy += float((known**2).sum())
        s.low = min(s.low, float(known.min()))
        s.high = max(s.high, float(known.max()))
        s.zeros += int((known == 0).sum())
        small = (known != 0) & (np.abs(known) < smallest_normal)
        s.subnormal += int(small.sum())
    return s


@dataclass
class Loss:
    """What a format loses: errors of what came back, how many were clipped or became 0."""

    largest: float = 0.0
    total: float = 0.0
    energy: float = 0.0
    clipped: int = 0
    flushed: int = 0

    def add(self, rows: Array, back: Array, clipped: int) -> None:
        """Counts what became of some rows."""
        errors = np.abs(back - rows)
        self.largest = max(self.largest, float(errors.max()))
        self.total += float(errors.sum())
        self.energy += float((errors**2).sum())
        self.clipped += clipped
        self.flushed += int(((rows != 0) & (back == 0)).sum())

    def mean(self, summary: Summary) -> float:
        """Mean absolute error."""
        return self.total / summary.finite if summary.finite else 0.0

    def snr(self, summary: Summary) -> float | None:
        """Signal to noise in dB, 10·log10(Σx²/Σe²); None where one of them is 0."""
        if not self.energy or not summary.energy:
            return None
        return 10 * math.log10(summary.energy / self.energy)


Trip = Callable[[Array, Summary], tuple[Array, int]]
"""Rows through a format and back: what comes back, and how many were clipped."""


@dataclass
class Detail:
    """The second pass: how the numbers lie, and what every format loses."""

    counts: NDArray[np.int64]
    edges: Array
    outliers: int
    losses: dict[str, Loss]


def detail(
    source: Source, summary: Summary, trips: Iterable[tuple[str, Trip]], sigmas: float = 6.0
) -> Detail:
    """The second pass: histogram over the range, outliers, and every round trip's losses.

    Outliers are more than ``sigmas`` standard deviations from the mean.
    """
    chosen = list(trips)
    low, high = (summary.low, summary.high) if summary.finite else (0.0, 0.0)
    if not high > low:
        high = low + 1.0
    edges = np.linspace(low, high, BINS + 1)
    losses = {name: Loss() for name, _ in chosen}
    found = Detail(np.zeros(BINS, np.int64), edges, 0, losses)
    for rows in source():  # (rows, columns)
        finite = np.isfinite(rows)
        held = np.where(finite, rows, 0.0)
        known = rows[finite]  # (numbers)
        found.counts += np.histogram(known, edges)[0]
        if summary.std:
            far = np.abs(known - summary.mean) > sigmas * summary.std
            found.outliers += int(far.sum())
        for name, trip in chosen:
            back, clipped = trip(held, summary)
            losses[name].add(held, back, clipped)
    return found
