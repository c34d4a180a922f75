"""Matrices of a small calculation as a view: one row of the table for each of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.course.attention import Step
from llmcalc.errors import InputError

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture


def view(title: str, steps: Sequence[Step], facts: Sequence[Fact]) -> View:
    """Every matrix with its name, shape and formula; whole in JSON."""
    if any(np.isnan(s.values).any() or np.isposinf(s.values).any() for s in steps):
        raise InputError("the numbers go beyond float64 on the way")
    rows = [
        {
            "matrix": f"{step.name}[{i}]" if len(step.values) > 1 else step.name,
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
        Column("values", "row", lambda v: row([float(x) for x in v])),
    ]
    whole = {s.name: [[_number(x) for x in values] for values in s.values] for s in steps}
    maps = [s for s in steps if s.name.startswith("weights") and s.formula.startswith("softmax")]
    drawn = partial(_picture, f"{title}: {maps[-1].name}", maps[-1]) if maps else None
    return View(
        "trace-toy/1", title, columns, rows, [*facts, Fact("matrices", whole)], picture=drawn
    )


def _picture(title: str, step: Step) -> Picture:
    from llmcalc.cli.output import pictures as answers

    return answers.weights(title, step.values.tolist())


def _number(x: float) -> float | str:
    """For JSON, which has no infinity."""
    return "-inf" if np.isneginf(x) else float(x)


def row(values: Sequence[float]) -> str:
    """A row of numbers under each other's points; small ones with their power of ten."""
    return "  ".join(
        f"{x:8.1e}" if 0 < abs(x) < 5e-4 or abs(x) >= 1e5 else f"{x:8.4f}"
        for x in map(float, values)
    )
