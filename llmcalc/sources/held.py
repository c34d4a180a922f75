"""Where a checkpoint says more than its config, the checkpoint counts.

A head that is tied in the config and stored with other values is not tied: transformers compares
the two and ties them only where they are equal. What stands beside a language model, and no family
describes, is counted by its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from llmcalc.anatomy import Anatomy, Part, Weight
from llmcalc.families import left_out
from llmcalc.sources import counted
from llmcalc.sources.header import Header, Stored
from llmcalc.sources.names import names_in

_CHUNK = 1 << 20
_PIECE = re.compile(r"(_blocks|_scales|_bias|_scale|_packed)$")


def as_held(whole: Anatomy, header: Header, folder: Path | None) -> Anatomy:
    """The parts as the checkpoint has them."""
    if not whole.uncounted and not any(w.tied_to and not w.in_stack for w in whole.weights):
        return whole
    shapes = {name: stored.shape for name, stored in header.tensors.items()}
    names = names_in(whole, shapes)
    whole = _untied(whole, header, folder, names)
    if not whole.uncounted:
        return whole
    more = tuple(counted.beside(header, _owned(header, set(names.values()))))
    note = f"{', '.join(whole.uncounted)}: no family describes it, so its tensors are counted"
    parts = (*(_called(part, names) for part in whole.parts), *more)
    kept = tuple(n for n in whole.notes if n != left_out(whole.uncounted))
    return replace(whole, parts=parts, uncounted=(), notes=(*kept, note))


def _called(part: Part, names: Mapping[str, str]) -> Part:
    """The part under the prefix that the file has."""
    if not isinstance(part, Weight):
        return part

    def as_in(name: str) -> str:
        first = name.replace("{layer}", str(part.layers.indices[0])).replace("{expert}", "0")
        there = names.get(first, first)
        if there.endswith(first):
            return there.removesuffix(first) + name
        return name.removeprefix(first.removesuffix(there)) if first.endswith(there) else name

    return replace(part, name=as_in(part.name), tied_to=part.tied_to and as_in(part.tied_to))


def _owned(header: Header, known: set[str]) -> set[str]:
    """The file's tensors that belong to a known module, packed into several or not."""
    modules = {name.removesuffix(".weight") for name in known}
    return {
        name
        for name in header.tensors
        if name in known or any(stem in modules for stem in _stems(name))
    }


def _stems(name: str) -> tuple[str, ...]:
    one = name.rpartition(".")[0]
    return _PIECE.sub("", name), one, one.rpartition(".")[0]


def _untied(
    whole: Anatomy, header: Header, folder: Path | None, names: Mapping[str, str]
) -> Anatomy:
    """The parts with every head untied whose own values are in the file."""
    parts: list[Part] = []
    notes = list(whole.notes)
    for part in whole.parts:
        if isinstance(part, Weight) and part.tied_to and not part.in_stack:
            own, other = (header.tensors.get(names.get(n, n)) for n in (part.name, part.tied_to))
            equal = None if own is None or other is None else _equal(own, other, folder)
            if equal is False:
                notes.append(
                    f"the config ties {part.name} to {part.tied_to}, and the file holds another:"
                    " counted and run with the stored one"
                )
                part = replace(part, tied_to=None)
            elif own is not None and other is not None and equal is None:
                notes.append(
                    f"the file holds {part.name} too, which the config ties to {part.tied_to}:"
                    " whether their values are equal is not known from here, and it is counted as"
                    " tied"
                )
        parts.append(part)
    return replace(whole, parts=tuple(parts), notes=tuple(notes))


def _equal(one: Stored, other: Stored, folder: Path | None) -> bool | None:
    """Whether two tensors hold the same bytes; None where the files are not at hand."""
    if one.shape != other.shape:
        return False
    if one.dtype != other.dtype or folder is None:
        return None
    try:
        with (folder / one.file).open("rb") as first, (folder / other.file).open("rb") as second:
            first.seek(one.offset)
            second.seek(other.offset)
            left = one.n_bytes
            while left > 0:
                n = min(left, _CHUNK)
                if first.read(n) != second.read(n):
                    return False
                left -= n
    except OSError:
        return None
    return True
