"""``llmcalc train``: what training takes on every rank, what moves between them, and what a run
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.options.model import ModelOptions, OutputOptions, bytes_in, count_in, takes
from llmcalc.cli.options.run import RunOnBeside
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.devices import Device, find
from llmcalc.errors import InputError, UnavailableError
from llmcalc.formats.element import dtype
from llmcalc.formats.stored import named
from llmcalc.questions import flops
from llmcalc.questions.communication import traffic
from llmcalc.questions.load import beyond
from llmcalc.questions.recipe import OPTIMIZERS, PROFILES, Recipe
from llmcalc.questions.training import Peak, Training, train
from llmcalc.sources import Model
from llmcalc.text import shorten
from llmcalc.units import both, count, exact, size

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture

PRECISIONS = {"bf16-mixed": "accelerate", "bf16": "bf16", "fp32": "fp32"}


@dataclass(frozen=True)
class RecipeOptions:
    """How it is trained."""

    tokens: Annotated[str, typer.Option("--tokens", help="Tokens per sequence.", metavar="N")] = (
        "2048"
    )
    micro_batch: Annotated[
        str, typer.Option("--micro-batch", help="Sequences per rank and pass.", metavar="N")
    ] = "1"
    optimizer: Annotated[str, typer.Option("--optimizer", help=f"{', '.join(OPTIMIZERS)}.")] = (
        "adamw"
    )
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", help="bf16-mixed (autocast), bf16 (all of it) or fp32; or --like."
        ),
    ] = None
    like: Annotated[
        str | None, typer.Option("--like", help=f"A framework's convention: {', '.join(PROFILES)}.")
    ] = None
    zero: Annotated[int, typer.Option("--zero", help="ZeRO stage 0 to 3; 3 is FSDP.")] = 0
    dp: Annotated[int, typer.Option("--dp", help="Data-parallel ranks.")] = 1
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")] = 1
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages (1F1B).")] = 1
    cp: Annotated[int, typer.Option("--cp", help="Context-parallel ranks.")] = 1
    ep: Annotated[
        int, typer.Option("--ep", help="Expert-parallel ranks, among the data-parallel ones.")
    ] = 1
    interleave: Annotated[
        int, typer.Option("--interleave", help="Virtual stages per pipeline rank.")
    ] = 1
    micro_batches: Annotated[
        int, typer.Option("--micro-batches", help="Passes per step, accumulated.", min=1)
    ] = 1
    recompute: Annotated[str, typer.Option("--recompute", help="none, selective or full.")] = "none"
    no_sequence_parallel: Annotated[
        bool,
        typer.Option("--no-sequence-parallel", help="With --tp: norms and dropout on every rank."),
    ] = False
    eager: Annotated[
        bool, typer.Option("--eager", help="Attention whose scores are kept (not SDPA or Flash).")
    ] = False
    loss_chunks: Annotated[
        int, typer.Option("--loss-chunks", help="The loss in so many chunks.")
    ] = 1
    lora_rank: Annotated[
        int, typer.Option("--lora-rank", help="LoRA's rank: the base is frozen.")
    ] = 0
    lora_targets: Annotated[
        str, typer.Option("--lora-targets", help="q,k,v,o,gate,up,down,mlp,all.")
    ] = "q,k,v,o"
    dora: Annotated[
        bool, typer.Option("--dora", help="With --lora-rank: DoRA, a magnitude per output more.")
    ] = False
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="A quantised, frozen base (QLoRA): nf4, int4 ..."),
    ] = None
    offload: Annotated[
        bool, typer.Option("--offload", help="Optimizer and master copy in main memory.")
    ] = False


@dataclass(frozen=True)
class RunOptions:
    """The whole run."""

    device: Annotated[
        str | None, typer.Option("--device", help="A device by name, to fit into and to time.")
    ] = None
    train_tokens: Annotated[
        str | None,
        typer.Option("--train-tokens", help="Tokens of the whole run: 15T.", metavar="N"),
    ] = None
    achieved: Annotated[
        str | None,
        typer.Option("--achieved", help="FLOP/s that one device achieves: 400T.", metavar="N"),
    ] = None
    step_time: Annotated[
        float | None, typer.Option("--step-time", help="Seconds of a measured step: its MFU.")
    ] = None
    flop_convention: Annotated[
        str,
        typer.Option("--flop-convention", help="Attention: causal, full (PaLM) or none (6·N·D)."),
    ] = "causal"
    link: Annotated[
        str | None,
        typer.Option("--link", help="Bytes per second between ranks: 50GB.", metavar="SIZE"),
    ] = None
    rank_seconds: Annotated[
        str | None,
        typer.Option(
            "--rank-seconds",
            help="Seconds that each rank computes in a step: the slowest decides.",
            metavar="S,...",
        ),
    ] = None
    watts: Annotated[
        float | None, typer.Option("--watts", help="Power of one device, for the energy of a run.")
    ] = None
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="One real step on random weights: small models, --precision fp32 or bf16.",
        ),
    ] = False
    run_on: RunOnBeside = "auto"
    tokens_of_interest: Annotated[
        str | None,
        typer.Option("--tokens-of-interest", help="Share of some tokens in a step.", metavar="N"),
    ] = None


@takes
def train_command(
    model: ModelOptions, options: RecipeOptions, run: RunOptions, output: OutputOptions
) -> None:
    """Weights, gradients, optimizer states, activations and logits of every rank, and the moment of
    the peak.

    \b
    llmcalc train llama-3-8b --tokens 8192 --like megatron --zero 1 --dp 8 --tp 2
    llmcalc train llama-3.2-1b --tokens 2048 --precision bf16-mixed
    llmcalc train llama-3-8b --precision bf16 --lora-rank 16 --weights nf4 --recompute full
    """
    found = model.resolve()
    recipe = _recipe(options)
    answer = train(recipe, found.anatomy)
    view = _view(found, recipe, answer, options, run, output)
    differences = 0
    if run.live:
        more, differences = _live(found, recipe, answer, run)
        view = replace(view, facts=[*view.facts, *more])
    write(view, output)
    if differences:
        raise typer.Exit(1)
    device = find(run.device) if run.device is not None else None
    if device is not None and answer.peak.n_bytes > device.visible_bytes:
        over = answer.peak.n_bytes - device.visible_bytes
        typer.echo(f"the peak is {size(over)} more than {device.name} has", err=True)
        raise typer.Exit(1)


def _live(model: Model, r: Recipe, answer: Training, run: RunOptions) -> tuple[list[Fact], int]:
    """A real step beside the prediction: states to the byte, the peak below its bound."""
    from llmcalc.cli.measured import against, need_live

    if (
        r.like not in ("fp32", "bf16")
        or r.optimizer not in ("adam", "adamw")
        or r.recompute != "none"
        or r.lora_rank
    ):
        raise InputError(
            "--live makes a plain step", hint="--precision fp32 or bf16, adamw, nothing recomputed"
        )
    if r.dp * r.tp * r.pp * r.cp * r.ep > 1:
        raise InputError(
            "--live runs on one device: it does not go with --dp, --tp, --pp, --cp and --ep"
        )
    need_live()
    from llmcalc.live.device import choose, float_dtype
    from llmcalc.live.measure import available
    from llmcalc.live.train import step

    device = choose(run.run_on)
    if answer.peak.n_bytes > available(device):
        raise UnavailableError(
            f"the step needs {size(answer.peak.n_bytes)}, {device} has {size(available(device))}"
            " free",
            hint="shrink the model: --set n_layers=2 --set vocab=1000",
        )
    made = step(model, r.tokens, r.micro_batch, device, float_dtype(r.like))
    wants = {"weights": made.weights, "gradients": made.gradients, "optimizer": made.optimizer}
    facts = [
        Fact(f"measured_{k}", n, f"{k}, measured", against(answer.part(k)))
        for k, n in wants.items()
    ]
    bound = answer.peak.n_bytes
    facts.append(
        Fact(
            "measured_peak",
            made.peak,
            "peak, measured",
            lambda n: f"{exact(n)} B, at most {exact(bound)} predicted",
        )
    )
    return facts, sum(n != answer.part(k) for k, n in wants.items()) + (made.peak > bound)


def _recipe(o: RecipeOptions) -> Recipe:
    """The recipe that the options describe."""
    if o.like is not None and o.precision is not None:
        raise InputError("--like and --precision are two ways to say the same")
    if o.precision is not None and o.precision not in PRECISIONS:
        raise InputError(f"--precision {o.precision!r} is not one of {', '.join(PRECISIONS)}")
    if o.weights is not None and not o.lora_rank:
        raise InputError("--weights is a frozen base's: it goes with --lora-rank")
    if o.dora and not o.lora_rank:
        raise InputError("--dora is a kind of LoRA: it goes with --lora-rank")
    if o.lora_rank < 0:
        raise InputError(f"--lora-rank is {o.lora_rank}; it must not be negative")
    recompute: Any = o.recompute
    targets = tuple(t.strip() for t in o.lora_targets.split(",")) if o.lora_rank else ()
    return Recipe(
        like=o.like or PRECISIONS[o.precision or "bf16-mixed"],
        optimizer=o.optimizer,
        tokens=_count("--tokens", o.tokens),
        micro_batch=_count("--micro-batch", o.micro_batch),
        recompute=recompute,
        zero=o.zero,
        dp=o.dp,
        tp=o.tp,
        pp=o.pp,
        cp=o.cp,
        ep=o.ep,
        interleave=o.interleave,
        sequence_parallel=not o.no_sequence_parallel,
        eager=o.eager,
        loss_chunks=o.loss_chunks,
        lora_rank=o.lora_rank,
        lora_targets=targets,
        dora=o.dora,
        base=named(o.weights, dtype("bfloat16")) if o.weights is not None else None,
        offload=o.offload,
    )


def _count(flag: str, text: str) -> int:
    value = count_in(flag, text)
    if not 1 <= value <= 2**50:
        raise InputError(f"{flag} is {text}; it must be at least 1")
    return value


def _view(
    model: Model,
    r: Recipe,
    answer: Training,
    o: RecipeOptions,
    run: RunOptions,
    output: OutputOptions,
) -> View:
    si = output.si
    shown = [p for p in answer.parts if p.n_bytes]
    rows = [{"part": p.name, "bytes": p.n_bytes, "exact": p.exact, "why": p.why} for p in shown]
    columns = [
        Column("part", "on the fullest rank"),
        Column("bytes", "bytes", exact, right=True),
        Column("bytes", "", lambda n: size(n, si=si), right=True),
        Column("exact", "exact", shown=False),
        Column("why", "why"),
    ]
    ranks = r.dp * r.tp * r.pp * r.cp
    peak = answer.peak
    facts = [
        Fact(
            "peak_bytes",
            peak.n_bytes,
            "peak",
            lambda n: f"{size(n, si=si)} ({exact(n)} bytes), at: {peak.moment}",
        ),
        Fact("peak_moment", peak.moment),
        *(
            Fact(f"at_{p.moment.replace(' ', '_')}", p.n_bytes, p.moment, _held(p, si))
            for p in answer.peaks
        ),
        Fact("params", answer.params, "parameters on it", both),
        Fact("trainable", answer.trainable, "of which trained", both),
        Fact("ranks", ranks, "ranks", exact),
        Fact(
            "state_bytes_per_param",
            _per_param(answer),
            "bytes of state per parameter",
            lambda x: f"{x:.4g}",
        ),
        *_work(model, r, o, run, ranks),
        *(sent := _traffic(model, r, o, run, si)),
        *(_step(run.rank_seconds, sent, ranks) if run.rank_seconds is not None else ()),
    ]
    notes = [
        *model.notes,
        *model.anatomy.notes,
        *beyond(model, r.tokens),
        f"{r.like}: {r.profile.source}",
    ]
    notes.append("states are exact; activations and logits follow the formula that their row names")
    title = (
        f"{model.name}, {exact(r.tokens)} x {exact(r.micro_batch)} tokens:"
        f" {size(peak.n_bytes, si=si)} at the peak"
    )
    drawn = partial(_picture, title, answer, run, si)
    return View(
        kind="train/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=model.about,
        explain=output.explain,
        picture=drawn,
    )


def _picture(title: str, answer: Training, run: RunOptions, si: bool) -> Picture:
    """What the fullest rank holds at each moment, and the device's memory where one is named."""
    from llmcalc.cli.output import pictures as answers

    device = find(run.device) if run.device is not None else None
    limit = (device.name, device.visible_bytes) if device else ("peak", answer.peak.n_bytes)
    return answers.places(title, [(p.moment, p.held) for p in answer.peaks], limit, si)


def _held(p: Peak, si: bool) -> Callable[[int], str]:
    """A moment's bytes, and what they are of."""
    return lambda n: f"{size(n, si=si)}: {', '.join(name for name, _ in p.held)}"


def _per_param(answer: Training) -> float:
    states = sum(p.n_bytes for p in answer.parts if p.exact)
    return states / answer.params


def _work(model: Model, r: Recipe, o: RecipeOptions, run: RunOptions, ranks: int) -> list[Fact]:
    """FLOP of a step and of a run, utilisation, time, energy."""
    if run.flop_convention not in flops.CONVENTIONS:
        raise InputError(
            f"--flop-convention {run.flop_convention!r} is not one of"
            f" {', '.join(flops.CONVENTIONS)}"
        )
    convention: Any = run.flop_convention
    once = flops.training_flop(model.anatomy, r.tokens, convention)
    done = flops.training_flop(model.anatomy, r.tokens, convention, r.recompute)
    sequences = r.micro_batch * r.dp * o.micro_batches
    step, tokens = once * sequences, sequences * r.tokens
    big = both
    facts = [
        Fact("tokens_per_step", tokens, "tokens per step", exact),
        Fact("flop_per_token", once // r.tokens, "FLOP per token", big),
        Fact("step_flop", step, "FLOP per step", big),
        Fact(
            "step_flop_done", done * sequences, "with recomputation" if done != once else None, big
        ),
        Fact("flop_convention", run.flop_convention, "attention counted"),
    ]
    if run.tokens_of_interest is not None:
        n = _count("--tokens-of-interest", run.tokens_of_interest)
        facts.append(
            Fact(
                "share_of_interest",
                n / tokens,
                f"share of {exact(n)} tokens",
                lambda x: f"{100 * x:.3g} %",
            )
        )
    device = find(run.device) if run.device is not None else None
    if run.step_time is not None:
        facts += _utilisation(step, run.step_time, ranks, device)
    if run.train_tokens is not None:
        facts += _whole_run(run, once / r.tokens, done / r.tokens, ranks)
    return facts


def _utilisation(step: int, seconds: float, ranks: int, device: Device | None) -> list[Fact]:
    if seconds <= 0:
        raise InputError(f"--step-time is {seconds}; it must be above zero")
    rate = step / seconds / ranks
    facts = [
        Fact("achieved_flop_per_s", rate, "achieved FLOP/s per device", lambda x: count(int(x)))
    ]
    peak = (
        next((device.flops[k] for k in ("bf16", "fp16") if device.flops.get(k)), None)
        if device
        else None
    )
    if peak:
        facts.append(Fact("mfu", rate / peak, "MFU", lambda x: f"{100 * x:.1f} % of {count(peak)}"))
    return facts


def _whole_run(run: RunOptions, per_token: float, done_per_token: float, ranks: int) -> list[Fact]:
    """FLOP of all tokens.

    The time by what is really done, recomputation too, since that is what a device achieves.
    """
    total = _count("--train-tokens", str(run.train_tokens))
    flop = int(per_token * total)
    facts = [
        Fact("run_tokens", total, "tokens of the run", both),
        Fact("run_flop", flop, "FLOP of the run", lambda n: f"{n:.4g}"),
    ]
    if run.achieved is None:
        return facts
    done = int(done_per_token * total)
    seconds = flops.training_seconds(done, ranks, float(_count("--achieved", run.achieved)))
    if done != flop:
        facts.append(Fact("run_flop_done", done, "with recomputation", lambda n: f"{n:.4g}"))
    facts.append(
        Fact(
            "run_seconds",
            seconds,
            "time",
            lambda s: f"{s / 86400:.2f} days on {exact(ranks)} devices",
        )
    )
    facts.append(
        Fact("device_hours", seconds * ranks / 3600, "device hours", lambda h: f"{h:,.0f}")
    )
    if run.watts is not None and not 0 < run.watts < 1e9:
        raise InputError(f"--watts is {run.watts:g}; it must be above zero")
    if run.watts is not None:
        facts.append(
            Fact(
                "energy_kwh",
                seconds * ranks * run.watts / 3.6e6,
                "energy",
                lambda e: f"{e:,.0f} kWh",
            )
        )
    return facts


def _traffic(model: Model, r: Recipe, o: RecipeOptions, run: RunOptions, si: bool) -> list[Fact]:
    found = traffic(r, model.anatomy, o.micro_batches)
    if not found:
        return []
    device = find(run.device) if run.device is not None else None
    if run.link is not None and bytes_in("--link", run.link) <= 0:
        raise InputError(f"--link is {run.link}; it must be above zero")
    link = (
        float(bytes_in("--link", run.link))
        if run.link is not None
        else (device.link if device else None)
    )
    rows = [
        {
            "exchange": t.name,
            "ranks": t.ranks,
            "bytes": t.n_bytes,
            "seconds": t.n_bytes / link if link else None,
            "why": t.why,
        }
        for t in found
    ]

    def said(items: Any) -> str:
        lines = []
        for x in items:
            took = "" if x["seconds"] is None else f", {1000 * x['seconds']:.2f} ms"
            lines.append(
                f"{x['exchange']} among {x['ranks']}: {size(x['bytes'], si=si)}{took} ({x['why']})"
            )
        return "\n".join(lines)

    return [Fact("traffic", rows, "sent by a rank per step", said)]


def _step(text: str, found: Sequence[Fact], ranks: int) -> list[Fact]:
    """A synchronous step: it takes as long as its slowest rank, and what is sent after that,
    nothing overlapping.
    """
    try:
        seconds = [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"--rank-seconds is {shorten(text)!r}; it is seconds between commas"
        ) from None
    if len(seconds) != ranks or not all(0 < s < 1e9 for s in seconds):
        raise InputError(f"--rank-seconds needs {ranks} times above zero, one for each rank")
    slowest = max(seconds)
    which = seconds.index(slowest)
    facts = [
        Fact(
            "compute_s",
            slowest,
            "computing takes",
            lambda s: f"{s:g} s, as long as the slowest, rank {which}",
        ),
        Fact(
            "waiting_s",
            [slowest - s for s in seconds],
            "ranks wait",
            lambda ws: ", ".join(f"{w:g} s" for w in ws),
        ),
    ]
    sent = [t["seconds"] for fact in found for t in fact.value]
    if all(s is not None for s in sent):
        facts.append(
            Fact(
                "step_s",
                slowest + sum(sent),
                "the step",
                lambda s: f"{s:.4g} s, nothing overlapping",
            )
        )
    return facts
