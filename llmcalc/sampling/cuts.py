"""Stages that remove tokens.

``exactly`` and ``strict`` tell llama.cpp's rules from the reference implementation's.

Sources: transformers 5.24.0 (generation/logits_process.py), vLLM 0.33.0 (v1/sample/ops), llama.cpp
(llama-sampler.cpp). A sum or a ratio within 1e-9 of a threshold counts as on it: written-out
logarithms are no more exact than that.
"""

from __future__ import annotations

import numpy as np

from llmcalc.sampling.candidates import Candidates, Floats, Mask, entropy_of

EPSILON = 1e-9


def top_k(c: Candidates, k: int, *, exactly: bool = False) -> Candidates:
    """The k largest logits.

    Tokens equal to the k-th stay too, unless ``exactly`` (then the smaller ids stay).
    """
    n = c.logits.size
    if k >= n:
        return c
    # the k-th largest, without sorting the whole vocabulary
    threshold = np.partition(c.logits, n - k)[n - k]
    mask = _exactly(c.logits, threshold, k) if exactly else c.logits >= threshold
    return c.keep(mask)


def _exactly(values: Floats, threshold: float, k: int) -> Mask:
    """The k largest values, the first ones of those that equal the threshold."""
    mask = values > threshold
    tied = np.flatnonzero(values == threshold)[: k - int(mask.sum())]
    mask[tied] = True
    return np.asarray(mask)


def top_p(c: Candidates, p: float, *, min_keep: int = 1, last_of_equals: bool = True) -> Candidates:
    """The smallest set of most likely tokens with mass p (Holtzman et al. 2020, arXiv 1904.09751).

    Of equals at the edge, transformers and vLLM sort upwards and keep the largest ids; llama.cpp
    does not say.
    """
    if p >= 1:
        return c
    probabilities = c.probabilities
    falling = np.sort(probabilities)[::-1]
    reaches = int(np.searchsorted(np.cumsum(falling), p - EPSILON)) + 1
    n = min(max(reaches, min_keep, 1), falling.size)
    edge = falling[n - 1]
    # backwards, so that of equals the last ids come first
    if last_of_equals:
        mask = _exactly(probabilities[::-1], edge, n)[::-1]
    else:
        mask = _exactly(probabilities, edge, n)
    return c.keep(mask)


def min_p(c: Candidates, p: float, *, min_keep: int = 1) -> Candidates:
    """Tokens at least p times as likely as the most likely one.

    Nguyen et al. 2024, arXiv 2407.01082.
    """
    if p <= 0:
        return c
    # p times the probability is ln p more in logits
    least = c.logits.max() + np.log(p)
    mask = c.logits >= least - EPSILON
    return c.keep(_at_least(mask, c.logits, min_keep))


def typical_p(c: Candidates, mass: float, *, strict: bool = False, min_keep: int = 1) -> Candidates:
    """Tokens whose surprise is nearest to the entropy, up to a mass.

    Meister et al. 2023, arXiv 2202.00666. ``strict`` is llama.cpp: it stops above the mass, so that
    a sum of exactly the mass takes one token more.
    """
    if mass >= 1:
        return c
    log_p = c.log_probabilities
    distance = np.abs(-log_p - entropy_of(log_p))
    order = np.argsort(distance, kind="stable")
    sums = np.cumsum(np.exp(log_p[order]))
    threshold = mass + EPSILON if strict else mass - EPSILON
    reaches = int(np.searchsorted(sums, threshold))
    last = min(max(reaches, min_keep - 1), order.size - 1)
    if strict:
        mask = np.zeros(order.size, dtype=bool)
        mask[order[: last + 1]] = True
        return c.keep(mask)
    return c.keep(distance <= distance[order[last]])


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Logits within n standard deviations of the largest (Tang et al. 2024, arXiv 2411.07641)."""
    finite = c.logits[np.isfinite(c.logits)]
    most = c.logits.max()
    if n <= 0 or not finite.size or most == np.inf:
        return c
    return c.keep(c.logits >= most - n * finite.std())


def epsilon_cutoff(c: Candidates, epsilon: float, *, min_keep: int = 1) -> Candidates:
    """Tokens of probability epsilon and more; the likeliest always.

    Hewitt et al. 2022, arXiv 2210.15191.
    """
    mask = c.probabilities >= epsilon - EPSILON * epsilon
    return c.keep(_at_least(mask, c.logits, min_keep))


def eta_cutoff(c: Candidates, epsilon: float, *, min_keep: int = 1) -> Candidates:
    """Tokens of probability eta = min(epsilon, sqrt(epsilon)·e^-H) and more (the same paper)."""
    eta = min(epsilon, float(np.sqrt(epsilon) * np.exp(-c.entropy)))
    return epsilon_cutoff(c, eta, min_keep=min_keep)


def top_h(c: Candidates, share: float) -> Candidates:
    """The likeliest tokens while their entropy is within a share of that of the 100 likeliest."""
    order = np.argsort(-c.logits, kind="stable")[:100]
    top = Candidates(np.arange(order.size), c.logits[order]).log_probabilities
    # what each of them adds to the entropy
    terms = -np.exp(top) * top
    within = np.cumsum(terms) <= share * terms.sum()
    n = max(1, int(within.sum()))
    mask = np.zeros(c.logits.size, dtype=bool)
    mask[order[:n]] = True
    return c.keep(mask)


def xtc(c: Candidates, threshold: float, *, min_keep: int = 1) -> Candidates:
    """Removes all tokens of that probability and more but the least likely of them.

    Only where there are two or more.
    """
    probabilities = c.probabilities
    above = np.flatnonzero(probabilities >= threshold)
    # above a half there is room for one token alone
    if threshold > 0.5 or above.size < 2:
        return c
    stays = above[np.argmin(probabilities[above])]
    mask = np.ones(probabilities.size, dtype=bool)
    mask[above] = False
    mask[stays] = True
    return c.keep(mask) if int(mask.sum()) >= min_keep else c


def mirostat_1(c: Candidates, mu: float, n_vocab: int, m: int = 100) -> Candidates:
    """The k likeliest tokens, k from a fit of Zipf's law that aims at mu/2 bits of surprise.

    Basu et al. 2021, arXiv 2007.14966.
    """
    log_p = np.sort(c.log_probabilities)[::-1][: m + 1]
    rank = np.arange(max(log_p.size - 1, 0))
    if not rank.size:
        return c
    # ln p falls by slope · ln rank; least squares over neighbours, through the origin
    ratio = np.log((rank + 2) / (rank + 1))
    fall = log_p[:-1] - log_p[1:]
    slope = float((ratio * fall).sum() / (ratio * ratio).sum())
    excess = slope - 1
    if slope == 0 or excess == 0:
        return c
    k = (excess * 2**mu / (1 - n_vocab**-excess)) ** (1 / slope)
    whole = max(int(k), 1) if np.isfinite(k) else c.logits.size
    return top_k(c, whole, exactly=True)


def mirostat_2(c: Candidates, mu: float) -> Candidates:
    """Tokens whose surprise is at most mu bits, one at least.

    Basu et al. 2021, arXiv 2007.14966.
    """
    surprise = -c.log_probabilities / np.log(2)
    return c.keep(_at_least(surprise <= mu + EPSILON, c.logits, 1))


def _at_least(mask: Mask, logits: Floats, n: int) -> Mask:
    """The mask with the n largest logits in it, their equals too."""
    if int(mask.sum()) >= n:
        return mask
    first = logits.size - min(n, logits.size)
    threshold = np.partition(logits, first)[first]
    return np.asarray(mask | (logits >= threshold))
