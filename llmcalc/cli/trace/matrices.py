"""Matrices of a small calculation as a view: one row of the table for each of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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
    rows: list[dict[str, Any]] = []
    for step in steps:
        several = len(step.values) > 1
        for i, values in enumerate(step.values):
            rows.append(
                {
                    "matrix": f"{step.name}[{i}]" if several else step.name,
                    "shape": list(step.values.shape) if i == 0 else None,
                    "formula": step.formula if i == 0 else None,
                    "values": [_number(x) for x in values],
                }
            )
    columns = [
        Column("matrix", "matrix"),
        Column("shape", "shape", lambda s: " x ".join(map(str, s or []))),
        Column("formula", "formula", lambda f: f or ""),
        Column("values", "row", lambda v: row([float(x) for x in v])),
    ]
    whole = {step.name: [[_number(x) for x in values] for values in step.values] for step in steps}
    maps = [s for s in steps if s.name.startswith("weights") and s.formula.startswith("softmax")]
    drawn = partial(_picture, f"{title}: {maps[-1].name}", maps[-1]) if maps else None
    return View(
        kind="trace-toy/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=[*facts, Fact("matrices", whole)],
        picture=drawn,
    )


def _picture(title: str, step: Step) -> Picture:
    from llmcalc.cli.output import pictures as answers

    return answers.weights(title, step.values.tolist())


def _number(x: float) -> float | str:
    """For JSON, which has no infinity."""
    return "-inf" if np.isneginf(x) else float(x)


def row(values: Sequence[float]) -> str:
    """A row of numbers under each other's points; small ones with their power of ten."""
    return "  ".join(_written(float(x)) for x in values)


def _written(x: float) -> str:
    far = 0 < abs(x) < 5e-4 or abs(x) >= 1e5
    return f"{x:8.1e}" if far else f"{x:8.4f}"
