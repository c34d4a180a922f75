"""``llmcalc trace --toy`` and ``--attention-by-hand``: every matrix of a small calculation, printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmcalc.cli.view import Column, Fact, View
from llmcalc.course.attention import Matrix, Step, heads, project, with_cache
from llmcalc.course.toy import IDS, TARGETS, WORDS, backward, forward, toy
from llmcalc.errors import InputError
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten

if TYPE_CHECKING:
    from llmcalc.cli.trace import CourseOptions

_LARGEST = 64


def of_toy(options: CourseOptions) -> View:
    """The toy model: its matrices, its loss against that of guessing, and one step of training."""
    std, seed = options.std if options.std is not None else 0.02, options.seed or 0
    if not 0 < std < 1e3:
        raise InputError(f"--std is {std:g}; it must be above 0 and below 1000")
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must be at least 0")
    model = toy(std, seed)
    steps, loss = forward(model)
    last = next(s.values for s in steps if s.name == "probabilities")
    targets = [float(last[i, t]) for i, t in enumerate(TARGETS)]
    uniform = float(np.log(len(WORDS)))
    facts = [
        Fact("ids", list(IDS), "ids", lambda ids: ", ".join(f"{i} ({WORDS[i]})" for i in ids)),
        Fact("targets", list(TARGETS), "targets", lambda ids: ", ".join(f"{i} ({WORDS[i]})" for i in ids)),
        Fact("p_target", targets, "probability of the targets", lambda ps: ", ".join(f"{p:.4f}" for p in ps)),
        Fact("loss", loss, "loss = -mean ln p(target)", _six),
        Fact("ln_vocab", uniform, f"guessing: ln {len(WORDS)}", _six),
        Fact("next", WORDS[int(last[-1].argmax())], "likeliest after the last"),
    ]
    if options.backward:
        found, after = backward(model)
        steps += found
        sums = found[0].values.sum(axis=1)
        facts.append(Fact("row_sums", [float(x) for x in sums], "sums of dL/dlogits' rows", lambda _: _row(sums)))
        facts.append(Fact("loss_after", after, "loss after the step", _six))
    return _view(f"toy model, weights of std {std:g}, seed {seed}", steps, facts)


def by_hand(path: str) -> View:
    """Attention on the matrices of a JSON file: X with W_Q, W_K, W_V, W_O, or Q, K and V themselves."""
    given = read_json(Path(path))
    known = {"X", "Q", "K", "V", "W_Q", "W_K", "W_V", "W_O", "causal", "scaled", "heads"}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InputError(f"{shorten(unknown[0])!r} is none of {', '.join(sorted(known))}")
    matrices = {k: _matrix(k, v) for k, v in given.items() if k not in ("causal", "scaled", "heads")}
    causal, scaled, n_heads = given.get("causal", False), given.get("scaled", True), given.get("heads", 1)
    if not isinstance(causal, bool) or not isinstance(scaled, bool):
        raise InputError("causal and scaled are true or false")
    if not isinstance(n_heads, int) or isinstance(n_heads, bool) or not 1 <= n_heads <= _LARGEST:
        raise InputError(f"heads is {shorten(str(n_heads))}; it must be from 1 to {_LARGEST}")
    steps = _steps(matrices, n_heads, causal, scaled)
    facts: list[Fact] = []
    by_name = {s.name: s.values for s in steps}
    if causal and n_heads == 1 and len(by_name["Q"]) == len(by_name["K"]):
        cached = with_cache(by_name["Q"], by_name["K"], by_name["V"], scaled)
        apart = float(np.abs(cached - by_name["output"]).max())
        facts.append(Fact("cached_output", cached.tolist()))
        facts.append(Fact("cache_difference", apart, "row by row with a cache, largest difference", lambda x: f"{x:g}"))
    return _view("attention by hand", steps, facts)


def _steps(matrices: Mapping[str, Matrix], n_heads: int, causal: bool, scaled: bool) -> list[Step]:
    """From X, or from Q, K and V where they are given."""
    direct = [n for n in "QKV" if n in matrices]
    if "X" in matrices:
        if direct:
            raise InputError(f"X and {direct[0]} say the same thing twice")
        projections = {k: m for k, m in matrices.items() if k.startswith("W_")}
        for name, w in projections.items():
            if name != "W_O" and len(w) != matrices["X"].shape[1]:
                raise InputError(f"X is {matrices['X'].shape[1]} wide and {name} has {len(w)} rows")
        return heads(project(matrices["X"], projections), n_heads, causal, scaled, matrices.get("W_O"))
    if direct != list("QKV"):
        raise InputError("the file needs X, or Q, K and V", hint='{"X": [[0.2, 1.0], [0.9, 0.1]], "causal": true}')
    parts = {n: Step(n, "given", matrices[n]) for n in "QKV"}
    return heads(parts, n_heads, causal, scaled, matrices.get("W_O"))


def _matrix(name: str, value: Any) -> Matrix:
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if not all(isinstance(r, list) and r and len(r) == len(rows[0]) for r in rows):
        raise InputError(f"{name} is no matrix: rows of one length, in brackets")
    if len(rows) > _LARGEST or len(rows[0]) > _LARGEST:
        raise InputError(f"{name} is {len(rows)} x {len(rows[0])}; by hand it is at most {_LARGEST} x {_LARGEST}")
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for r in rows for x in r):
        raise InputError(f"{name} holds something that is no number")
    try:
        found = np.array(rows, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{name} holds a number beyond float64") from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds NaN or an infinity")
    return found


def _view(title: str, steps: list[Step], facts: list[Fact]) -> View:
    rows = [
        {
            "matrix": f"{step.name}[{i}]",
            "shape": list(step.values.shape) if i == 0 else None,
            "formula": step.formula if i == 0 else None,
            "values": [_number(x) for x in values],
        }
        for step in steps
        for i, values in enumerate(step.values)
    ]
    columns = [
        Column("matrix", "matrix"),
        Column("shape", "shape", lambda s: " x ".join(map(str, s or []))),
        Column("formula", "formula", lambda f: f or ""),
        Column("values", "row", lambda v: _row([float(x) for x in v])),
    ]
    whole = {s.name: [[_number(x) for x in row] for row in s.values] for s in steps}
    return View("trace-toy/1", title, columns, rows, [*facts, Fact("matrices", whole)])


def _number(x: float) -> float | str:
    """For JSON, which has no infinity."""
    return "-inf" if np.isneginf(x) else float(x)


def _row(values: Any) -> str:
    return "  ".join(f"{float(x):8.1e}" if 0 < abs(x) < 5e-4 else f"{float(x):8.4f}" for x in values)


def _six(x: float) -> str:
    return f"{x:.6f}"
