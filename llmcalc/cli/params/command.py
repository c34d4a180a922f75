"""``llmcalc params``: how many parameters, where, by which formula."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.anatomy import Anatomy
from llmcalc.cli.live import TwinOptions, params_twin
from llmcalc.cli.options.model import ModelOptions, OutputOptions, count_in, takes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.element import DType, dtype
from llmcalc.questions import params as calc
from llmcalc.sources import Model
from llmcalc.sources.header import Header, is_buffer, is_packed
from llmcalc.text import safe, shorten
from llmcalc.units import both, count, exact, percent, several, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture

SHOWN_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int4")


@takes
def params(
    model: ModelOptions,
    output: OutputOptions,
    twin: TwinOptions,
    ctx: Annotated[
        str | None,
        typer.Option("--ctx", help="Longest context trained for (position table).", metavar="N"),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Group by part, layer, role or weight.")] = "part",
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor with name and shape.")
    ] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", help="Exit 1 unless the total is N.", metavar="N")
    ] = None,
    in_dtype: Annotated[
        str | None, typer.Option("--dtype", help="Weights in this dtype; default: the config's.")
    ] = None,
) -> None:
    """Count parameters: how many, where, by which formula.

    \b
    llmcalc params gpt2
    llmcalc params --d 768 --layers 12
    llmcalc params --model llama-3-8b --tensors --json
    llmcalc params config.json --expect 124439808
    llmcalc params toy --live
    """
    twin.check()
    found = model.resolve(ctx=ctx)
    wanted = count_in("--expect", expect) if expect is not None else None
    if by not in calc.GROUPS:
        raise InputError(f"--by {by!r} is not one of {', '.join(calc.GROUPS)}")
    if tensors and by != "part":
        raise InputError(f"--tensors lists every tensor by itself; it does not go with --by {by}")
    view = of_model(found, by, tensors, dtype(in_dtype) if in_dtype else None, output)
    differences = 0
    if twin.live:
        view, differences = params_twin(view, found, twin)
    write(view, output)
    if differences:
        raise typer.Exit(1)
    total = next(f.value for f in view.facts if f.key == "total_params")
    if wanted is not None and wanted != total:
        more = "more" if total > wanted else "fewer"
        why = None if found.raw is None else calc.explains(found.anatomy, int(total) - wanted)
        said = f"expected {several(wanted, 'parameter')}, found {exact(total)}: {exact(abs(total - wanted))} {more}"
        typer.echo(said + (f", {why}" if why else ""), err=True)
        raise typer.Exit(1)


def of_model(
    model: Model, by: str, tensors: bool, form: DType | None, output: OutputOptions
) -> View:
    """The view of a model: from its anatomy, or from its header alone where there is no config for it."""
    notes: list[str] = list(model.notes)
    if model.adapter is not None:
        from llmcalc.cli.params.adapter import of_adapter

        return of_adapter(model, model.adapter, output.explain)
    if model.raw is None:
        if model.header is None:
            raise InputError(f"{model.name} has neither a config nor a header")
        return of_header(model, model.header, notes, output)
    if model.header is not None and model.header.format == "gguf":
        try:
            anatomy = model.anatomy
        except InputError as error:
            return of_header(
                model, model.header, [*notes, f"counted by tensor, since {error}"], output
            )
        if calc.parameters(anatomy) != header_params(model.header):
            notes.append(
                "counted by tensor: its sizes do not describe exactly these tensors (`llmcalc check` says where)"
            )
            return of_header(model, model.header, notes, output)
    return of_anatomy(model, by, tensors, form, notes, output)


def header_params(header: Header) -> int:
    """Elements of a header's tensors that are parameters."""
    return sum(t.elements for name, t in header.tensors.items() if not is_buffer(name, t))


def of_header(model: Model, header: Header, notes: list[str], output: OutputOptions) -> View:
    """The view of a checkpoint without a config: its own exact count, by tensor."""
    columns, rows = stored_rows(header)
    if any(is_packed(t) for name, t in header.tensors.items() if not is_buffer(name, t)):
        notes.append(
            "packed integers are counted as stored, not as the weights they stand for; a config.json beside them tells"
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
    return View("params/1", title, columns, rows, facts, notes, describe(model), picture=drawn)


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
    raw = model.raw or {}
    inside = raw.get("text_config")
    places = [raw, inside if isinstance(inside, Mapping) else {}]
    if (
        named
        or model.header is not None
        or any(isinstance(p.get(k), str) for p in places for k in ("dtype", "torch_dtype"))
    ):
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
    anatomy = model.anatomy
    named, form = form is not None, form or config_dtype(model.raw or {})
    total = calc.parameters(anatomy)
    notes += [
        *anatomy.notes,
        *assumptions(model),
        *quantised(model),
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
        columns, rows = group_rows(anatomy, by, form, total, output.si)
    as_other = (
        ", counted as asked with --as"
        if any("because --as asked" in n for n in model.notes)
        else ""
    )
    title = f"{model.name} ({anatomy.family}{as_other}): {count(total)} parameters"
    notes += absent_tensors(model.header) if model.header is not None else []
    return View(
        "params/1",
        title,
        columns,
        rows,
        facts(model, anatomy, total, form, output.si),
        notes,
        describe(model),
        output.explain,
        picture=partial(_picture, title, rows, "name" if tensors else "part"),
    )


def group_rows(
    anatomy: Anatomy, by: str, form: DType, total: Dim, si: bool
) -> tuple[list[Column], list[Mapping[str, Any]]]:
    """One row per group, in forward order."""
    groups = calc.GROUPS[by](anatomy)
    names = [g.name for g in groups]
    stem = stack_stem(names) if by in ("part", "weight") else ""
    rows: list[Mapping[str, Any]] = []
    for group in groups:
        n = group.params
        note = (
            "tied"
            if all(w.tied_to for w in group.weights)
            else "buffer"
            if all(w.buffer for w in group.weights)
            else ""
        )
        rows.append(
            {
                "part": group.name + (f" ({note})" if note else ""),
                "formula": n.formula if n else "-",
                "params": n,
                "share": int(n) / int(total) if total else 0.0,
                "bytes": form.bytes_for(int(n)),
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
        Column("bytes", form.name, lambda n: size(n, si=si), right=True),
    ]
    return columns, rows


def stack_stem(names: list[str]) -> str:
    """What stands before every layer's parts where the model has one stack: ``model.layers.{layer}.``."""
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


def facts(model: Model, anatomy: Anatomy, total: Dim, form: DType, si: bool) -> list[Fact]:
    """The totals, each under the convention it follows."""
    embedded, positions, active = (
        calc.embeddings(anatomy),
        calc.positions(anatomy),
        calc.active(anatomy),
    )
    buffers, bare_active = calc.buffers(anatomy), calc.active_without_embedding(anatomy)
    sparse, has_head = int(active) != int(total), any(w.role == "head" for w in anatomy.weights)
    tied = any(w.tied_to and w.role in ("head", "embed.token") for w in anatomy.weights)
    big = both
    out = [
        Fact("total_params", total, "parameters", big),
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
        Fact("n_tensors", calc.n_tensors(anatomy), "tensors", exact),
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


def config_dtype(raw: Mapping[str, Any]) -> DType:
    """The dtype that a config names, in either spelling, else bfloat16."""
    inner = raw.get("text_config")
    for place in (raw, inner if isinstance(inner, Mapping) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(place.get(key), str) and place[key] not in ("auto", ""):
                return dtype(place[key])
    return dtype("bfloat16")


def assumptions(model: Model) -> list[str]:
    """What the config did not say and the reference's class decides."""
    shown = {k: v for k, v in model.config.assumed.items() if isinstance(v, int | float | str)}
    if not shown or model.source == "flags":
        return []
    listed = ", ".join(f"{k} {v}" for k, v in sorted(shown.items()))
    return [
        f"not in the config, so the default of the reference's {model.config.family} class: {listed}"
    ]


def quantisation(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a config says of its weights' packing, at its top level or in the language model's part."""
    inner = (raw or {}).get("text_config")
    for place in (raw or {}, inner if isinstance(inner, Mapping) else {}):
        settings = place.get("quantization_config")
        if isinstance(settings, Mapping) and settings:
            return settings
    return None


def quantised(model: Model) -> list[str]:
    """A word where the published weights are quantised, which changes bytes and not parameters."""
    settings = quantisation(model.raw)
    if settings is None:
        return []
    method = settings.get("quant_method") or settings.get("quantization_method") or "unknown"
    return [
        f"the published weights are quantised ({method}): parameters are counted as unpacked, "
        "bytes per dtype are those of an unquantised copy"
    ]


def describe(model: Model) -> dict[str, Any]:
    """The model's entry in JSON."""
    family = model.config.family if model.raw is not None else None
    return {"name": model.name, "family": family, "source": model.source}
