"""``llmcalc kvcache``: what the cache takes, per engine.

How much context or how many sequences fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.kvcache.compare import compared, with_changes, with_draft, with_memory
from llmcalc.cli.measured import MeasureOptions, cache_measured
from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load
from llmcalc.cli.options.model import (
    ModelOptions,
    OutputOptions,
    PredictOptions,
    bytes_if_given,
    takes,
)
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.dims import Dim
from llmcalc.engines import choose
from llmcalc.engines.cache import Cache, Load, Row
from llmcalc.errors import InputError
from llmcalc.formats.element import CACHE_DTYPES
from llmcalc.questions.kvcache import kvcache as cache_of
from llmcalc.questions.kvcache import mha_bytes, scale_bytes
from llmcalc.questions.load import beyond, default_dtype
from llmcalc.sources import Model
from llmcalc.units import exact, plural, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture


@takes
def kvcache(
    model: ModelOptions,
    load: LoadOptions,
    engines: EngineOptions,
    predict: PredictOptions,
    output: OutputOptions,
    measure: MeasureOptions,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="How much context or how many sequences fit: 80GB, 24GiB."),
    ] = None,
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs",
            help="Compare with a change: engine=vllm, kv-dtype=fp8, kv-heads=32.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", help="A draft model whose cache comes on top.", metavar="MODEL"),
    ] = None,
    limit: Annotated[
        str | None, typer.Option("--max", help="Exit 1 if the cache takes more: 8GiB.")
    ] = None,
) -> None:
    """The cache of keys, values and states: bytes, layer by layer, per engine.

    An engine's own words are read too: --max-model-len, -ngl (llmcalc list engines).

    \b
    llmcalc kvcache --model llama-3-8b --ctx 8192
    llmcalc kvcache gpt-oss-120b --ctx 131072 --engine vllm
    llmcalc kvcache gemma-3-27b --memory 24GiB
    llmcalc kvcache llama-3-8b --ctx 8192 --vs engine=vllm
    """
    measure.check()
    most = bytes_if_given("--max", limit)
    budget = bytes_if_given("--memory", memory)
    engines.settings.check(load.engine)
    found = predict.of(model.resolve(cache_only=True))
    asked = build_load(found, load, engines)
    answer = alone = cache_of(found.anatomy, load=asked, engine=load.engine)
    if draft is not None:
        answer = with_draft(answer, draft, asked, load.engine)
    view = _view(found, asked, answer, output)
    view = replace(view, picture=partial(_growth, view.title, found, asked, load.engine, output.si))
    if load.kv_dtype is None and (why := default_dtype(found, load.engine)[1]):
        view = replace(view, notes=[*view.notes, why])
    if budget is not None:
        view = with_memory(view, found, asked, load.engine, budget, output.si)
    if vs:
        view = with_changes(view, compared(model, load, engines, vs, alone), output.si)
    wrong = 0
    if measure.live:
        if draft is not None:
            raise InputError("--live allocates one model's cache: it does not go with --draft")
        view, wrong = cache_measured(view, found, asked, load.engine, measure)
    write(view, output)
    if wrong:
        raise typer.Exit(1)
    _stay_below(int(answer.kv_bytes), most)


def _growth(title: str, found: Model, load: Load, engine: str, si: bool) -> Picture:
    from llmcalc.cli.output import pictures as answers

    mha = (
        int(mha_bytes(found.anatomy, load))
        if load.key_dtype.name not in CACHE_DTYPES and load.tp == 1
        else 0
    )
    longest = found.longest_context or int(load.context)
    return answers.cache_growth(
        title, choose(engine).rules.cache, found.anatomy, load, longest, mha, si
    )


def _stay_below(n_bytes: int, most: int | None) -> None:
    """Exit 1 where the cache takes more than ``--max``."""
    if most is not None and n_bytes > most:
        typer.echo(
            f"the cache takes {exact(n_bytes)} bytes, {exact(n_bytes - most)} more than --max",
            err=True,
        )
        raise typer.Exit(1)


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
            "state_bytes",
            "state",
            lambda n: size(n, si=si) if n else "-",
            right=True,
            shown=bool(answer.state_bytes),
        ),
        Column(
            "kv_bytes_per_token", "one more token", lambda n: exact(n) if n else "-", right=True
        ),
    ]
    each = "" if load.batch == 1 else f", {exact(load.batch)} sequences"
    rank = "" if load.tp == 1 else f", one rank of {load.tp}"
    title = f"{found.name} ({found.anatomy.family}): {size(answer.kv_bytes, si=si)} of cache"
    if load.source is None:
        title += f" at {exact(load.context)} {plural('token', load.context)}{each}{rank}"
    else:
        title += (
            f" at {exact(load.source)} source and {exact(load.context)} answer tokens{each}{rank}"
        )
    notes = [*found.notes, *found.anatomy.notes, *answer.notes, *_warnings(found, load, answer)]
    return View(
        kind="kvcache/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=_facts(found, load, answer, si),
        notes=notes,
        model=found.about,
        explain=output.explain,
    )


def _row_of(row: Row) -> dict[str, Any]:
    held = row.kv_bytes if row.kv_bytes else row.state_bytes
    return {
        "kind": row.kind,
        "layers": len(row.layers.indices),
        "tokens": None if row.tokens is None else int(row.tokens),
        "formula": (
            held.formula if held else "reads another layer's" if row.kind == "shared" else "-"
        ),
        "kv_bytes": row.kv_bytes,
        "state_bytes": row.state_bytes,
        "kv_bytes_per_token": row.per_token,
    }


def _facts(found: Model, load: Load, answer: Cache, si: bool) -> list[Fact]:
    big = lambda n: f"{exact(n)} bytes ({size(n, si=si)})"  # noqa: E731
    comparable = load.key_dtype.name not in CACHE_DTYPES and not any(
        r.kind.startswith("draft ") for r in answer.rows
    )
    mha = mha_bytes(found.anatomy, load) if comparable else Dim(0)
    ratio = int(mha) / int(answer.kv_bytes) if answer.kv_bytes and mha else 0.0
    alone = load.tp == 1 and ratio > 1.005
    extra = [
        Fact(k, v, k.replace("_", " "), lambda n: exact(n) if isinstance(n, int) else str(n))
        for k, v in answer.facts.items()
    ]
    per_token = answer.per_token
    scales = scale_bytes(found.anatomy, load)
    return [
        Fact("engine", answer.engine),
        Fact("kv_bytes", answer.kv_bytes, "cache", big),
        Fact("kv_bytes_per_token", per_token, "one more token adds", lambda n: f"{exact(n)} bytes"),
        Fact(
            "state_bytes",
            answer.state_bytes,
            "states, whatever the length" if answer.state_bytes else None,
            big,
        ),
        Fact("context", int(load.context), "tokens per sequence", exact),
        Fact(
            "source_tokens",
            None if load.source is None else int(load.source),
            "source tokens",
            exact,
        ),
        Fact("batch", int(load.batch), "sequences" if load.batch > 1 else None, exact),
        Fact("tokens_allocated", int(answer.tokens_allocated)),
        Fact(
            "kv_dtype",
            (
                load.key_dtype.name
                if load.key_dtype == load.value_dtype
                else f"{load.key_dtype.name},{load.value_dtype.name}"
            ),
            "cache dtype",
        ),
        Fact(
            "mha_bytes",
            mha,
            "plain multi-head attention" if alone else None,
            lambda n: f"{size(n, si=si)}, {ratio:.4g} times as much",
        ),
        Fact(
            "kv_scale_bytes",
            scales,
            "its scales, beside it" if scales else None,
            lambda n: f"{exact(n)} bytes",
        ),
        *extra,
        Fact("rules", answer.rules, "rules" if answer.engine != "formula" else None),
    ]


def _warnings(found: Model, load: Load, answer: Cache) -> list[str]:
    """What a user should know before trusting the number for their case."""
    said = beyond(found, int(load.source or load.context))
    if load.source is not None:
        said.append(
            f"{exact(load.source)} tokens of the source and {exact(load.context)} of the answer"
            " (--prompt, --new)"
        )
    if "pool_bytes_per_token" in answer.facts and answer.facts["pool_bytes_per_token"] != int(
        answer.per_token
    ):
        said.append(
            f"{exact(int(answer.per_token))} bytes are what one more token adds; vLLM's pool"
            f" charges {exact(int(answer.facts['pool_bytes_per_token']))} per token while every"
            " group of layers still grows"
        )
    if load.key_dtype.name.startswith("float8"):
        said.append(
            f"{load.key_dtype.name}: one float32 scale for keys and one for values per layer, as"
            " vLLM has them, lie beside the weights and not in the cache"
        )
    if load.key_dtype.name in ("int8", "int4"):
        said.append(
            f"{load.key_dtype.name}: the scales that go with integers are not counted, and no"
            " engine here keeps them in this format (q8_0 and q4_0 are llama.cpp's, scales"
            " included)"
        )
    if any(r.kind == "cross" and not r.kv_bytes for r in answer.rows):
        said.append("the cross-attention layers hold nothing: the text alone, without an image")
    return said
