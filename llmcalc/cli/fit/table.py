"""How ``fit`` shows its answer: parts and memory, a bar, the ways that fit.

Or the layers of a partial offload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from llmcalc.cli.options.model import OutputOptions
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.devices import Device
from llmcalc.engines import choose
from llmcalc.engines.base import Part, counted
from llmcalc.engines.vllm.printed import blocks_in, concurrency
from llmcalc.errors import InputError
from llmcalc.formats.stored import Checkpoint, Packed, stored
from llmcalc.questions.fit import Ask, Plan, fit, printed_tokens
from llmcalc.questions.load import beyond
from llmcalc.questions.offload import (
    Split,
    cache_by_layer,
    header_weights,
    layer_weights,
    most_layers,
    split,
)
from llmcalc.questions.weights import stays_wide
from llmcalc.questions.what_fits import Change, changes_that_fit, degrees
from llmcalc.sources import Model
from llmcalc.units import exact, plural, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture

VERDICTS = {"yes": "fits", "no": "does not fit", "unsure": "is too close to call"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the question is about, as the user named it."""

    model: Model
    device: Device
    count: int
    ask: Ask


def plan_view(s: Subject, answer: Plan, output: OutputOptions) -> View:
    """Parts of one device, the memory, the verdict, and what would fit."""
    si, load = output.si, s.ask.load
    why = (
        f"{exact(load.batch)} x {exact(load.context)} {plural('token', load.context)},"
        f" {answer.cache.rules}"
    )
    if not answer.known:
        return _weights_view(s, answer, output)
    parts = [*answer.parts, counted("cache", answer.cache.kv_bytes, why)]
    title = (
        f"{s.model.name} on {s.count} x {s.device.name}, {s.ask.engine}: {VERDICTS[answer.verdict]}"
    )
    layers = s.ask.anatomy.n_layers
    shares = degrees(s.ask, layers)
    facts = [
        Fact("fits", answer.verdict == "yes"),
        Fact("verdict", answer.verdict),
        *_asked(s),
        *_memory(s, answer, si),
        *_pool(s, answer),
        *_changes(s, changes_that_fit(s.ask, layers), si),
        Fact("degrees", {kind: list(found) for kind, found in shares.items()}),
        Fact(
            "degree_bytes",
            shares,
            "weights of the fullest device, by degree",
            lambda f: _degrees(f, si),
        ),
    ]
    notes = [*s.model.notes, *s.model.anatomy.notes, *answer.notes, *_notes(s)]
    drawn = partial(_picture, title, [("device", parts)], answer.usable, si)
    rows, model = _rows(parts), s.model.about
    return View(
        kind="fit/1",
        title=title,
        columns=_columns(si),
        rows=rows,
        facts=facts,
        notes=notes,
        model=model,
        explain=output.explain,
        picture=drawn,
    )


def _weights_view(s: Subject, answer: Plan, output: OutputOptions) -> View:
    """The answer where nothing is known beside the weights: whether these alone fit."""
    si, shown = output.si, partial(size, si=output.si)
    said = "do not fit" if answer.verdict == "no" else "fit, and what comes on top is not known"
    free = answer.pool
    facts = [
        Fact("fits", False if answer.verdict == "no" else None),
        Fact("verdict", answer.verdict),
        *_asked(s),
        Fact("usable_bytes", answer.usable, "usable", shown),
        Fact("weights_bytes", answer.parts[0].n_bytes),
        Fact("free_bytes", free, "left over" if free >= 0 else "missing", lambda n: shown(abs(n))),
    ]
    return View(
        kind="fit/1",
        title=f"{s.model.name} on {s.count} x {s.device.name}: the weights alone {said}",
        columns=_columns(si),
        rows=_rows(list(answer.parts)),
        facts=facts,
        notes=[*s.model.notes, *answer.notes],
        model=s.model.about,
        explain=output.explain,
    )


def _picture(title: str, bars: list[tuple[str, list[Part]]], usable: int, si: bool) -> Picture:
    from llmcalc.cli.output import pictures as answers

    shown = [(place, [(p.name, int(p.n_bytes)) for p in parts]) for place, parts in bars]
    return answers.places(title, shown, ("usable", usable), si)


def _asked(s: Subject) -> list[Fact]:
    """The question, for a script that reads the answer."""
    ask, pp = s.ask, "" if s.ask.pp == 1 else f", {s.ask.pp} stages of {s.ask.tp}"
    return [
        Fact("engine", ask.engine),
        Fact("device", s.device.name),
        Fact("count", s.count, "devices" if pp else None, lambda n: f"{n}{pp}"),
        Fact("tp", ask.tp),
        Fact("pp", ask.pp),
        Fact("context", int(ask.load.context)),
        Fact("batch", int(ask.load.batch)),
        Fact("weights", ask.weights.name),
        Fact("utilization", ask.utilization),
    ]


def _memory(s: Subject, answer: Plan, si: bool) -> list[Fact]:
    """The device's memory, and what is left of it at each step."""
    rank = "" if s.count == 1 else f" (each of {s.count})"
    stages = "" if s.ask.pp == 1 else f", the fullest of {s.ask.pp} stages"
    shown = partial(size, si=si)
    known = "" if s.device.visible_known else " (not known: nominal)"
    free = answer.pool - answer.need
    part = s.ask.utilization
    share = f" ({part:g} of it)" if answer.share == 1 else f", {part:g} of what is left of it"
    span = f"{shown(answer.pool_low)} to {shown(answer.pool_high)}"
    return [
        Fact("device_memory_bytes", s.device.memory_bytes, "memory, nominal", shown),
        Fact(
            "visible_bytes", s.device.visible_bytes, "memory, visible", lambda n: shown(n) + known
        ),
        Fact("usable_bytes", answer.usable, f"usable{rank}", lambda n: shown(n) + share),
        Fact(
            "pool_bytes",
            answer.pool,
            "left for the cache",
            lambda n: f"{shown(n)} ({span}){stages}",
        ),
        Fact("pool_low_bytes", answer.pool_low),
        Fact("pool_high_bytes", answer.pool_high),
        Fact("kv_bytes", answer.cache.kv_bytes, "cache needed", shown),
        Fact("free_bytes", free, "left over" if free >= 0 else "missing", lambda n: shown(abs(n))),
        Fact("bar", _bar(answer), "of the usable", str),
    ]


def _bar(answer: Plan, width: int = 50) -> str:
    """Weights, working memory, cache and what is free, as a bar of the usable memory."""
    rest = sum(p.n_bytes for p in answer.parts[1:])
    shares = (answer.parts[0].n_bytes, rest, answer.need)
    cells = [round(width * n / answer.usable) if answer.usable else 0 for n in shares]
    bar = "█" * cells[0] + "▓" * cells[1] + "▒" * cells[2]
    end = "!" if answer.need > answer.pool else "]"
    return f"[{bar[:width]}{'░' * (width - len(bar))}{end}\n █ weights  ▓ working  ▒ cache  ░ free"


def _pool(s: Subject, answer: Plan) -> list[Fact]:
    """What vLLM prints of its pool."""
    pool = max(answer.pool, 0)
    many = concurrency(pool, answer.cache)
    if many is None:
        return []
    context = int(s.ask.load.context)
    tokens = printed_tokens(choose(s.ask.engine), pool, answer.cache, context)
    return [
        Fact("pool_blocks", blocks_in(pool, answer.cache), "blocks in the pool", exact),
        Fact("pool_tokens", tokens, "tokens in the pool", exact),
        Fact(
            "max_concurrency",
            round(many, 2),
            f"sequences of {exact(context)}",
            lambda x: f"{x:.2f}",
        ),
    ]


_SAID = {
    "devices": "devices: {}",
    "context": "longest context: {}",
    "concurrency": "most sequences, for sure: {}",
}


def _changes(s: Subject, found: list[Change], si: bool) -> list[Fact]:
    """The ways in their order, each with what it leaves."""
    own_context = s.model.longest_context
    names = _SAID if s.ask.load.source is None else {**_SAID, "context": "longest answer: {}"}

    def said(way: Change) -> str:
        value = exact(way.value) if isinstance(way.value, int) else way.value or "without limit"
        if (
            way.change == "context"
            and own_context
            and (way.value is None or int(way.value) > own_context)
        ):
            value += f", beyond the model's own {exact(own_context)}"
        how = f", {way.how}" if way.how else ""
        return (
            f"{names.get(way.change, '{}').format(value)}{how} ({size(way.left, si=si)} left over)"
        )

    rows = [
        {"change": w.change, "value": w.value, "how": w.how or None, "left_bytes": w.left}
        for w in found
    ]
    by = {w.change: w.value for w in reversed(found)}
    return [
        Fact("min_count", by.get("devices")),
        Fact("max_context", by.get("context", 0)),
        Fact("max_sequences", by.get("concurrency", 0)),
        Fact(
            "ways",
            rows,
            "what fits",
            lambda _: "\n".join(map(said, found)) or "no single change that is known",
        ),
    ]


def _degrees(found: Mapping[str, Mapping[int, int]], si: bool) -> str:
    return "\n".join(
        f"{kind} " + ", ".join(f"{degree}: {size(n, si=si)}" for degree, n in shares.items())
        for kind, shares in found.items()
    )


def _notes(s: Subject) -> list[str]:
    said = [
        "weights and cache are exact; a range marks an estimate",
        f"{s.device.name}: {s.device.source}",
    ]
    said += beyond(s.model, int(s.ask.load.context))
    wide = stays_wide(s.ask.weights)
    if wide is not None:
        said.append(wide)
    if s.device.unified:
        said.append("unified memory: programs and the system share it")
    return said


def _columns(si: bool) -> list[Column]:
    shown = partial(size, si=si)
    return [
        Column("part", "per device"),
        Column("bytes", "bytes", lambda n: size(n, si=si), right=True),
        Column("low", "at least", shown, right=True),
        Column("high", "at most", shown, right=True),
        Column("exact", "exact", shown=False),
        Column("why", "why"),
    ]


def _rows(parts: list[Part]) -> list[Mapping[str, Any]]:
    return [
        {
            "part": p.name,
            "bytes": p.n_bytes,
            "low": p.low,
            "high": p.high,
            "exact": p.exact,
            "why": p.why,
        }
        for p in parts
    ]


def offload_view(
    s: Subject, gpu_layers: int | None, host: int | None, output: OutputOptions
) -> tuple[View, bool]:
    """llama.cpp: the layers that were asked for on the device, or as many as fit, the rest in main
    memory, of ``host`` bytes where they are given.
    """
    answer, weights = fit(s.ask), _per_layer(s)
    cache = cache_by_layer(answer.cache)
    least, worst = sum(p.low for p in answer.parts[1:]), sum(p.high for p in answer.parts[1:])
    most = most_layers(weights, cache, answer.usable, worst)
    if gpu_layers is not None and gpu_layers < 0:
        raise InputError(f"--gpu-layers is {gpu_layers}; it must not be negative")
    n_layers, chosen = len(weights[0]), most if gpu_layers is None else gpu_layers
    held = split(weights, cache, chosen)
    on_device = held.device_weights + held.device_cache
    verdict = (
        "yes"
        if on_device + worst <= answer.usable
        else "no"
        if on_device + least > answer.usable
        else "unsure"
    )
    in_host = held.host_weights + held.host_cache
    is_short = host is not None and in_host > host
    verdict = "no" if is_short else verdict
    fits = verdict == "yes" and (gpu_layers is not None or most > n_layers)
    word = (
        "fits in part"
        if verdict == "yes" and most and not fits
        else VERDICTS["yes" if fits else verdict]
    )
    if is_short or (not fits and not most and gpu_layers is None):
        word = "does not fit"
    shown = partial(size, si=output.si)
    facts = [
        Fact("fits", fits),
        Fact(
            "verdict",
            (
                "yes"
                if fits
                else "in part"
                if word == "fits in part"
                else "no"
                if most == 0
                else verdict
            ),
        ),
        *_asked(s),
        Fact("device_memory_bytes", s.device.memory_bytes),
        Fact("visible_bytes", s.device.visible_bytes),
        Fact("usable_bytes", answer.usable, "usable", shown),
        Fact("device_bytes", on_device, "weights and cache on the device", shown),
        Fact("host_bytes", in_host, "in main memory", lambda n: shown(n) + _of(host, shown)),
        Fact("host_memory_bytes", host),
        Fact("kv_bytes", answer.cache.kv_bytes, "cache in all", shown),
        Fact(
            "gpu_layers",
            chosen,
            "layers on the device",
            lambda n: f"{n} of {n_layers + 1}, the output first",
        ),
        Fact("max_gpu_layers", most, "most that fit for sure", exact),
    ]
    title = f"{s.model.name} on {s.device.name}, {s.ask.engine}: {word}"
    notes = [*s.model.notes, *answer.notes, *_notes(s)]
    parts = _places(held, answer, n_layers)
    here, there = (
        [p for p in parts if "main memory" not in p.name],
        [p for p in parts if "main memory" in p.name],
    )
    drawn = partial(
        _picture, title, [("device", here), ("main memory", there)], answer.usable, output.si
    )
    columns, rows = _columns(output.si), _rows(parts)
    view = View(
        kind="fit/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=s.model.about,
        explain=output.explain,
        picture=drawn,
    )
    return view, fits


def _of(host: int | None, shown: Callable[[int], str]) -> str:
    return "" if host is None else f" of {shown(host)}"


def _places(held: Split, answer: Plan, n_layers: int) -> list[Part]:
    """What lies on the device and what in main memory."""
    layers = (
        f"{max(held.layers - 1, 0)} of {n_layers} layers{' and the output' if held.layers else ''}"
    )
    return [
        counted("weights, device", held.device_weights, layers),
        counted("cache, device", held.device_cache, answer.cache.rules),
        *answer.parts[1:],
        counted("weights, main memory", held.host_weights, "input table, and what stays"),
        counted("cache, main memory", held.host_cache, "of the layers that stay"),
    ]


def _per_layer(s: Subject) -> tuple[dict[int, int], int, int]:
    """Bytes per layer: from a GGUF's own table, else every tensor in its format."""
    header = s.model.header
    if header is not None and isinstance(s.ask.weights, Checkpoint):
        return header_weights({name: tensor.n_bytes for name, tensor in header.tensors.items()})
    if isinstance(s.ask.weights, Packed):
        raise InputError(
            f"how {s.ask.weights.name} is offloaded is not known",
            hint="--weights q8_0, q4_k_m, or a .gguf file",
        )
    return layer_weights(stored(s.ask.anatomy, s.ask.weights))
