"""What stands beside a cache: a memory that it must fit into, a draft model, the same question
changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmcalc.anatomy import Layers
from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load
from llmcalc.cli.options.model import ModelOptions
from llmcalc.cli.output.view import Fact, Grid, View
from llmcalc.dims import SYMBOLS, Dim
from llmcalc.engines import choose
from llmcalc.engines.cache import Cache, Load, Row
from llmcalc.errors import InputError
from llmcalc.questions.kvcache import kvcache, largest_batch, largest_context
from llmcalc.sources import Model, resolve
from llmcalc.units import exact, size


def with_draft(answer: Cache, draft: str, load: Load, engine: str) -> Cache:
    """The draft model's cache on top, at the same context: speculation keeps both.

    Pools are not shared out.
    """
    found = resolve(draft)
    name, other = found.name, kvcache(found.anatomy, load=load, engine=engine)
    n_layers = sum(len(r.layers.indices) for r in other.rows)
    kv = Dim(int(other.kv_bytes), "draft_bytes")
    row = Row(
        kind=f"draft {name}",
        layers=Layers.all(n_layers),
        tokens=other.rows[0].tokens,
        kv_bytes=kv,
        state_bytes=Dim(0),
        per_token=other.per_token,
    )
    return replace(
        answer,
        rows=(*answer.rows, row),
        kv_bytes=answer.kv_bytes + kv,
        per_token=answer.per_token + Dim(int(other.per_token), "draft_bytes_per_token"),
        facts={},
        notes=(*answer.notes, f"`llmcalc kvcache {name}` shows the draft model's own formula"),
    )


def with_memory(view: View, found: Model, load: Load, engine: str, memory: int, si: bool) -> View:
    """The other way round: the longest context, the largest batch, and a grid of both."""
    if memory < 2**20:
        raise InputError(
            f"--memory is {exact(memory)} bytes, less than a MiB",
            hint="name the unit: 80GB or 80GiB",
        )
    function = choose(engine).rules.cache
    context = largest_context(found.anatomy, function, load, memory)
    batch = largest_batch(found.anatomy, function, load, memory)
    cells = _cells(found, load, engine, memory)
    kind = "context" if load.source is None else f"answer to {exact(load.source)} source tokens"
    facts = [
        *view.facts,
        Fact(
            "memory_bytes",
            memory,
            "memory for the cache alone",
            lambda n: f"{size(n, si=si)} ({exact(n)} bytes)",
        ),
        Fact("max_context", context, f"longest {kind}, {exact(load.batch)} at a time", _limit),
        Fact("max_batch", batch, f"most sequences of {exact(load.context)}", _limit),
        Fact("grid", cells),
    ]
    notes = [*view.notes, "the cache alone: weights and working memory need room too"]
    grid = _grid(cells, memory, si)
    return replace(view, facts=facts, notes=notes, grid=grid, picture=grid.picture)


def _limit(n: int | None) -> str:
    return "without limit" if n is None else exact(n)


def _cells(found: Model, load: Load, engine: str, memory: int) -> list[dict[str, Any]]:
    """The cache at a few contexts up to the model's longest, and at one to 64 sequences."""
    function = choose(engine).rules.cache
    longest = found.longest_context or int(load.context)
    cells: list[dict[str, Any]] = []
    for context in sorted({max(longest >> shift, 1) for shift in range(6)}):
        for batch in (1, 2, 4, 8, 16, 32, 64):
            asked = replace(load, context=Dim(context, "context"), batch=Dim(batch, "batch"))
            n = int(function(found.anatomy, asked).kv_bytes)
            cells.append({"context": context, "batch": batch, "kv_bytes": n, "fits": n <= memory})
    return cells


def _grid(cells: list[dict[str, Any]], memory: int, si: bool) -> Grid:
    """The cells as a heat map: share of the memory, a dash where it does not fit."""
    contexts = list(dict.fromkeys(c["context"] for c in cells))
    batches = list(dict.fromkeys(c["batch"] for c in cells))
    by = {(c["context"], c["batch"]): c["kv_bytes"] for c in cells}
    return Grid(
        title="cache by context and sequences",
        corner="context",
        rows=[exact(c) for c in contexts],
        columns=[exact(b) for b in batches],
        texts=[
            [size(by[c, b], si=si) if by[c, b] <= memory else "-" for b in batches]
            for c in contexts
        ],
        heat=[[by[c, b] / memory for b in batches] for c in contexts],
    )


_FIELDS = {"engine": "engine", "kv-dtype": "kv_dtype", "ctx": "ctx", "batch": "batch", "tp": "tp"}
_SIZES = {"kv-heads": "n_kv_heads", "heads": "n_heads", "layers": "n_layers"}


def compared(
    model: ModelOptions, load: LoadOptions, engines: EngineOptions, changes: list[str], first: Cache
) -> list[dict[str, Any]]:
    """The same question with one setting changed, each in turn: its bytes, the ratio, and the terms
    that moved.
    """
    out = []
    for change in changes:
        other = _changed(model, load, engines, change)
        ratio = int(other.kv_bytes) / int(first.kv_bytes) if first.kv_bytes else 0.0
        moved = _moved(first, other)
        out.append(
            {"change": change, "kv_bytes": int(other.kv_bytes), "ratio": ratio, "moved": moved}
        )
    return out


def _changed(model: ModelOptions, load: LoadOptions, engines: EngineOptions, change: str) -> Cache:
    key, equals, value = change.partition("=")
    if not equals:
        raise InputError(
            f"--vs {change!r} is not key=value",
            hint="for example --vs engine=vllm or --vs kv-heads=32",
        )
    key = key.strip().replace("_", "-")
    if key == "tp" and not value.isdigit():
        raise InputError(f"--vs {change!r}: {value!r} is not a whole number")
    if key in _FIELDS:
        changed: dict[str, Any] = {_FIELDS[key]: int(value) if key == "tp" else value}
        load = replace(load, **changed)
    else:
        name = _SIZES.get(key, key.replace("-", "_"))
        model = replace(model, override=[*(model.override or ()), f"{name}={value}"])
    try:
        found = model.resolve(cache_only=True)
    except InputError as error:
        raise InputError(f"--vs {change}: {error}", hint=error.hint) from None
    return kvcache(found.anatomy, load=build_load(found, load, engines), engine=load.engine)


def _moved(first: Cache, other: Cache) -> list[dict[str, Any]]:
    """Rows whose bytes differ: the sizes that changed, or both formulas where the rule did."""
    moved = []
    for i in range(max(len(first.rows), len(other.rows))):
        a = first.rows[i] if i < len(first.rows) else None
        b = other.rows[i] if i < len(other.rows) else None
        left = a.kv_bytes + a.state_bytes if a else Dim(0)
        right = b.kv_bytes + b.state_bytes if b else Dim(0)
        if int(left) == int(right):
            continue
        old, new = left.sizes, right.sizes
        sizes = {SYMBOLS.get(n, n): [old[n], new[n]] for n in old if n in new and old[n] != new[n]}
        row: dict[str, Any] = {
            "layers": next(r.kind for r in (b, a) if r is not None),
            "from": int(left),
            "to": int(right),
            "sizes": sizes,
        }
        if left.formula != right.formula:
            fresh = {SYMBOLS.get(n, n): new[n] for n in new if n not in old}
            row |= {"from_formula": left.formula, "to_formula": right.formula, "fresh": fresh}
        moved.append(row)
    return moved


def with_changes(view: View, rows: list[dict[str, Any]], si: bool) -> View:
    """The comparisons as one fact."""
    return replace(
        view, facts=[*view.facts, Fact("vs", rows, "with the change", lambda r: _shown(r, si))]
    )


def _shown(rows: list[dict[str, Any]], si: bool) -> str:
    """One line per change, then one per kind of layer that moved."""
    lines = []
    for row in rows:
        n = row["kv_bytes"]
        lines.append(
            f"{row['change']}: {exact(n)} bytes ({size(n, si=si)}), {row['ratio']:.4g} times"
        )
        for m in row["moved"]:
            said = [f"{symbol} {a} -> {b}" for symbol, (a, b) in m["sizes"].items()]
            if "to_formula" in m:
                said.append(f"{m['from_formula']} -> {m['to_formula']}")
                said += [f"{symbol} = {value}" for symbol, value in m["fresh"].items()]
            lines.append(
                f"  {m['layers']}: {exact(m['from'])} -> {exact(m['to'])}: {', '.join(said)}"
            )
    return "\n".join(lines)
