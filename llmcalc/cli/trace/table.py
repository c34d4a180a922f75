"""What ``trace`` shows: one row per step, one layer of each kind, the rest folded and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
    Column("shape", "numbers", lambda s: "-" if s is None else _bracketed(str(int(x)) for x in s)),
    Column("bytes", "bytes", exact, right=True),
    Column("params", "params", exact, right=True),
    Column("flop", "FLOP", exact, right=True),
    Column("layers", "layers", right=True, shown=False),
)


def _bracketed(words: Iterable[str]) -> str:
    return "[" + ", ".join(words) + "]"


def shown_layers(subject: Subject, steps: Sequence[Step]) -> dict[int, list[int]]:
    """Layers to show, each with those it stands for: asked for, or the first of every kind."""
    kinds: dict[int, tuple[Any, ...]] = {}
    for s in steps:
        if s.layer is None:
            continue
        # the step that closes a layer is alike in all of them
        shape = tuple(int(x) for x in s.shape)
        same = (s.op, s.part, shape) if s.slot != "layer" else ()
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
    first_of: dict[tuple[Any, ...], int] = {}
    groups: dict[int, list[int]] = {}
    for i, kind in kinds.items():
        first = first_of.setdefault(kind, i)
        groups.setdefault(first, []).append(i)
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
                "formula": _bracketed(d.formula for d in s.shape),
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
    """Bytes of what a step makes, in the format that it is computed in."""
    if s.slot in ("ids", "router.chosen"):
        return s.elements * Dim(8)  # ids are 64-bit
    return s.elements * Dim(_element_bytes(dtype), "element_bytes")


def _element_bytes(dtype: DType) -> int:
    """Bytes of an activation: weights in blocks are computed with in 16 bits."""
    return dtype.size if dtype.block == 1 else 2


def view(subject: Subject, a: Ask, steps: Sequence[Step], dtype: DType) -> View:
    """The walk without weights."""
    from llmcalc.questions.load import beyond

    model = subject.model
    params, flop = totals(steps)
    each = _element_bytes(dtype)
    batch, past = int(a.batch), int(a.past)
    tokens = int(a.tokens) * batch
    peak = int(peak_bound(steps, each))
    facts = [
        Fact("tokens", tokens, "tokens", exact),
        Fact("total_params", int(params), "parameters passed", both),
        Fact("total_flop", int(flop), "FLOP", both),
        Fact("flop_per_token", int(flop) // tokens, "FLOP per token", exact),
        Fact("activation_bytes", peak, "activations at once, at most", size),
        Fact("element_bytes", each, "bytes per number", exact),
    ]
    title = f"{model.name}: {batch} x {several(int(a.tokens), 'token')}"
    if past:
        title += f" after {past}"
    drawn = partial(_picture, f"{title}: FLOP of all layers", steps)
    return View(
        kind="trace/1",
        title=title,
        columns=COLUMNS,
        rows=rows(subject, steps, dtype),
        facts=facts,
        notes=[*beyond(model, int(a.tokens) + past), *notes(subject, steps)],
        model=described(model),
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
