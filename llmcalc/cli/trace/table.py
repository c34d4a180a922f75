"""What ``trace`` shows: one row per step, one layer of each kind, the rest folded and counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.element import DType
from llmcalc.questions.check import ranges
from llmcalc.questions.trace import Ask, Step, left_out, peak_bound, totals
from llmcalc.sources import Model
from llmcalc.text import safe
from llmcalc.units import both, exact, several, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture


@dataclass(frozen=True, slots=True)
class Subject:
    """The model, which layers to show, and whether formulas are explained."""

    model: Model
    layers: tuple[int, ...] | None
    full: bool
    explain: bool


Row = dict[str, Any]
_IN_LAYER = re.compile(r"^[\w.]*?\.?\b(?:layers?|h|blocks?)\.\d+\.(?=\w)")
"""What a person need not read in every row: the layer has a column of its own."""
COLUMNS = (
    Column("step", "#", exact, right=True),
    Column("layer", "layer", right=True),
    Column("op", "op"),
    Column("part", "part", lambda p: safe(_IN_LAYER.sub("", p).removesuffix(".weight"))),
    Column("formula", "shape"),
    Column(
        "shape",
        "numbers",
        lambda s: "[" + ", ".join(str(int(x)) for x in s) + "]" if s is not None else "-",
    ),
    Column("bytes", "bytes", exact, right=True),
    Column("params", "params", exact, right=True),
    Column("flop", "FLOP", exact, right=True),
    Column("layers", "layers", right=True, shown=False),
)


def shown_layers(subject: Subject, steps: Sequence[Step]) -> dict[int, list[int]]:
    """Layers to show, each with the layers it stands for: the first of every kind, unless asked for
    otherwise.
    """
    kinds: dict[int, tuple[Any, ...]] = {}
    for s in steps:
        if s.layer is not None:
            same = (s.op, s.part, tuple(int(x) for x in s.shape)) if s.slot != "layer" else ()
            kinds[s.layer] = (*kinds.get(s.layer, ()), same)
    if subject.layers is not None:
        odd = [i for i in subject.layers if i not in kinds]
        if odd:
            raise InputError(
                f"--layers {odd[0]}: the model's layers are 0 to {max(kinds, default=0)}"
            )
        return {i: [i] for i in subject.layers}
    if subject.full:
        return {i: [i] for i in kinds}
    found: dict[tuple[Any, ...], int] = {}
    groups: dict[int, list[int]] = {}
    for i, kind in kinds.items():
        groups.setdefault(found.setdefault(kind, i), []).append(i)
    return groups


def rows(subject: Subject, steps: Sequence[Step], dtype: DType) -> list[Row]:
    """One row per step that is shown, with its number among all of them."""
    groups = shown_layers(subject, steps)
    found: list[Row] = []
    for number, s in enumerate(steps):
        if s.layer is not None and s.layer not in groups:
            continue
        name = s.part.replace("{layer}", str(s.layer))
        found.append(
            {
                "step": number,
                "op": s.op,
                "part": name,
                "layer": s.layer,
                "formula": "[" + ", ".join(d.formula for d in s.shape) + "]",
                "shape": tuple(s.shape),
                "bytes": _bytes(s, dtype),
                "params": s.params if s.params else Dim(0),
                "flop": s.flop,
                "layers": len(groups[s.layer]) if s.layer is not None else 1,
                "slot": s.slot,
            }
        )
    return found


def _bytes(s: Step, dtype: DType) -> Dim:
    """Bytes of what a step makes: ids are 64-bit, what the weights are stored in is not an
    activation's format.
    """
    each = (
        Dim(8)
        if s.slot in ("ids", "router.chosen")
        else Dim(dtype.size if dtype.block == 1 else 2, "element_bytes")
    )
    return s.elements * each


def view(subject: Subject, a: Ask, steps: Sequence[Step], dtype: DType) -> View:
    """The walk without weights."""
    model = subject.model
    params, flop = totals(steps)
    found = rows(subject, steps, dtype)
    each = dtype.size if dtype.block == 1 else 2
    facts = [
        Fact("tokens", int(a.tokens) * int(a.batch), "tokens", exact),
        Fact("total_params", int(params), "parameters passed", both),
        Fact("total_flop", int(flop), "FLOP", both),
        Fact(
            "flop_per_token", int(flop) // (int(a.tokens) * int(a.batch)), "FLOP per token", exact
        ),
        Fact(
            "activation_bytes", int(peak_bound(steps, each)), "activations at once, at most", size
        ),
        Fact("element_bytes", each, "bytes per number", exact),
    ]
    title = f"{model.name}: {int(a.batch)} x {several(int(a.tokens), 'token')}" + (
        f" after {int(a.past)}" if a.past else ""
    )
    drawn = partial(_picture, f"{title}: FLOP of all layers", steps)
    from llmcalc.questions.load import beyond

    said, known = (
        [*beyond(model, int(a.tokens) + int(a.past)), *notes(subject, steps)],
        described(model),
    )
    return View(
        kind="trace/1",
        title=title,
        columns=COLUMNS,
        rows=found,
        facts=facts,
        notes=said,
        model=known,
        explain=subject.explain,
        picture=drawn,
    )


def _picture(title: str, steps: Sequence[Step]) -> Picture:
    """FLOP by kind of step, all layers together."""
    from llmcalc.cli.output import pictures as answers

    flop: dict[str, int] = {}
    for step in steps:
        name = step.part.split("{layer}.")[-1]
        flop[name] = flop.get(name, 0) + int(step.flop)
    rows = [{"part": name, "flop": n} for name, n in flop.items()]
    return answers.fewer(answers.as_bars(title, rows, "part", "flop", "FLOP", answers.big))


def described(model: Model) -> Mapping[str, Any]:
    """The model's own line in JSON."""
    return {"name": model.name, "family": model.anatomy.family, "source": model.source}


def notes(subject: Subject, steps: Sequence[Step]) -> list[str]:
    """What is folded, what text does not pass through, what is not counted."""
    said = [*subject.model.notes, *subject.model.anatomy.notes]
    for first, members in shown_layers(subject, steps).items():
        if len(members) > 1:
            said.append(
                f"layer {first} stands for {len(members)} alike: {ranges(members)}; --full"
                " shows all"
            )
    outside = left_out(subject.model.anatomy)
    if outside:
        n = sum(int(w.params) for w in outside if w.counted)
        said.append(
            f"{len(outside)} kinds of tensors that text does not pass through are left out:"
            f" {exact(n)} parameters"
        )
    said.append(
        "one multiply-add is 2 FLOP; norms, activations and softmax are not counted; scores without"
        " masking"
    )
    return said
