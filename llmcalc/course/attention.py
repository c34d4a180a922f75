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

    ``q`` is (rows, d_k), ``k`` (tokens, d_k), ``v`` (tokens, d_v); with fewer rows than tokens the
    rows are the last.

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
    scores = q @ k.T
    steps = [Step("scores", "Q·Kᵀ", scores)]
    if scaled:
        scores = scores / np.sqrt(q.shape[1])
        steps.append(Step("scaled", f"scores/√d_k, d_k = {q.shape[1]}", scores))
    if causal:
        place = np.arange(len(q))[:, None] + len(k) - len(q)
        scores = np.where(np.arange(len(k)) > place, -np.inf, scores)
        steps.append(Step("masked", "-inf where the key is in the future", scores))
    weights = softmax(scores)
    formula = f"softmax({'masked' if causal else 'scaled' if scaled else 'scores'})"
    return [*steps, Step("weights", formula, weights), Step("output", "weights·V", weights @ v)]


def with_cache(q: Matrix, k: Matrix, v: Matrix, scaled: bool = True) -> Matrix:
    """The causal output row by row, each query against the keys and values that are
    cached by then.
    """
    rows = [
        attention(q[i : i + 1], k[: i + 1], v[: i + 1], True, scaled)[-1].values
        for i in range(len(q))
    ]
    return np.concatenate(rows)


def project(x: Matrix, projections: Mapping[str, Matrix]) -> dict[str, Step]:
    """Q, K and V of X: by their projections, or X itself where there is none."""
    found = {}
    for name in "QKV":
        w = projections.get(f"W_{name}")
        found[name] = Step(name, "X" if w is None else f"X·W_{name}", x if w is None else x @ w)
    return found


def heads(
    parts: Mapping[str, Step], n_heads: int, causal: bool, scaled: bool, w_o: Matrix | None
) -> list[Step]:
    """Several heads: each on its own columns of Q, K and V, their outputs side by side, and W_O
    where it is given.
    """
    q, k, v = (parts[n].values for n in "QKV")
    steps = [parts[n] for n in "QKV"]
    for name, m in zip("QKV", (q, k, v), strict=True):
        if m.shape[1] % n_heads:
            raise InputError(f"{n_heads} heads do not divide {name}, which is {m.shape[1]} wide")
    cut = [np.split(m, n_heads, axis=1) for m in (q, k, v)]
    outputs = []
    for h in range(n_heads):
        found = attention(cut[0][h], cut[1][h], cut[2][h], causal, scaled)
        label = f" {h}" if n_heads > 1 else ""
        steps += [Step(s.name + label, s.formula, s.values) for s in found]
        outputs.append(found[-1].values)
    if n_heads > 1:
        steps.append(
            Step("concat", "the heads' outputs side by side", np.concatenate(outputs, axis=1))
        )
    if w_o is not None:
        if len(w_o) != steps[-1].values.shape[1]:
            raise InputError(
                f"the output is {steps[-1].values.shape[1]} wide and W_O has {len(w_o)} rows"
            )
        steps.append(Step("projected", f"{steps[-1].name}·W_O", steps[-1].values @ w_o))
    return steps
