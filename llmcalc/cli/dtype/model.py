"""``llmcalc dtype --model``: what a model's weights take in every format, or tensor by tensor in
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from llmcalc.cli.output.pictures import as_bars, by_bytes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError
from llmcalc.formats.file_type import BASES
from llmcalc.formats.scheme import SCHEMES
from llmcalc.formats.stored import FileType, Format, Packed, Plain, Stored, named, stored
from llmcalc.sources import Model, resolve
from llmcalc.units import exact, size

PLAIN = ("float32", "bfloat16", "float16", "float8_e4m3fn")


def of_model(name: str, form: str | None, si: bool) -> View:
    """Bytes of a model's weights: in every format, or in one by role and format of the tensors."""
    found = resolve(name)
    return _all(found, si) if form is None else _one(found, form, si)


def _about(form: Format | None, wide: str) -> list[str]:
    """What the bytes are of; every format at once where there is none."""
    alone = f"what a scheme leaves alone stays in {wide} (norms, routers, biases, most embeddings)"
    mixed = (
        "GGUF file types: the text model alone, by llama.cpp's own rule per tensor, "
        "no importance matrix; without the file's header"
    )
    if form is None:
        return [alone, mixed]
    if isinstance(form, Plain):
        return []
    return [alone] if isinstance(form, Packed) else [mixed]


def _all(model: Model, si: bool) -> View:
    anatomy, rows = model.anatomy, list[dict[str, Any]]()
    kinds = {"one dtype": PLAIN, "scheme": tuple(SCHEMES), "GGUF file type": tuple(BASES)}
    for kind, names in kinds.items():
        for form in names:
            row: dict[str, Any] = {"format": form, "kind": kind, "about": None}
            if kind == "scheme":
                row["about"] = SCHEMES[form].formula
            try:
                row |= _sums(stored(anatomy, _of_kind(kind, form, model)))
            except InputError as refusal:
                row |= {"bytes": None, "bits_per_weight": None, "about": str(refusal)}
            rows.append(row)
    columns = [
        Column("format", "format"),
        Column("kind", "what it is"),
        Column("bytes", "bytes", lambda b: "-" if b is None else exact(b), right=True),
        Column("bytes", "", lambda b: "-" if b is None else size(b, si=si), right=True),
        Column(
            "bits_per_weight",
            "bits/weight",
            lambda b: "-" if b is None else f"{b:.4f}",
            right=True,
        ),
        Column("about", "bits of a packed weight", lambda a: a or ""),
    ]
    n = sum(int(piece.elements) for piece in stored(anatomy, named("bfloat16", model.wide)))
    title = f"{model.name}: {exact(n)} parameters in every format"
    drawn = partial(as_bars, title, rows, "format", "bytes", "bytes", by_bytes(si))
    notes = _about(None, model.wide.name)
    return View("dtype/1", title, columns, rows, notes=notes, picture=drawn)


def _of_kind(kind: str, form: str, model: Model) -> Format:
    """A float and a GGUF file type may share a name: F16 is both."""
    return FileType(name=form) if kind.startswith("GGUF") else named(form, model.wide)


def _one(model: Model, name: str, si: bool) -> View:
    form = named(name, model.wide)
    groups: dict[tuple[str, str], list[Stored]] = {}
    found = stored(model.anatomy, form)
    for piece in found:
        groups.setdefault((piece.role, piece.form), []).append(piece)
    rows = [
        {
            "role": role,
            "dtype": kind,
            "tensors": sum(map(_tensors, group)),
            "layers": _spans(sorted({i for piece in group for i in piece.layers.indices})),
            **_sums(group),
            "elements": sum(int(piece.elements) for piece in group),
        }
        for (role, kind), group in groups.items()
    ]
    columns = [
        Column("role", "role"),
        Column("dtype", "stored as"),
        Column("tensors", "tensors", right=True),
        Column("layers", "layers"),
        Column("elements", "elements", exact, right=True),
        Column("bytes", "bytes", exact, right=True),
        Column("bytes", "", lambda b: size(b, si=si), right=True),
        Column("bits_per_weight", "bits/weight", lambda b: f"{b:.4f}", right=True),
    ]
    total = _sums(found)
    counts: dict[str, int] = {}
    for piece in found:
        counts[piece.form] = counts.get(piece.form, 0) + _tensors(piece)
    types = Fact(
        "types",
        counts,
        "tensors of each",
        lambda c: ", ".join(f"{n} {kind}" for kind, n in c.items()),
    )
    facts = [
        Fact("bytes", total["bytes"], "bytes", lambda b: f"{exact(b)} ({size(b, si=si)})"),
        Fact("bits_per_weight", total["bits_per_weight"], "bits per weight", lambda b: f"{b:.4f}"),
        Fact("params", sum(int(piece.elements) for piece in found), "parameters", exact),
        types,
    ]
    if isinstance(form, Packed):
        facts.append(Fact("formula", form.scheme.formula, "bits per weight"))
    title, notes = f"{model.name} in {name}", _about(form, model.wide.name)
    drawn = partial(as_bars, title, rows, "role", "bytes", "bytes", by_bytes(si))
    return View("dtype/1", title, columns, rows, facts, notes=notes, picture=drawn)


def _tensors(piece: Stored) -> int:
    """One for each layer; experts of a layer lie together in the formats that are counted here."""
    return len(piece.layers.indices)


def _sums(group: Iterable[Stored]) -> dict[str, Any]:
    pieces = list(group)
    n_bytes = sum(int(piece.n_bytes) for piece in pieces)
    elements = sum(int(piece.elements) for piece in pieces)
    return {"bytes": n_bytes, "bits_per_weight": 8 * n_bytes / elements if elements else None}


def _spans(layers: list[int]) -> str:
    """Layers as ranges: 0-3, 6, 9."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    return ", ".join(texts) if len(texts) <= 6 else f"{', '.join(texts[:5])}, ... ({len(layers)})"
