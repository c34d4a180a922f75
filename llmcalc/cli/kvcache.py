"""``llmcalc kvcache``: what the cache takes, per engine; how much context or how many sequences fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from llmcalc.calc.cache.load import Cache, Load, Row
from llmcalc.calc.kvcache import ENGINES, engine_for, largest_batch, largest_context, mha_bytes
from llmcalc.cli.options import ModelOptions, OutputOptions, takes
from llmcalc.cli.output import write
from llmcalc.cli.params import config_dtype, describe
from llmcalc.cli.view import Column, Fact, View
from llmcalc.dims import Dim
from llmcalc.dtypes import DType, dtype
from llmcalc.errors import InputError, UnavailableError
from llmcalc.sources import Model
from llmcalc.units import exact, parse_bytes, parse_count, size


@dataclass(frozen=True)
class LoadOptions:
    """What to hold, and where."""

    ctx: Annotated[
        str | None,
        typer.Option("--ctx", "--context", help="Tokens per sequence; default: the model's longest.", metavar="N"),
    ] = None
    batch: Annotated[str, typer.Option(help="Sequences.", metavar="N")] = "1"
    prompt: Annotated[
        str | None, typer.Option(help="Tokens of the prompt (with --new, instead of --ctx).", metavar="N")
    ] = None
    new: Annotated[str | None, typer.Option(help="Tokens to generate.", metavar="N")] = None
    kv_dtype: Annotated[str | None, typer.Option(help="Cache dtype, or K,V: q8_0,f16. Default: the model's.")] = None
    engine: Annotated[str, typer.Option(help=f"{', '.join(ENGINES)}; vllm@0.10 for older rules.")] = "formula"
    tp: Annotated[int, typer.Option(help="Tensor parallel degree: bytes of one rank.")] = 1


@dataclass(frozen=True)
class EngineOptions:
    """Settings that engines round by."""

    block_size: Annotated[int | None, typer.Option(help="Tokens per page (vLLM, SGLang, TensorRT-LLM).")] = None
    batched_tokens: Annotated[int, typer.Option(help="vLLM's max_num_batched_tokens, which windows must survive.")] = (
        8192
    )
    in_flight: Annotated[int, typer.Option(help="vLLM's batches in flight: 2 with async scheduling.")] = 2
    no_prefix_caching: Annotated[
        bool, typer.Option("--no-prefix-caching", help="vLLM: one state page per sequence, not two.")
    ] = False
    speculative: Annotated[int, typer.Option(help="vLLM's speculative tokens, which states keep room for.")] = 0
    ssm_dtype: Annotated[str | None, typer.Option(help="vLLM's mamba_ssm_cache_dtype, for recurrent states.")] = None
    ubatch: Annotated[int, typer.Option(help="llama.cpp's n_ubatch, added to windows.")] = 512
    unified: Annotated[bool, typer.Option("--unified", help="llama.cpp: one stream of cells for all sequences.")] = (
        False
    )
    swa_full: Annotated[bool, typer.Option("--swa-full", help="llama.cpp: windows hold every cell.")] = False
    no_flash_attention: Annotated[
        bool, typer.Option("--no-flash-attention", help="llama.cpp without flash attention.")
    ] = False
    static: Annotated[bool, typer.Option("--static", help="transformers: StaticCache of --ctx tokens.")] = False


@takes
def kvcache(
    model: ModelOptions,
    load: LoadOptions,
    engines: EngineOptions,
    output: OutputOptions,
    memory: Annotated[str | None, typer.Option(help="How much context or how many sequences fit: 80GB, 24GiB.")] = None,
    vs: Annotated[
        list[str] | None,
        typer.Option(help="Compare with a change: engine=vllm, kv-dtype=fp8, kv-heads=32.", metavar="KEY=VALUE"),
    ] = None,
    draft: Annotated[str | None, typer.Option(help="A draft model whose cache comes on top.", metavar="MODEL")] = None,
    limit: Annotated[str | None, typer.Option("--max", help="Exit 1 if the cache takes more: 8GiB.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Allocate it and measure (needs the live engine).")] = False,
) -> None:
    """The cache of keys, values and states: bytes, layer by layer, per engine.

    llmcalc kvcache --model llama-3-8b --ctx 8192
    llmcalc kvcache gpt-oss-120b --ctx 131072 --engine vllm
    llmcalc kvcache gemma-3-27b --memory 24GiB
    llmcalc kvcache llama-3-8b --ctx 8192 --vs engine=vllm
    """
    if live:
        raise UnavailableError("measuring the cache needs the live engine, which is not built yet")
    most = parse_bytes(limit) if limit is not None else None
    budget = parse_bytes(memory) if memory is not None else None
    found = model.resolve()
    asked = _load(found, load, engines)
    answer = _answer(found, asked, load.engine)
    if draft is not None:
        answer = _with_draft(answer, draft, asked, load.engine)
    view = _view(found, asked, answer, output)
    if budget is not None:
        view = _with_memory(view, found, asked, load.engine, budget, output.si)
    for change in vs or ():
        view = _with_other(view, model, load, engines, change, answer, output.si)
    write(view, output.chosen)
    if most is not None and answer.kv_bytes > most:
        over = int(answer.kv_bytes) - most
        typer.echo(
            f"the cache takes {exact(int(answer.kv_bytes))} bytes, {exact(over)} more than --max {limit}", err=True
        )
        raise typer.Exit(1)


def _count(flag: str, text: str, name: str) -> Dim:
    value = parse_count(text)
    if value < 1:
        raise InputError(f"{flag} is {text}; it must be at least 1")
    if value >= 2**40:
        raise InputError(f"{flag} is {text}, more than any machine holds")
    return Dim(value, name)


def _load(found: Model, options: LoadOptions, engines: EngineOptions) -> Load:
    """The load that was asked for, with the model's own dtype and longest context where nothing was said."""
    if options.tp < 1:
        raise InputError(f"--tp is {options.tp}; it must be at least 1")
    if min(engines.batched_tokens, engines.in_flight, engines.ubatch, engines.block_size or 1) < 1:
        raise InputError("--batched-tokens, --in-flight, --ubatch and --block-size must be at least 1")
    crosses = any(m.kind == "cross" and m.max_source is None for m in found.anatomy.mixers)
    context, source = _tokens(found, options, crosses)
    own = config_dtype(found.raw or {})
    own = own if own.block == 1 and own.size > 1 else dtype("bfloat16")
    keys, values = _kv_dtypes(options.kv_dtype, own)
    plain = keys.block == 1 and keys.size > 1
    return Load(
        context,
        _count("--batch", options.batch, "batch"),
        keys,
        values,
        keys if plain else own,
        _ssm_dtype(found, engines),
        source,
        options.tp,
        engines.static,
        engines.block_size,
        engines.batched_tokens,
        engines.in_flight,
        not engines.no_prefix_caching,
        engines.speculative,
        engines.ubatch,
        engines.unified,
        engines.swa_full,
        not engines.no_flash_attention,
    )


def _ssm_dtype(found: Model, engines: EngineOptions) -> DType | None:
    """The format of recurrent states under vLLM: by option, else by the config's own key."""
    raw = found.raw or {}
    inside = raw.get("text_config")
    named = engines.ssm_dtype or raw.get("mamba_ssm_dtype")
    named = named or (inside.get("mamba_ssm_dtype") if isinstance(inside, Mapping) else None)
    return dtype(named) if isinstance(named, str) else None


def _tokens(found: Model, options: LoadOptions, crosses: bool) -> tuple[Dim, Dim | None]:
    """Tokens of the sequence; for an encoder-decoder --ctx is the source, and half of it the answer."""
    if (options.prompt is None) != (options.new is None):
        raise InputError("--prompt and --new go together")
    if options.prompt is not None and options.new is not None:
        if options.ctx is not None:
            raise InputError("--ctx and --prompt/--new say the same thing twice")
        prompt, new = _count("--prompt", options.prompt, "prompt"), _count("--new", options.new, "new")
        return (new, prompt) if crosses else (Dim(prompt + new, "context"), None)
    if options.ctx is None:
        longest = found.longest_context
        if longest is None:
            raise InputError("the model names no longest context", hint="give one with --ctx")
        context = Dim(longest, "context")
    else:
        context = _count("--ctx", options.ctx, "context")
    return (Dim(max(int(context) // 2, 1), "context"), Dim(context, "source")) if crosses else (context, None)


def _kv_dtypes(text: str | None, own: DType) -> tuple[DType, DType]:
    if text is None:
        return own, own
    first, _, second = text.partition(",")
    return dtype(first.strip()), dtype((second or first).strip())


def _answer(found: Model, load: Load, engine: str) -> Cache:
    function, note = engine_for(engine)
    if not any(m.kind != "none" for m in found.anatomy.mixers):
        raise InputError(f"{found.name} ({found.anatomy.family}) is an encoder or keeps no cache between tokens")
    answer = function(found.anatomy, load)
    return replace(answer, notes=(*answer.notes, note)) if note else answer


def _with_draft(answer: Cache, draft: str, load: Load, engine: str) -> Cache:
    """The draft model's cache on top, at the same context: speculation keeps both."""
    from llmcalc.sources import resolve

    other = _answer(resolve(draft), load, engine)
    rows = (*answer.rows, *(replace(r, kind=f"draft {r.kind}") for r in other.rows))
    return replace(
        answer,
        rows=rows,
        kv_bytes=answer.kv_bytes + other.kv_bytes,
        per_token=answer.per_token + other.per_token,
        state_bytes=answer.state_bytes + other.state_bytes,
        notes=(*answer.notes, f"with the cache of the draft model {draft}"),
    )


def _view(found: Model, load: Load, answer: Cache, output: OutputOptions) -> View:
    """One row per rule, and the totals."""
    si = output.si
    rows: list[Mapping[str, Any]] = [_row_of(r) for r in answer.rows]
    columns = [
        Column("kind", "layers"),
        Column("layers", "n", exact, right=True),
        Column("tokens", "tokens", lambda n: "-" if n is None else exact(n), right=True),
        Column("formula", "formula"),
        Column("kv_bytes", "cache", lambda n: size(n, si=si), right=True),
        Column(
            "state_bytes", "state", lambda n: size(n, si=si) if n else "-", right=True, shown=bool(answer.state_bytes)
        ),
        Column("kv_bytes_per_token", "one more token", lambda n: exact(n) if n else "-", right=True),
    ]
    each = "" if load.batch == 1 else f", {exact(load.batch)} sequences"
    rank = "" if load.tp == 1 else f", one rank of {load.tp}"
    title = f"{found.name} ({found.anatomy.family}): {size(answer.kv_bytes, si=si)} of cache"
    title += f" at {exact(load.context)} tokens{each}{rank}"
    notes = [*found.notes, *found.anatomy.notes, *answer.notes, *_warnings(found, load, answer)]
    return View(
        "kvcache/1", title, columns, rows, _facts(found, load, answer, si), notes, describe(found), output.explain
    )


def _row_of(row: Row) -> dict[str, Any]:
    held = row.kv_bytes if row.kv_bytes else row.state_bytes
    return {
        "kind": row.kind,
        "layers": len(row.layers.indices),
        "tokens": None if row.tokens is None else int(row.tokens),
        "formula": held.formula if held else "reads another layer's" if row.kind == "shared" else "-",
        "kv_bytes": row.kv_bytes,
        "state_bytes": row.state_bytes,
        "kv_bytes_per_token": row.per_token,
    }


def _facts(found: Model, load: Load, answer: Cache, si: bool) -> list[Fact]:
    big = lambda n: f"{exact(n)} bytes ({size(n, si=si)})"  # noqa: E731
    mha = mha_bytes(found.anatomy, load)
    ratio = int(mha) / int(answer.kv_bytes) if answer.kv_bytes and mha else 0.0
    alone = load.tp == 1 and ratio > 1.005
    extra = [
        Fact(k, v, k.replace("_", " "), lambda n: exact(n) if isinstance(n, int) else str(n))
        for k, v in answer.facts.items()
    ]
    per_token = answer.per_token
    return [
        Fact("engine", answer.engine),
        Fact("kv_bytes", answer.kv_bytes, "cache", big),
        Fact("kv_bytes_per_token", per_token, "one more token adds", lambda n: f"{exact(n)} bytes"),
        Fact("state_bytes", answer.state_bytes, "states, whatever the length" if answer.state_bytes else None, big),
        Fact("context", int(load.context), "tokens per sequence", exact),
        Fact("source_tokens", None if load.source is None else int(load.source), "source tokens", exact),
        Fact("batch", int(load.batch), "sequences" if load.batch > 1 else None, exact),
        Fact("tokens_allocated", int(answer.tokens_allocated)),
        Fact(
            "kv_dtype",
            load.key_dtype.name
            if load.key_dtype == load.value_dtype
            else f"{load.key_dtype.name},{load.value_dtype.name}",
            "cache dtype",
        ),
        Fact(
            "mha_bytes",
            mha,
            "plain multi-head attention" if alone else None,
            lambda n: f"{size(n, si=si)}, {ratio:.4g} times as much",
        ),
        *extra,
        Fact("rules", answer.rules, "rules" if answer.engine != "formula" else None),
    ]


def _warnings(found: Model, load: Load, answer: Cache) -> list[str]:
    """What a user should know before trusting the number for their case."""
    longest = found.longest_context
    said = []
    if longest is not None and (load.source or load.context) > longest:
        said.append(f"{exact(load.context)} tokens are beyond the model's own {exact(longest)}: computed all the same")
    if load.source is not None:
        said.append(
            f"{exact(load.source)} tokens of the source and {exact(load.context)} of the answer (--prompt, --new)"
        )
    if "pool_bytes_per_token" in answer.facts and answer.facts["pool_bytes_per_token"] != int(answer.per_token):
        said.append(
            f"{exact(int(answer.per_token))} bytes are what one more token adds; vLLM's pool charges "
            f"{exact(int(answer.facts['pool_bytes_per_token']))} per token while every group of layers still grows"
        )
    if load.key_dtype.name.startswith("float8") or load.key_dtype.name in ("int8", "int4"):
        said.append(f"{load.key_dtype.name}: scales per tensor or head are not counted (a few bytes per layer)")
    return said


def _with_memory(view: View, found: Model, load: Load, engine: str, memory: int, si: bool) -> View:
    """The other way round: the longest context, the largest batch, and a grid of both."""
    function, _ = engine_for(engine)
    context = largest_context(found.anatomy, function, load, memory)
    batch = largest_batch(found.anatomy, function, load, memory)
    shown = lambda n: "without limit" if n is None else exact(n)  # noqa: E731
    grid = _grid(found, load, engine, memory)
    facts = [
        *view.facts,
        Fact("memory_bytes", memory, "memory for the cache alone", lambda n: f"{size(n, si=si)} ({exact(n)} bytes)"),
        Fact("max_context", context, f"longest context, {exact(load.batch)} at a time", shown),
        Fact("max_batch", batch, f"most sequences of {exact(load.context)}", shown),
        Fact(
            "grid",
            grid,
            "fits",
            lambda g: "; ".join(f"{exact(r['context'])}: {exact(r['max_batch'])}" for r in g) + " sequences",
        ),
    ]
    notes = [*view.notes, "the cache alone: weights and working memory need room too"]
    return replace(view, facts=facts, notes=notes)


def _grid(found: Model, load: Load, engine: str, memory: int) -> list[dict[str, int]]:
    """How many sequences fit at a few contexts up to the model's longest."""
    function, _ = engine_for(engine)
    longest = found.longest_context or int(load.context)
    steps = sorted({max(longest >> shift, 1) for shift in range(6)})
    rows = []
    for context in steps:
        fits = largest_batch(found.anatomy, function, replace(load, context=Dim(context, "context")), memory)
        rows.append({"context": context, "max_batch": -1 if fits is None else fits})
    return rows


_VS = {"engine": "engine", "kv-dtype": "kv_dtype", "ctx": "ctx", "batch": "batch", "tp": "tp"}


def _with_other(
    view: View, model: ModelOptions, load: LoadOptions, engines: EngineOptions, change: str, first: Cache, si: bool
) -> View:
    """The same question with one setting changed: its bytes, the ratio, and the layers that moved."""
    key, equals, value = change.partition("=")
    if not equals:
        raise InputError(f"--vs {change!r} is not key=value", hint="for example --vs engine=vllm or --vs kv-heads=32")
    if key in _VS:
        number: Any = int(value) if key == "tp" and value.isdigit() else value
        load = replace(load, **{_VS[key]: number})
    else:
        name = {"kv-heads": "n_kv_heads", "heads": "n_heads", "layers": "n_layers"}.get(key, key.replace("-", "_"))
        model = replace(model, override=[*(model.override or ()), f"{name}={value}"])
    found = model.resolve()
    other = _answer(found, _load(found, load, engines), load.engine)
    ratio = int(other.kv_bytes) / int(first.kv_bytes) if first.kv_bytes else 0.0
    moved = _moved(first, other)
    label = f"with {change}"
    return replace(
        view,
        facts=[
            *view.facts,
            Fact(
                "vs_bytes", other.kv_bytes, label, lambda n: f"{exact(n)} bytes ({size(n, si=si)}), {ratio:.4g} times"
            ),
            Fact("vs_ratio", ratio),
            Fact("vs_moved", moved, "what moved" if moved else None, lambda rows: "; ".join(rows)),
        ],
    )


def _moved(first: Cache, other: Cache) -> list[str]:
    """The rows whose bytes differ, each with both formulas."""
    said = []
    for a, b in zip(first.rows, other.rows, strict=False):
        left, right = a.kv_bytes + a.state_bytes, b.kv_bytes + b.state_bytes
        if int(left) != int(right):
            said.append(f"{a.kind}: {left.formula} = {exact(left)} became {right.formula} = {exact(right)}")
    return said
