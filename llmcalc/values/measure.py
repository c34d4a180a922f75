"""What a tensor holds, and what a format makes of it: range, moments, histogram, round-trip errors,
in two passes.
"""

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
    for rows in source():
        finite = np.isfinite(rows)
        s.elements += rows.size
        s.nan += int(np.isnan(rows).sum())
        s.inf += int(np.isinf(rows).sum())
        known = rows[finite]
        held = np.where(finite, rows, 0.0)
        most = np.abs(held).max(axis=0)
        s.columns = np.maximum(s.columns, most) if s.columns.size else most
        if not known.size:
            continue
        before = s.finite - known.size
        mean, share = float(known.mean()), known.size / s.finite
        apart = mean - s.mean
        s.squares += float(((known - mean) ** 2).sum()) + apart * apart * before * share
        s.mean += apart * share
        s.energy += float((known**2).sum())
        s.low, s.high = min(s.low, float(known.min())), max(s.high, float(known.max()))
        s.zeros += int((known == 0).sum())
        s.subnormal += int(((known != 0) & (np.abs(known) < smallest_normal)).sum())
    return s


@dataclass
class Loss:
    """What a format loses: errors of the numbers that came back, how many were clipped, how many
    became 0.
    """

    largest: float = 0.0
    total: float = 0.0
    energy: float = 0.0
    clipped: int = 0
    flushed: int = 0

    def mean(self, summary: Summary) -> float:
        """Mean absolute error."""
        return self.total / summary.finite if summary.finite else 0.0

    def snr(self, summary: Summary) -> float | None:
        """Signal to noise in dB, 10·log10(Σx²/Σe²); None where nothing is lost or
        nothing is there.
        """
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
    """Histogram over the range, elements beyond ``sigmas`` standard deviations, and every round
    trip's losses.
    """
    chosen = list(trips)
    low, high = (summary.low, summary.high) if summary.finite else (0.0, 0.0)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    found = Detail(np.zeros(BINS, np.int64), edges, 0, {name: Loss() for name, _ in chosen})
    for rows in source():
        finite = np.isfinite(rows)
        held = np.where(finite, rows, 0.0)
        found.counts += np.histogram(rows[finite], edges)[0]
        found.outliers += (
            int((np.abs(rows[finite] - summary.mean) > sigmas * summary.std).sum())
            if summary.std
            else 0
        )
        for name, trip in chosen:
            back, clipped = trip(held, summary)
            errors = np.abs(back - held)
            loss = found.losses[name]
            loss.largest = max(loss.largest, float(errors.max()))
            loss.total += float(errors.sum())
            loss.energy += float((errors**2).sum())
            loss.clipped += clipped
            loss.flushed += int(((held != 0) & (back == 0)).sum())
    return found
