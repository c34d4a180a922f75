"""How ``params`` shows its answer: by part, by tensor, or a header alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from llmcalc.anatomy import Anatomy
from llmcalc.cli.options.model import OutputOptions
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.dims import Dim
from llmcalc.formats.element import DType, dtype
from llmcalc.questions import params as calc
from llmcalc.sources import Model
from llmcalc.sources.header import Header, is_buffer, is_packed
from llmcalc.text import safe, shorten
from llmcalc.units import both, count, exact, percent, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture
    from llmcalc.questions.check import Result


SHOWN_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int4")


def header_params(header: Header) -> int:
    """Elements of a header's tensors that are parameters."""
    return sum(t.elements for name, t in header.tensors.items() if not is_buffer(name, t))


def of_header(model: Model, header: Header, notes: list[str], output: OutputOptions) -> View:
    """The view of a checkpoint without a config: its own exact count, by tensor."""
    columns, rows = stored_rows(header)
    if any(is_packed(t) for name, t in header.tensors.items() if not is_buffer(name, t)):
        notes.append(
            "packed integers are counted as stored, not as the weights they stand for; a"
            " config.json beside them tells"
        )
    if header.format == "gguf":
        notes.append("shapes are rows first; GGUF itself stores the fastest dimension first")
    total = header_params(header)
    facts = [
        Fact("total_params", total, "parameters", both),
        Fact("stored_params", header.elements),
        Fact(
            "buffer_params",
            header.elements - total,
            "buffers" if header.elements != total else None,
            exact,
        ),
        Fact("n_tensors", len(header.tensors), "tensors", exact),
        *stored_facts(header, output.si),
    ]
    notes += absent_tensors(header)
    title = f"{model.name}: {count(total)} parameters"
    drawn = partial(_picture, title, rows, "name")
    return View(
        kind="params/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=model.about,
        picture=drawn,
    )


def _picture(title: str, rows: list[Mapping[str, Any]], label: str) -> Picture:
    from llmcalc.cli.output import pictures as answers

    return answers.shares(title, rows, label)


def stored_rows(header: Header) -> tuple[list[Column], list[Mapping[str, Any]]]:
    """One row per tensor of a file, as the file has it."""
    rows: list[Mapping[str, Any]] = [
        {
            "name": name,
            "shape": list(t.shape),
            "params": 0 if is_buffer(name, t) or is_packed(t) else t.elements,
            "elements": t.elements,
            "dtype": t.dtype,
            "bytes": t.n_bytes,
            "role": "buffer" if is_buffer(name, t) else "packed" if is_packed(t) else None,
            "tied_to": None,
        }
        for name, t in header.tensors.items()
    ]
    columns = [
        Column("name", "tensor", safe),
        Column("shape", "shape", _shape, right=True),
        Column("params", "parameters", exact, shown=False),
        Column("elements", "elements", exact, right=True),
        Column("dtype", "dtype"),
        Column("bytes", "bytes", exact, right=True),
        Column("role", "role"),
        Column("tied_to", "tied to", shown=False),
    ]
    return columns, rows


def tensor_names(anatomy: Anatomy) -> set[str]:
    """Every name that the anatomy promises."""
    return {name for w in anatomy.weights for name in w.names()}


def absent_tensors(header: Header) -> list[str]:
    """A word where an index promises tensors that its shards do not hold."""
    if not header.absent:
        return []
    name, shard = next(iter(header.absent.items()))
    return [
        f"the index promises {len(header.absent)} tensors that are absent, "
        f"the first {shorten(name)} in {shorten(shard)}"
    ]


def about_dtype(model: Model, form: DType, named: bool) -> list[str]:
    """What has to be said of the dtype that bytes are shown in."""
    if form.block > 1:
        return [
            f"every tensor as {form.name}, whole blocks over all elements: "
            "a real file keeps norms and some matrices wider"
        ]
    if named or model.header is not None or model.named_dtype is not None:
        return []
    return [f"no dtype is named: bytes are shown as {form.name}"]


def stored_facts(header: Header, si: bool) -> list[Fact]:
    """What a checkpoint holds as it is: bytes and elements by dtype."""
    by_dtype = header.elements_by_dtype()
    bits = 8 * header.n_bytes / header.elements if header.elements else 0.0
    return [
        Fact("weight_bytes", {"stored": header.n_bytes}),
        Fact(
            "stored_bytes",
            header.n_bytes,
            "stored",
            lambda n: f"{size(n, si=si)} ({exact(n)} bytes)",
        ),
        Fact("stored_elements", header.elements, "stored elements", exact),
        Fact("bits_per_element", round(bits, 4), "bits per element", lambda b: f"{b:.3f}"),
        Fact(
            "elements_by_dtype",
            by_dtype,
            "by dtype",
            lambda d: ", ".join(f"{k} {exact(v)}" for k, v in d.items()),
        ),
    ]


def of_anatomy(
    model: Model,
    by: str,
    tensors: bool,
    form: DType | None,
    notes: list[str],
    output: OutputOptions,
) -> View:
    """The view of a model whose parts are known."""
    anatomy, result = model.anatomy, _beside(model)
    named, form = form is not None, form or model.dtype
    total = calc.parameters(anatomy)
    notes += [
        *anatomy.notes,
        *assumptions(model),
        *quantised(model),
        *disagreements(model, result),
        *about_dtype(model, form, named),
    ]
    if (
        tensors
        and model.header is not None
        and not set(model.header.tensors) <= tensor_names(anatomy)
    ):
        columns, rows = stored_rows(model.header)
    elif tensors:
        columns, rows = tensor_rows(anatomy, form, model.header)
    else:
        n_bytes = stored_or(model, form, named, result)
        columns, rows = group_rows(anatomy, by, n_bytes, total, output.si)
    as_other = (
        ", counted as asked with --as"
        if any("because --as asked" in n for n in model.notes)
        else ""
    )
    alone = ", the language model alone" if anatomy.uncounted else ""
    title = f"{model.name} ({anatomy.family}{as_other}{alone}): {count(total)} parameters"
    notes += absent_tensors(model.header) if model.header is not None else []
    return View(
        kind="params/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts(model, anatomy, total, form, result, output.si),
        notes=notes,
        model=model.about,
        explain=output.explain,
        picture=partial(_picture, title, rows, "name" if tensors else "part"),
    )


Bytes = tuple[str, Callable[[calc.Group], int]]
"""What bytes are of, and those of a group."""


def stored_or(model: Model, form: DType, asked: bool, result: Result | None) -> Bytes:
    """Bytes as the model's own files hold them.

    Without files, or where a dtype is asked for, in it.
    """
    if model.header is None or asked:
        return form.name, lambda group: form.bytes_for(int(group.params))
    from llmcalc.questions.weights import checkpoint

    held = checkpoint(model, model.header, result).held

    def n_bytes(group: calc.Group) -> int:
        places = {(w.name, i) for w in group.weights for i in w.layers.indices}
        return sum(held[place][0] for place in places if place in held)

    return "as stored", n_bytes


def group_rows(
    anatomy: Anatomy, by: str, n_bytes: Bytes, total: Dim, si: bool
) -> tuple[list[Column], list[Mapping[str, Any]]]:
    """One row per group, in forward order."""
    groups = calc.GROUPS[by](anatomy)
    names = [g.name for g in groups]
    stem = stack_stem(names) if by in ("part", "weight") else ""
    rows: list[Mapping[str, Any]] = []
    for group in groups:
        n = group.params
        if all(w.tied_to for w in group.weights):
            note = "tied"
        else:
            note = "buffer" if all(w.buffer for w in group.weights) else ""
        rows.append(
            {
                "part": group.name + (f" ({note})" if note else ""),
                "formula": n.formula if n else "-",
                "params": n,
                "share": int(n) / int(total) if total else 0.0,
                "bytes": n_bytes[1](group),
            }
        )
    columns = [
        Column(
            "part",
            f"{by}, · = {stem.rstrip('.')}" if stem else by,
            lambda name: safe(short(name, stem)),
        ),
        Column("formula", "formula"),
        Column("params", "parameters", exact, right=True),
        Column("share", "share", lambda s: percent(round(s * 10**9), 10**9), right=True),
        Column("bytes", n_bytes[0], lambda n: size(n, si=si), right=True),
    ]
    return columns, rows


def stack_stem(names: list[str]) -> str:
    """What stands before every layer's parts where the model has one stack:

    ``model.layers.{layer}.``.
    """
    stems = {name[: name.find("{layer}") + len("{layer}.")] for name in names if "{layer}." in name}
    return stems.pop() if len(stems) == 1 else ""


def short(name: str, stem: str) -> str:
    """A name with the stack's stem as a dot, and without the model's own prefix."""
    if stem and name.startswith(stem):
        return f"·{name.removeprefix(stem)}"
    return name.removeprefix(stem.split(".")[0] + ".") if stem.count(".") > 2 else name


def tensor_rows(
    anatomy: Anatomy, form: DType, header: Header | None
) -> tuple[list[Column], list[Mapping[str, Any]]]:
    """One row per tensor, named as in the published checkpoint."""
    rows: list[Mapping[str, Any]] = []
    for w in anatomy.weights:
        shape = [int(s) for s in w.full_shape]
        elements = 1
        for s in shape:
            elements *= s
        fixed = {
            "shape": shape,
            "params": elements if w.counted else 0,
            "elements": elements,
            "role": w.role,
        }
        kind = "tied" if w.tied_to else "buffer" if w.buffer else "parameter"
        for name in w.names():
            real = header.tensors.get(name) if header else None
            rows.append(
                {
                    "name": name,
                    **fixed,
                    "kind": kind,
                    "dtype": real.dtype if real else form.name,
                    "tied_to": w.tied_to,
                }
            )
    columns = [
        Column("name", "tensor", safe),
        Column("shape", "shape", _shape, right=True),
        Column("params", "parameters", exact, right=True),
        Column("elements", "elements", exact, shown=False),
        Column("role", "role"),
        Column("kind", "kind", shown=any(r["kind"] != "parameter" for r in rows)),
        Column("dtype", "dtype"),
        Column("tied_to", "tied to", shown=False),
    ]
    return columns, rows


def _shape(shape: Any) -> str:
    return "×".join(str(int(s)) for s in shape) if shape else "scalar"


def facts(
    model: Model, anatomy: Anatomy, total: Dim, form: DType, result: Result | None, si: bool
) -> list[Fact]:
    """The totals, each under the convention it follows."""
    embedded, positions, active = (
        calc.embeddings(anatomy),
        calc.positions(anatomy),
        calc.active(anatomy),
    )
    buffers, bare_active = _buffers(model, anatomy, result), calc.active_without_embedding(anatomy)
    sparse, has_head = int(active) != int(total), any(w.role == "head" for w in anatomy.weights)
    tied = any(w.tied_to and w.role in ("head", "embed.token") for w in anatomy.weights)
    big = both
    out = [
        *_total(anatomy, total),
        Fact("stored_params", calc.stored(anatomy)),
        Fact("active_params", active, "active per text token" if sparse else None, big),
        Fact(
            "active_params_without_embedding",
            bare_active,
            "active, embedding out" if sparse else None,
            big,
        ),
        Fact("embedding_params", embedded, "lookup tables" if embedded else None, exact),
        Fact(
            "params_without_embedding",
            total - embedded,
            "without lookup tables" if embedded else None,
            exact,
        ),
        Fact(
            "params_without_positions",
            total - positions,
            "without positions" if positions else None,
            exact,
        ),
        Fact("buffer_params", buffers, "buffers, not counted" if buffers else None, exact),
        Fact(
            "tied",
            tied,
            "head tied" if has_head else None,
            lambda t: "yes, counted once" if t else "no",
        ),
        Fact(
            "n_tensors",
            len(model.header.tensors) if model.header else calc.n_tensors(anatomy),
            "tensors",
            exact,
        ),
    ]
    n_bytes = {
        name: dtype(name).bytes_for(int(total))
        for name in dict.fromkeys((form.name, *SHOWN_DTYPES))
    }
    if model.header is not None:
        bits = 8 * model.header.n_bytes / int(total) if total else 0.0
        per = Fact("bits_per_param", round(bits, 4), "bits per parameter", lambda b: f"{b:.3f}")
        return [*out, *stored_facts(model.header, si), per]
    shown = ", ".join(f"{name} {size(n, si=si)}" for name, n in n_bytes.items())
    return [*out, Fact("weight_bytes", n_bytes, "all in one dtype", lambda _: shown)]


def _total(anatomy: Anatomy, total: Dim) -> list[Fact]:
    """The total; that of the language model under its own name where something is not counted."""
    if not anatomy.uncounted:
        return [Fact("total_params", total, "parameters", both)]
    return [
        Fact("total_params", None),
        Fact("text_params", total, "parameters of the language model", both),
        Fact("not_counted", list(anatomy.uncounted), "not counted", ", ".join),
    ]


def _beside(model: Model) -> Result | None:
    """What the model's own files hold beside what its config promises; None without files."""
    if model.header is None:
        return None
    from llmcalc.questions.weights import compared

    return compared(model, model.header)


def _buffers(model: Model, anatomy: Anatomy, result: Result | None) -> int:
    """Elements that are no parameters: the family's, and what else the file holds of that kind."""
    found = calc.buffers(anatomy)
    if model.header is None or result is None:
        return found
    others = ((n, t) for n, t in model.header.tensors.items() if n not in result.owners)
    return found + sum(t.elements for n, t in others if is_buffer(n, t))


def disagreements(model: Model, result: Result | None) -> list[str]:
    """A word where a checkpoint does not hold what its config promises: how much, and where."""
    if model.header is None or result is None or not result.differences:
        return []
    kinds: dict[str, int] = {}
    for difference in result.differences:
        kinds[difference.kind] = kinds.get(difference.kind, 0) + difference.tensors
    said = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    first = shorten(result.differences[0].where)
    return [
        f"the file and its config disagree: {said}, the first {first}; the file holds"
        f" {exact(header_params(model.header))} elements (`llmcalc check` lists all)"
    ]


def assumptions(model: Model) -> list[str]:
    """What the config did not say and the reference's class decides."""
    shown = {k: v for k, v in model.config.assumed.items() if isinstance(v, int | float | str)}
    if not shown or model.source == "flags":
        return []
    listed = ", ".join(f"{k} {v}" for k, v in sorted(shown.items()))
    return [
        f"not in the config, so the default of the reference's {model.config.family} class:"
        f" {listed}"
    ]


def quantised(model: Model) -> list[str]:
    """A word where the published weights are quantised, which changes bytes and not parameters."""
    settings = model.quantisation
    if settings is None:
        return []
    method = settings.get("quant_method") or settings.get("quantization_method") or "unknown"
    return [
        f"the published weights are quantised ({method}): parameters are counted as unpacked, "
        "bytes per dtype are those of an unquantised copy"
    ]
