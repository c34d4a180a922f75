"""``llmcalc dtype --model``: what a model's weights take in every format, or tensor by tensor in one."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmcalc.anatomy import Anatomy
from llmcalc.cli.output.pictures import as_bars, by_bytes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError
from llmcalc.formats.file_type import BASES, Typed, mix
from llmcalc.formats.scheme import SCHEMES, tensors
from llmcalc.sources import resolve
from llmcalc.units import exact, size

PLAIN = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int4")
NOTES = [
    "the text model; what a format leaves alone stays in bfloat16 (norms, routers, biases, most embeddings)",
    "GGUF file types by llama.cpp's own rule per tensor, no importance matrix; without the file's header",
]


def of_model(name: str, form: str | None, si: bool) -> View:
    """Bytes of a model's weights: in every format, or in one by role and format of the tensors."""
    found = resolve(name)
    if form is None:
        return _all(found.anatomy, found.name, si)
    return _one(found.anatomy, found.name, form, si)


def _all(anatomy: Anatomy, name: str, si: bool) -> View:
    rows: list[dict[str, Any]] = []
    for kind, names in (
        ("one dtype", PLAIN),
        ("scheme", tuple(SCHEMES)),
        ("GGUF file type", tuple(BASES)),
    ):
        for form in names:
            row: dict[str, Any] = {"format": form, "kind": kind, "about": None}
            if kind == "scheme":
                row["about"] = SCHEMES[form].formula
            try:
                row |= _sums(
                    mix(anatomy, form) if kind.startswith("GGUF") else tensors(anatomy, form)
                )
            except InputError as refusal:
                row |= {"bytes": None, "bits_per_weight": None, "about": str(refusal)}
            rows.append(row)
    columns = [
        Column("format", "format"),
        Column("kind", "what it is"),
        Column("bytes", "bytes", lambda b: "-" if b is None else exact(b), right=True),
        Column("bytes", "", lambda b: "-" if b is None else size(b, si=si), right=True),
        Column(
            "bits_per_weight", "bits/weight", lambda b: "-" if b is None else f"{b:.4f}", right=True
        ),
        Column("about", "bits of a packed weight", lambda a: a or ""),
    ]
    n = sum(t.elements for t in tensors(anatomy, "bfloat16"))
    title = f"{name}: {exact(n)} parameters in every format"
    drawn = partial(as_bars, title, rows, "format", "bytes", "bytes", by_bytes(si))
    return View("dtype/1", title, columns, rows, notes=NOTES, picture=drawn)


def _one(anatomy: Anatomy, name: str, form: str, si: bool) -> View:
    groups: dict[tuple[str, str], list[Typed]] = {}
    found = tensors(anatomy, form)
    for tensor in found:
        groups.setdefault((tensor.role, tensor.form), []).append(tensor)
    rows = [
        {
            "role": role,
            "dtype": stored.lower(),
            "tensors": len(group),
            "layers": _spans(sorted({t.layer for t in group})),
            **_sums(group),
            "elements": sum(t.elements for t in group),
        }
        for (role, stored), group in groups.items()
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
    facts = [
        Fact("bytes", total["bytes"], "bytes", lambda b: f"{exact(b)} ({size(b, si=si)})"),
        Fact("bits_per_weight", total["bits_per_weight"], "bits per weight", lambda b: f"{b:.4f}"),
        Fact("params", sum(t.elements for t in found), "parameters", exact),
    ]
    counts: dict[str, int] = {}
    for tensor in found:
        counts[tensor.form.lower()] = counts.get(tensor.form.lower(), 0) + 1
    facts.append(
        Fact(
            "types",
            counts,
            "tensors of each",
            lambda c: ", ".join(f"{n} {k}" for k, n in c.items()),
        )
    )
    key = form.lower()
    if key in SCHEMES:
        facts.append(Fact("formula", SCHEMES[key].formula, "bits per weight"))
    title, notes = f"{name} in {form}", [NOTES[form.upper() in BASES]]
    drawn = partial(as_bars, title, rows, "role", "bytes", "bytes", by_bytes(si))
    return View("dtype/1", title, columns, rows, facts, notes=notes, picture=drawn)


def _sums(group: list[Typed]) -> dict[str, Any]:
    n_bytes, elements = sum(t.n_bytes for t in group), sum(t.elements for t in group)
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
