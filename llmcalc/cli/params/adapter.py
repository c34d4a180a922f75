"""``llmcalc params`` of an adapter: what it adds to its base, by target, and beside the base's own
count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.params.table import header_params, stored_rows
from llmcalc.dims import total
from llmcalc.errors import InputError, LlmcalcError
from llmcalc.questions.adapters import added
from llmcalc.questions.params import parameters
from llmcalc.sources import Model, presets, resolve
from llmcalc.sources.adapters import Adapter, ends_with
from llmcalc.text import safe, shorten
from llmcalc.units import both, count, exact, percent


def of_adapter(model: Model, adapter: Adapter, explain: bool) -> View:
    """From its tensors where they are there, and by r·(in + out) on the base's matrices where the
    base is known.
    """
    base, why = _base(adapter)
    notes = [*model.notes, *([why] if why else [])]
    held = header_params(model.header) if model.header is not None else None
    predicted: int | None = None
    rows: list[Any] = []
    columns: list[Column] = []
    if base is not None and adapter.odd is None:
        columns, rows = _rows(base.anatomy, adapter)
        lost = [t for t in adapter.targets if not any(ends_with(row["part"], t) for row in rows)]
        notes += [
            f"{shorten(t)} is a target, and {base.name} has nothing of that name" for t in lost
        ]
        predicted = int(total(r["params"] for r in rows))
    elif adapter.odd is not None:
        notes.append(f"counted by its tensors alone: {adapter.odd}")
    if predicted == 0 and not held:
        raise InputError(
            f"{model.name} adds nothing to {adapter.base}: none of its targets is there"
        )
    if predicted is None or held not in (None, predicted):
        if model.header is None:
            raise InputError(f"{model.name} has no tensors to count", hint=f"{why or adapter.odd}")
        columns, rows = stored_rows(model.header)
    n = held if held is not None else predicted or 0
    facts = [
        Fact("total_params", n, "parameters added", both),
        Fact("rank", adapter.rank, "rank", exact),
        Fact("base", adapter.base, "base", safe),
        *_beside(n, base),
        Fact(
            "predicted_params",
            predicted,
            "by the formula" if held is not None else None,
            _against(n),
        ),
    ]
    kind = "DoRA" if adapter.dora else "LoRA"
    title = f"{model.name}: {kind} of rank {adapter.rank} adds {count(n)} parameters"
    return View(
        kind="params/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=model.about,
        explain=explain,
    )


def _against(held: int) -> Any:
    return lambda n: f"{exact(n)}: difference {held - n}"


def _beside(n: int, base: Model | None) -> Iterator[Fact]:
    if base is not None:
        whole = int(parameters(base.anatomy))
        yield Fact("base_params", whole, "parameters of the base", both)
        yield Fact("share_of_base", n / whole, "of the base", lambda _: percent(n, whole))


def _base(adapter: Adapter) -> tuple[Model | None, str | None]:
    """The base that the adapter's config names: a preset of that name first, then wherever a name
    leads.
    """
    if adapter.base is None:
        return None, "its config names no base: counted by its tensors alone"
    named = presets.find(adapter.base) or adapter.base
    if named == adapter.base and ("://" in named or named.startswith((".", "/", "~"))):
        return (
            None,
            (
                f"its base is a path of another machine, {shorten(named)}: counted by its tensors"
                " alone"
            ),
        )
    try:
        base = resolve(named)
        parameters(base.anatomy)
        return base, None
    except LlmcalcError as error:
        return None, f"its base is not known here ({error}): counted by its tensors alone"


def _rows(anatomy: Anatomy, adapter: Adapter) -> tuple[list[Column], list[dict[str, Any]]]:
    """One row for each matrix of the base that gets something."""

    def module(weight: Weight) -> str:
        return weight.name.removesuffix(".weight")

    def rank_of(weight: Weight) -> int:
        return 0 if weight.name.endswith("bias") else adapter.rank_of(module(weight))

    rows: list[dict[str, Any]] = [
        {"part": module(x.weight), "rank": x.rank, "formula": x.params.formula, "params": x.params}
        for x in added(anatomy, rank_of, adapter.dora)
    ]
    for weight in anatomy.weights:
        if any(module(weight).endswith(name) for name in adapter.whole) and not weight.tied_to:
            rows.append(
                {
                    "part": module(weight),
                    "rank": None,
                    "formula": weight.params.formula,
                    "params": weight.params,
                }
            )
    columns = [
        Column("part", "of the base"),
        Column("rank", "rank", lambda r: "whole" if r is None else exact(r), right=True),
        Column("formula", "formula"),
        Column("params", "parameters added", exact, right=True),
    ]
    return columns, rows
