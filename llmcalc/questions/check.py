"""Does a checkpoint hold what its config promises: missing, extra, and wrongly shaped tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmcalc.formats.recipe import Recipe
from llmcalc.questions.packed import is_cache_scale, is_fused_scale, take, unstacked
from llmcalc.sources.names import Want, align, alternatives

_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_EXTRA_MODULES = ("mtp.", "model.mtp", "eagle", "rotary_emb.inv_freq", "multi_token")


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of the result: what is wrong, where, on how many tensors."""

    kind: str
    where: str
    detail: str
    tensors: int


@dataclass(frozen=True, slots=True)
class Result:
    """All differences, how many tensors are as promised, what was accepted on the way.

    ``owners`` says of each tensor of the file which promised one it stands for.
    """

    differences: tuple[Difference, ...]
    matched: int
    notes: tuple[str, ...]
    owners: Mapping[str, Want]
    unknown: str | None = None
    """Why the differences may be none: the quantisation's layout is not known."""

    @property
    def roles(self) -> dict[str, str]:
        """The role of each tensor of the file that is known."""
        return {name: want.weight.role for name, want in self.owners.items()}


def compare(
    wants: Mapping[str, Want],
    have: Mapping[str, tuple[int, ...]],
    is_buffer: Mapping[str, bool],
    recipe: Recipe | None = None,
    n_extra_layers: int = 0,
) -> Result:
    """The anatomy against a file's names and shapes.

    ``is_buffer`` says which of the file's are known buffers, ``recipe`` how its weights are packed.
    """
    notes: list[str] = []
    have, origin = _single_experts(wants, have)
    wants, have = alternatives(align(wants, have, notes), have), dict(have)
    owners: set[str | None] = {w.weight.tied_to for w in wants.values() if w.weight.tied_to}
    missing, shapes, matched = [], [], 0
    known: dict[str, Want] = {}
    for name, want in wants.items():
        found = have.pop(name, None)
        parts = take(name, want, found, have, recipe)
        if not parts and found == want.shape:
            parts = [name]
        if parts:
            matched += 1
            known.update((origin.get(part, part), want) for part in parts)
        elif found is not None:
            shapes.append((name, want.shape, found))
        elif not (
            want.weight.buffer or want.weight.tied_to or _tied_instead(name, owners, wants, have)
        ):
            missing.append(name)
    extra = [n for n in have if not is_buffer.get(origin.get(n, n))]
    if recipe is not None:
        extra = [n for n in extra if not (is_cache_scale(n) or is_fused_scale(n))]
    last = (
        max((int(m[1]) for m in map(_LAYER.search, wants) if m), default=-1)
        if n_extra_layers
        else -1
    )
    outside = [n for n in extra if _is_outside(n, last, n_extra_layers)]
    if outside:
        notes.append(
            f"{len(outside)} tensors of multi-token prediction are in the file and outside the"
            f" model: {outside[0]} ..."
        )
    beyond = set(outside)
    extra = [n for n in extra if n not in beyond]
    differences = (
        *_group("missing", missing, list(wants)),
        *_shape_lines(shapes),
        *_group("extra", extra, extra),
    )
    return Result(tuple(differences), matched, tuple(notes), known)


def _single_experts(
    wants: Mapping[str, Want], have: Mapping[str, tuple[int, ...]]
) -> tuple[Mapping[str, tuple[int, ...]], dict[str, str]]:
    """A file's tensors with every expert by itself where the model has them so."""
    expert = next((n for n, w in wants.items() if w.weight.by_expert), None)
    if expert is None or not any(".switch_mlp." in name for name in have):
        return have, {}
    return unstacked(have, expert)


def _tied_instead(
    name: str,
    owners: set[str | None],
    wants: Mapping[str, Want],
    have: Mapping[str, tuple[int, ...]],
) -> bool:
    """Whether a missing owner is stored under the name of a weight that is tied to it."""
    return name in owners and any(w.weight.tied_to == name and n in have for n, w in wants.items())


def _is_outside(name: str, last: int, n_extra_layers: int) -> bool:
    if name.startswith(_EXTRA_MODULES[:2]) or any(key in name for key in _EXTRA_MODULES[2:]):
        return True
    found = _LAYER.search(name)
    return found is not None and 0 <= last < int(found[1]) <= last + n_extra_layers


_PLACE = "\0#\0"
"""Where a layer's number stood; a name from a file may hold any sign."""


def _template(name: str) -> tuple[str, tuple[int, ...]]:
    return _LAYER.sub(_PLACE, name), tuple(int(n) for n in _LAYER.findall(name))


def _group(kind: str, names: Iterable[str], universe: Iterable[str]) -> list[Difference]:
    """Names as few lines: whole layers first, then one line per kind of tensor."""
    names = list(names)
    whole: dict[str, set[str]] = {}
    for name in universe:
        whole.setdefault(_layer_of(name), set()).add(name)
    gone, lines, full = set(names), [], list[int]()
    stem = ""
    for layer, members in whole.items():
        if layer and members <= gone and (kind == "missing" or len(members) > 1):
            stem, number = layer.rsplit(".", 1)
            full.append(int(number))
            gone -= members
    if full:
        total = sum(len(whole[f"{stem}.{i}"]) for i in full)
        lines.append(
            Difference(
                kind,
                f"{stem}.{ranges(full)}",
                "every tensor of the layer" if len(full) == 1 else "every tensor of these layers",
                total,
            )
        )
    templates: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        if name in gone:
            template, numbers = _template(name)
            templates.setdefault(template, []).append(numbers)
    for template, places in templates.items():
        lines.append(Difference(kind, _name(template, places), "", len(places)))
    return lines


def _layer_of(name: str) -> str:
    found = _LAYER.search(name)
    return name[: found.end()] if found else ""


def _name(template: str, numbers: list[tuple[int, ...]]) -> str:
    """A template with the numbers it stands for put in, as ranges."""
    first, *rest = template.split(_PLACE)
    return first + "".join(ranges([n[i] for n in numbers]) + text for i, text in enumerate(rest))


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges: ``0-3,7``.

    >>> ranges([0, 1, 2, 3, 7])
    '0-3,7'
    """
    parts: list[tuple[int, int]] = []
    for n in sorted(set(numbers)):
        if parts and parts[-1][1] == n - 1:
            parts[-1] = (parts[-1][0], n)
        else:
            parts.append((n, n))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _shape_lines(shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> list[Difference]:
    groups: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, want, found in shapes:
        template, numbers = _template(name)
        groups.setdefault((template, want, found), []).append(numbers)
    return [
        Difference(
            "shape",
            _name(template, numbers),
            f"the file has {list(found)}, the config says {list(want)}",
            len(numbers),
        )
        for (template, want, found), numbers in groups.items()
    ]
