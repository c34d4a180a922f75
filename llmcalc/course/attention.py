"""Attention on small matrices, every step kept: scores, scaling, mask, weights, output.

Whole, or row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmcalc.errors import InputError

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """One matrix of a calculation: its name, its formula, its numbers."""

    name: str
    formula: str
    values: Matrix


def softmax(scores: Matrix) -> Matrix:
    """Rows of exp(x - max) over their sum; a row where everything is masked is an InputError."""
    most = scores.max(axis=-1, keepdims=True)
    if np.isneginf(most).any():
        raise InputError("a row is masked whole: it has nothing to attend to")
    exps = np.exp(scores - most)
    return np.asarray(exps / exps.sum(axis=-1, keepdims=True))


def attention(
    q: Matrix, k: Matrix, v: Matrix, causal: bool = False, scaled: bool = True
) -> list[Step]:
    """softmax(Q·Kᵀ/√d_k + mask)·V for one head, step by step (arXiv 1706.03762, section 3.2).

    ``q`` is (T, d_k), ``k`` (S, d_k), ``v`` (S, d_v); with fewer rows than tokens the rows are the
    last.

    >>> x = np.eye(2)
    >>> attention(x, x, x, causal=True)[-1].values.round(4).tolist()
    [[1.0, 0.0], [0.3302, 0.6698]]
    """
    if q.shape[1] != k.shape[1]:
        raise InputError(f"queries are {q.shape[1]} wide and keys {k.shape[1]}: no dot product")
    if len(k) != len(v):
        raise InputError(f"there are {len(k)} keys and {len(v)} values")
    if causal and len(q) > len(k):
        raise InputError(f"{len(q)} queries do not lie among {len(k)} keys: no causal mask")
    scores = q @ k.T  # (T, S)
    steps = [Step("scores", "Q·Kᵀ", scores)]
    if scaled:
        scores = scores / np.sqrt(q.shape[1])
        steps.append(Step("scaled", f"scores/√d_k, d_k = {q.shape[1]}", scores))
    if causal:
        past = len(k) - len(q)
        place = np.arange(len(q))[:, None] + past  # (T, 1)
        scores = np.where(np.arange(len(k)) > place, -np.inf, scores)
        steps.append(Step("masked", "-inf where the key is in the future", scores))
    weights = softmax(scores)  # (T, S)
    steps.append(Step("weights", f"softmax({_last_name(causal, scaled)})", weights))
    steps.append(Step("output", "weights·V", weights @ v))  # (T, d_v)
    return steps


def _last_name(causal: bool, scaled: bool) -> str:
    """What the softmax is taken of."""
    if causal:
        return "masked"
    return "scaled" if scaled else "scores"


def with_cache(q: Matrix, k: Matrix, v: Matrix, scaled: bool = True) -> Matrix:
    """The causal output row by row, each query against what is cached by then."""
    rows = []
    for i in range(len(q)):
        seen = i + 1
        steps = attention(q[i:seen], k[:seen], v[:seen], True, scaled)
        rows.append(steps[-1].values)  # (1, d_v)
    return np.concatenate(rows)


def project(x: Matrix, projections: Mapping[str, Matrix]) -> dict[str, Step]:
    """Q, K and V of X: by their projections, or X itself where there is none."""
    found = {}
    for name in "QKV":
        w = projections.get(f"W_{name}")  # (d, d_k) or (d, d_v)
        if w is None:
            found[name] = Step(name, "X", x)
        else:
            found[name] = Step(name, f"X·W_{name}", x @ w)
    return found


def heads(
    parts: Mapping[str, Step], n_heads: int, causal: bool, scaled: bool, w_o: Matrix | None
) -> list[Step]:
    """Several heads, each on its own columns of Q, K and V, and W_O where it is given.

    Their outputs stand side by side.
    """
    steps = [parts[name] for name in "QKV"]
    for name, part in zip("QKV", steps, strict=True):
        width = part.values.shape[1]
        if width % n_heads:
            raise InputError(f"{n_heads} heads do not divide {name}, which is {width} wide")
    cut = [np.split(part.values, n_heads, axis=1) for part in steps]  # n_h of (T, d_k or d_v)
    outputs = []
    for head, (q, k, v) in enumerate(zip(*cut, strict=True)):
        found = attention(q, k, v, causal, scaled)
        label = f" {head}" if n_heads > 1 else ""
        steps += [Step(s.name + label, s.formula, s.values) for s in found]
        outputs.append(found[-1].values)
    if n_heads > 1:
        joined = np.concatenate(outputs, axis=1)  # (T, n_h·d_v)
        steps.append(Step("concat", "the heads' outputs side by side", joined))
    if w_o is not None:
        output = steps[-1]
        width = output.values.shape[1]
        if len(w_o) != width:
            raise InputError(f"the output is {width} wide and W_O has {len(w_o)} rows")
        steps.append(Step("projected", f"{output.name}·W_O", output.values @ w_o))  # (T, d)
    return steps
