"""Seeded draws from a distribution, and whether their counts look like it."""

from __future__ import annotations

import math

import numpy as np

from llmcalc.sampling.candidates import Candidates, Ints


def draws(c: Candidates, n: int, seed: int) -> Ints:
    """n token ids by inverse CDF in the order of the ids, from PCG64.

    The same seed gives the same draws everywhere.
    """
    uniform = np.random.Generator(np.random.PCG64(seed)).random(n)
    edges = np.cumsum(c.probabilities)
    # rounding may leave the last edge a little below 1
    at = np.searchsorted(edges / edges[-1], uniform, side="right")
    return np.asarray(c.ids[np.minimum(at, c.ids.size - 1)])


def counts(c: Candidates, drawn: Ints) -> Ints:
    """How often each candidate was drawn."""
    return np.bincount(np.searchsorted(c.ids, drawn), minlength=c.ids.size)


def chi_square(c: Candidates, observed: Ints) -> tuple[float, int, float]:
    """Pearson's statistic, its degrees of freedom, and the p-value.

    Cells that expect less than 5 are one.
    """
    expected = c.probabilities * observed.sum()
    large = expected >= 5
    cells = list(zip(observed[large].tolist(), expected[large].tolist(), strict=True))
    rest = float(expected[~large].sum())
    if rest > 0:
        cells.append((int(observed[~large].sum()), rest))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells if wanted > 0)
    freedom = len(cells) - 1
    if not freedom:
        return statistic, freedom, 1.0
    return statistic, freedom, upper_gamma(freedom / 2, statistic / 2)


def upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x), by series or continued fraction.

    >>> round(upper_gamma(1, 2), 6), round(upper_gamma(0.5, 1.92073), 3)
    (0.135335, 0.05)
    """
    if x <= 0:
        return 1.0
    # x^a·e^-x/Γ(a), which both expansions are multiplied by
    front = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        k = a
        while abs(term) > abs(total) * 1e-15:
            k += 1
            term *= x / k
            total += term
        return max(0.0, 1 - front * total)
    # Lentz's method: numerator and denominator of the fraction grow side by side
    b, c = x + 1 - a, 1e300
    d = h = 1 / b
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * h
