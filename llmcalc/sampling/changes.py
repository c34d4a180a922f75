"""Stages that change logits: temperature, penalties, biases.

A token that is already removed stays removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from llmcalc.sampling.candidates import Candidates, Floats


def temperature(c: Candidates, t: float) -> Candidates:
    """z/T; at T = 0 the largest logit alone, the first of equals.

    >>> temperature(Candidates.of([2, 1, 0.5, -0.5, -1.5]), 2).probabilities.round(4).tolist()
    [0.3938, 0.2389, 0.186, 0.1128, 0.0684]
    """
    if t <= 0:
        return c.keep(c.ids == c.greedy)
    return c if t == 1 else c.with_logits(c.logits / t)


def dynamic_temperature(c: Candidates, t: float, delta: float, exponent: float = 1.0) -> Candidates:
    """T between t - delta and t + delta, by the entropy's share of its maximum ln n (llama.cpp).

    The share is taken to a power.
    """
    if delta <= 0 or c.logits.size < 2:
        return temperature(c, t)
    # an even distribution has the entropy ln n, and a share of 1
    low, high = max(0.0, t - delta), t + delta
    share = c.entropy / float(np.log(c.logits.size))
    chosen = low + (high - low) * share**exponent
    return temperature(c, chosen)


def repetition(c: Candidates, tokens: Collection[int], penalty: float) -> Candidates:
    """Divides positive logits of seen tokens, multiplies negative ones, once each.

    Keskar et al. 2019, CTRL.

    >>> repetition(Candidates.of([2.0, 1.8, -1.2, 0.5]), [1, 1, 2], 1.2).logits.tolist()
    [2.0, 1.5, -1.44, 0.5]
    """
    if penalty == 1 or not tokens:
        return c
    seen = np.isin(c.ids, np.fromiter(set(tokens), dtype=np.int64))
    # both make a token less likely, whatever its logit's sign
    changed = np.where(c.logits > 0, c.logits / penalty, c.logits * penalty)
    return c.with_logits(np.where(seen, changed, c.logits))


def frequency(c: Candidates, counts: Mapping[int, int], per_use: float, once: float) -> Candidates:
    """z - count·per_use - [count > 0]·once: the OpenAI API's frequency and presence penalties."""
    if (not per_use and not once) or not counts:
        return c
    z = c.logits.copy()
    for token, n in counts.items():
        at = c.position(token)
        if at is not None and n > 0:
            z[at] -= n * per_use + once
    return c.with_logits(z)


def bias(c: Candidates, biases: Mapping[int, float]) -> Candidates:
    """Adds a number to some tokens' logits; minus infinity removes one."""
    if not biases:
        return c
    z = c.logits.copy()
    for token, value in biases.items():
        at = c.position(token)
        if at is not None:
            z[at] += value
    left = z > -np.inf
    if not left.any():
        return Candidates.of(z)  # its error says that no token can be chosen
    return c.with_logits(z).keep(left)


def dry(
    c: Candidates,
    tokens: Sequence[int],
    multiplier: float,
    base: float = 1.75,
    allowed: int = 2,
    breakers: Collection[int] = (),
) -> Candidates:
    """Takes m·b^(length - allowed) from tokens that would lengthen a repetition of that length.

    llama.cpp's DRY.
    """
    if multiplier <= 0 or base < 1 or len(tokens) < 2:
        return c
    lengths = repeated(tokens, breakers)
    # 88.72 is ln of float32's largest number: llama.cpp keeps the power within it
    most = 88.7228391 / np.log(base) if base > 1 else np.inf
    z: Floats = c.logits.copy()
    for token, length in lengths.items():
        at = c.position(token)
        if at is None or length < allowed or token in breakers:
            continue
        exponent = min(float(length - allowed), most)
        z[at] -= multiplier * base**exponent
    return c.with_logits(z)


def repeated(tokens: Sequence[int], breakers: Collection[int] = ()) -> dict[int, int]:
    """For every token: how long a suffix of ``tokens`` stood before it once already.

    Breakers end a suffix.

    >>> repeated([4, 1, 2, 3, 0, 1, 2])
    {3: 2}
    """
    n = len(tokens)
    found: dict[int, int] = {}
    for i in range(1, n):
        length = 0
        # how far back the tokens before i are those at the end
        while length < i and tokens[i - 1 - length] == tokens[n - 1 - length]:
            if tokens[n - 1 - length] in breakers:
                break
            length += 1
        if length:
            found[tokens[i]] = max(found.get(tokens[i], 0), length)
    return found


def no_repeat_ngram(c: Candidates, tokens: Sequence[int], n: int) -> Candidates:
    """Removes tokens that would complete an n-gram that was there already."""
    if n <= 0 or len(tokens) + 1 < n:
        return c
    before = n - 1
    prefix = tuple(tokens[len(tokens) - before :]) if before else ()
    starts = range(len(tokens) - before)
    banned = [tokens[i + before] for i in starts if tuple(tokens[i : i + before]) == prefix]
    return c.keep(~np.isin(c.ids, np.asarray(banned, dtype=np.int64)))
