"""``llmcalc speed``: how fast it can go at most, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load
from llmcalc.cli.options.model import ModelOptions, OutputOptions, bytes_in, count_in, takes
from llmcalc.cli.options.run import RunOnBeside
from llmcalc.cli.options.weights import WEIGHTS_HELP
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.devices import find
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.element import find_dtype
from llmcalc.questions.load import beyond
from llmcalc.questions.load import size as size_of
from llmcalc.questions.speed import Ask, Peaks, Step, ask_for, decode, peaks_of, prefill, ridge
from llmcalc.sources import Model
from llmcalc.units import both, count, exact, plural, several, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class SpeedOptions:
    """On what, in which form, how much of the peaks."""

    device: Annotated[
        str | None, typer.Option("--device", help="A device by name (llmcalc list devices).")
    ] = None
    weights: Annotated[str | None, typer.Option("--weights", help=WEIGHTS_HELP)] = None
    flops: Annotated[
        str | None, typer.Option("--flop-rate", help="Peak FLOP/s instead: 989T.", metavar="N")
    ] = None
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", help="Bytes per second instead: 3.35TB.", metavar="SIZE"),
    ] = None
    link: Annotated[
        str | None,
        typer.Option("--link", help="Bytes per second between devices: 450GB.", metavar="SIZE"),
    ] = None
    compute_share: Annotated[
        float,
        typer.Option(
            "--compute-share", help="Share of the peak FLOP/s that is reached; 1 is the bound."
        ),
    ] = 1.0
    memory_share: Annotated[
        float,
        typer.Option(
            "--memory-share", help="Share of the bandwidth that is reached; 1 is the bound."
        ),
    ] = 1.0
    whole_head: Annotated[
        bool, typer.Option("--whole-head", help="With --tp: every device reads the whole head.")
    ] = False
    batches: Annotated[
        str | None, typer.Option("--batches", help="Batches to show: 1,8,64.", metavar="N,...")
    ] = None
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            "--measure",
            help="Run it on this machine, and show what part of the bound is reached.",
        ),
    ] = False
    run_on: RunOnBeside = "auto"


@takes
def speed(
    model: ModelOptions, load: LoadOptions, options: SpeedOptions, output: OutputOptions
) -> None:
    """The roofline: time to the first token and tokens per second at most, and what limits them.

    An engine's own words are read too: --max-model-len, -ngl (llmcalc list engines).

    \b
    llmcalc speed llama-3-8b --device h100 --ctx 8192
    llmcalc speed llama-3.1-70b --device h100 --tp 4 --ctx 4096 --batches 1,16,64
    llmcalc speed mixtral-8x7b --device rtx-4090 --weights int4
    """
    found = model.resolve()
    batches = _batches(options, load)
    asked = build_load(found, replace(load, batch="1"), EngineOptions())
    peaks, source = _peaks(options)
    ask = ask_for(
        found,
        load=asked,
        peaks=peaks,
        weights=options.weights,
        tp=load.tp,
        compute_share=options.compute_share,
        memory_share=options.memory_share,
        whole_head=options.whole_head,
    )
    steps = [_at(ask, b) for b in batches]
    view = _view(found, ask, steps, source, output)
    if options.live:
        view = replace(
            view, facts=[*view.facts, *_measured(found, steps, options, int(ask.load.context))]
        )
    write(view, output)


def _measured(
    model: Model, steps: Sequence[tuple[int, Step, Step]], options: SpeedOptions, context: int
) -> list[Fact]:
    """The first batch, really run: its seconds beside the bound's."""
    from llmcalc.cli.measured import need_live

    need_live()
    from llmcalc.live.load import load
    from llmcalc.live.pace import pace

    batch, first, one = steps[0]
    named = options.weights
    live = load(model, options.run_on, named if named and find_dtype(named) else None)
    prefill_s, step_s = pace(live, context, batch)

    def share(bound: float, s: float) -> str:
        return f"{1000 * s:.3f} ms, {100 * bound / s:.1f} % of the bound"

    return [
        Fact(
            "measured_on",
            str(live.device),
            "measured on",
            lambda d: f"{d}, {batch} x {exact(context)} tokens",
        ),
        Fact("measured_first_token_s", prefill_s, "first token", lambda s: share(first.seconds, s)),
        Fact("measured_step_s", step_s, "one step", lambda s: share(one.seconds, s)),
        Fact(
            "measured_tokens_per_second", batch / step_s, "tokens/s in all", lambda x: f"{x:,.1f}"
        ),
        Fact("reached", one.seconds / step_s),
    ]


def _at(ask: Ask, batch: int) -> tuple[int, Step, Step]:
    sized = replace(ask, load=replace(ask.load, batch=Dim(batch, "batch")))
    return batch, prefill(sized), decode(sized)


def _batches(options: SpeedOptions, load: LoadOptions) -> list[int]:
    if options.batches is None:
        only = int(size_of("--batch", count_in("--batch", load.batch), "batch"))
        return [only] if only != 1 else list(BATCHES)
    found = [count_in("--batches", word) for word in options.batches.split(",")]
    if not found or any(not 1 <= b <= 2**20 for b in found):
        raise InputError(f"--batches is {options.batches}; they must be from 1 to 2^20")
    return found


def _rate(text: str | None, flag: str) -> float | None:
    if text is None:
        return None
    value = float(bytes_in(flag, text))
    if value <= 0:
        raise InputError(f"{flag} is {text}; it must be above zero")
    return value


def _peaks(options: SpeedOptions) -> tuple[Peaks, str]:
    """What the device can do at most, and where that is from."""
    device = find(options.device) if options.device is not None else None
    flops = count_in("--flop-rate", options.flops) if options.flops is not None else None
    peaks = peaks_of(
        device,
        flop_per_s=flops,
        bytes_per_s=_rate(options.bandwidth, "--bandwidth"),
        link_bytes_per_s=_rate(options.link, "--link"),
    )
    return peaks, "the rates given" if device is None else f"{device.name}: {device.source}"


def _columns(si: bool) -> list[Column]:
    ms = lambda s: f"{1000 * s:.3f} ms" if s < 1 else f"{s:.3f} s"  # noqa: E731
    return [
        Column("batch", "sequences", exact, right=True),
        Column("first_token_s", "first token", ms, right=True),
        Column("prefill_limit", "limited by"),
        Column("step_s", "one token each", ms, right=True),
        Column("tokens_per_second", "tokens/s each", lambda x: f"{x:.1f}", right=True),
        Column("tokens_per_second_all", "tokens/s in all", lambda x: f"{x:,.1f}", right=True),
        Column("limit", "limited by"),
        Column("intensity", "FLOP/byte", lambda x: f"{x:.2f}", right=True),
        Column("weight_bytes", "weights read", lambda n: size(n, si=si), right=True),
        Column("kv_bytes", "cache read", lambda n: size(n, si=si), right=True),
        *(Column(key, key, shown=False) for key in ("flop", "link_bytes", "prefill_flop")),
    ]


def _view(
    model: Model,
    ask: Ask,
    steps: Sequence[tuple[int, Step, Step]],
    source: str,
    output: OutputOptions,
) -> View:
    rows: list[dict[str, Any]] = [
        {
            "batch": batch,
            "first_token_s": first.seconds,
            "prefill_limit": first.limit,
            "step_s": one.seconds,
            "tokens_per_second": 1 / one.seconds,
            "tokens_per_second_all": batch / one.seconds,
            "limit": one.limit,
            "intensity": one.intensity,
            "flop": one.flop,
            "weight_bytes": one.weight_bytes,
            "kv_bytes": one.kv_bytes,
            "link_bytes": one.link_bytes,
            "prefill_flop": first.flop,
        }
        for batch, first, one in steps
    ]
    one = steps[0][2]
    facts = [
        Fact("context", int(ask.load.context), "tokens per sequence", exact),
        Fact("weights", ask.weights.name, "weights in"),
        Fact("flop_rate", ask.peaks.flop_per_s, "peak FLOP/s", lambda x: count(int(x))),
        Fact(
            "bandwidth", ask.peaks.bytes_per_s, "bandwidth", lambda x: f"{size(int(x), si=True)}/s"
        ),
        Fact(
            "ridge", ridge(ask.peaks), "arithmetic limits from", lambda x: f"{x:.1f} FLOP/byte on"
        ),
        Fact("decode_flop", one.flop * ask.tp // steps[0][0], "FLOP per new token", both),
        Fact("tp", ask.tp, "devices" if ask.tp > 1 else None),
        Fact("compute_share", ask.compute_share),
        Fact("memory_share", ask.memory_share),
    ]
    notes = [*model.notes, *model.anatomy.notes, *beyond(model, int(ask.load.context)), source]
    if ask.compute_share == ask.memory_share == 1:
        notes.append(
            "a bound: engines reach a part of it (in public measurements decoding 0.4 to 0.9 of the"
            " bandwidth, prefill about 0.67 of the FLOP/s); --memory-share and --compute-share say"
            " which part"
        )
    notes.append(
        "more tokens per second than this mean more than one token per pass over the weights"
        " (speculation)"
    )
    many = f"{steps[0][0]} {plural('sequence', steps[0][0])}"
    title = (
        f"{model.name} at {several(int(ask.load.context), 'token')}: at most {1 / one.seconds:,.1f}"
        f" tokens/s for {many}"
    )
    drawn = partial(_picture, title, ask, steps)
    columns, known = _columns(output.si), model.about
    return View(
        kind="speed/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=known,
        explain=output.explain,
        picture=drawn,
    )


def _picture(title: str, ask: Ask, steps: Sequence[tuple[int, Step, Step]]) -> Picture:
    """Prefill and one decoded token of every batch, under the roof of one device."""
    from llmcalc.cli.output import pictures as answers

    points = [
        (
            f"{n} at a time, one token: {n / one.seconds:,.1f} tokens/s",
            one.intensity,
            one.flop / one.seconds,
        )
        for n, _, one in steps
    ]
    first = steps[0][1]
    points.append(
        (f"prefill: {1000 * first.seconds:,.1f} ms", first.intensity, first.flop / first.seconds)
    )
    return answers.roofline(title, ask.peaks.flop_per_s, ask.peaks.bytes_per_s, points)
