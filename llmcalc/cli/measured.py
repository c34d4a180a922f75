"""The live checks of the calculating commands: the same numbers, measured.

A difference is exit code 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.options.run import RunOn
from llmcalc.cli.output.view import Fact, View
from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.units import exact, size

if TYPE_CHECKING:
    from llmcalc.engines.cache import Load
    from llmcalc.live.load import Live
    from llmcalc.live.measure import Memory
    from llmcalc.sources import Model


@dataclass(frozen=True)
class MeasureOptions:
    """Measuring on a device."""

    live: Annotated[bool, typer.Option("--live", help="Do it on a device, and measure.")] = False
    device: RunOn = "auto"
    run_dtype: Annotated[
        str | None,
        typer.Option(
            "--run-dtype", help="With --live: format to load in; default: the checkpoint's."
        ),
    ] = None

    def check(self) -> None:
        """A device without --live is an error, and --live without torch."""
        if self.live:
            need_live()
        elif self.device != "auto" or self.run_dtype is not None:
            raise InputError("--run-on and --run-dtype go with --live")


def need_live() -> None:
    """Running needs torch: without it, one line with the command that installs it."""
    if find_spec("torch") is None:
        raise UnavailableError(
            "running a model needs torch, which is not installed", hint=install("live")
        )


def against(predicted: int) -> Any:
    """How a measured number is shown: beside what was predicted."""
    return lambda n: f"{exact(n)} B, predicted {exact(predicted)}: difference {n - predicted}"


def params_measured(view: View, model: Model, measure: MeasureOptions) -> tuple[View, int]:
    """``params`` with the elements and bytes that were really loaded."""
    from llmcalc.live.load import load, run_bytes

    live = load(model, measure.device, measure.run_dtype)
    loaded = live.runner.weights.loaded
    if live.streamed:
        for plan in live.runner.plans:
            live.runner.layer(plan.index)
    total = next(int(f.value) for f in view.facts if f.key == "total_params")
    predicted = run_bytes(live.runner.anatomy, live.dtype)
    have = loaded.n_bytes + loaded.buffer_bytes
    said = lambda n: f"{exact(n)}, counted {exact(total)}: difference {n - total}"  # noqa: E731
    facts = [
        Fact("device", str(live.device), "device"),
        Fact("measured_params", loaded.params, "parameters loaded", said),
        Fact("measured_bytes", have, f"in {live.dtype}".replace("torch.", ""), against(predicted)),
        Fact("predicted_bytes", predicted),
    ]
    return _more(view, facts, live.notes), (loaded.params != total) + (have != predicted)


def cache_measured(
    view: View, model: Model, load: Load, engine: str, measure: MeasureOptions
) -> tuple[View, int]:
    """``kvcache`` with the cache really allocated."""
    from llmcalc.engines import find
    from llmcalc.live.cache import allocate
    from llmcalc.live.device import choose
    from llmcalc.live.files import held_bytes
    from llmcalc.live.load import no_memory
    from llmcalc.live.measure import memory

    device = choose(measure.device)
    predicted = next(int(f.value) for f in view.facts if f.key == "kv_bytes")
    before = memory(device).allocated
    with no_memory(device, predicted, "of cache"):
        tensors = allocate(model.anatomy, load, find(engine).name, device)
    have = held_bytes(tensors)
    grown = memory(device).allocated - before
    facts = [
        Fact("device", str(device), "device"),
        Fact("measured_bytes", have, "allocated", against(predicted)),
        Fact("n_buffers", len(tensors), "buffers", exact),
        Fact("memory_growth_bytes", grown, "the device's memory grew by", size),
    ]
    return _more(view, facts, ()), int(have != predicted)


def check_measured(
    view: View, model: Model, context: int, batch: int, measure: MeasureOptions
) -> tuple[View, int]:
    """``check`` with weights, cache and activations on the device, and what memory they took."""
    from llmcalc.live.device import choose
    from llmcalc.live.load import load, run_bytes
    from llmcalc.live.measure import memory, peak_resident
    from llmcalc.questions.kvcache import cache_bytes

    device = choose(measure.device)
    before, peak_before = memory(device), peak_resident()
    live = load(model, measure.device, measure.run_dtype)
    anatomy, element = live.runner.anatomy, live.dtype.itemsize
    for plan in live.runner.plans if live.streamed else ():
        live.runner.layer(plan.index)
    loaded = live.runner.weights.loaded
    weights, weights_said = loaded.n_bytes + loaded.buffer_bytes, run_bytes(anatomy, live.dtype)
    cache, cache_said = (
        live.runner.cache(batch, context).n_bytes,
        cache_bytes(anatomy, context, batch, element),
    )
    # before what counts activations, which takes memory of its own
    now = memory(device)
    grown = peak_resident() - peak_before
    peak, bound = _activations(live, min(context, 32), batch)
    facts = [
        Fact("device", str(live.device), "device"),
        Fact("weight_bytes", weights, "weights", against(weights_said)),
        Fact("weight_bytes_predicted", weights_said),
        Fact("kv_bytes", cache, f"cache at {exact(context)} x {exact(batch)}", against(cache_said)),
        Fact("kv_bytes_predicted", cache_said),
        Fact(
            "activation_bytes",
            peak,
            "activations of a short prompt",
            lambda n: f"{exact(n)} B, at most {exact(bound)} predicted",
        ),
        Fact("activation_bytes_bound", bound),
        *_memory_facts(before, now, grown),
    ]
    return _more(view, facts, live.notes), (weights != weights_said) + (cache != cache_said) + (
        peak > bound
    )


def _activations(live: Live, tokens: int, batch: int) -> tuple[int, int]:
    from llmcalc.live.trace import activation_peak, ids_tensor
    from llmcalc.questions.trace import ask, peak_bound, walk

    vocab = int(live.runner.before["embed.token"].shape[0])
    ids = ids_tensor(live, [[i % vocab for i in range(tokens)]] * batch)
    steps = list(walk(live.runner.anatomy, ask(batch, tokens)))
    return activation_peak(live, ids, None), int(peak_bound(steps, live.dtype.itemsize))


def _memory_facts(before: Memory, now: Memory, grown: int) -> list[Fact]:
    """Tensors, what the allocator keeps, and the rest, each by its name."""
    facts = [Fact("allocated_bytes", now.allocated - before.allocated, "memory grew by", size)]
    if now.reserved is not None:
        facts.append(Fact("reserved_bytes", now.reserved, "reserved by the allocator", size))
    if now.outside is not None:
        facts.append(Fact("outside_bytes", now.outside, "context, kernels, other processes", size))
    else:
        facts.append(
            Fact("peak_resident_growth_bytes", grown, "resident memory's peak grew by", size)
        )
    return facts


def _more(view: View, facts: Sequence[Fact], notes: Sequence[str]) -> View:
    return replace(view, facts=[*view.facts, *facts], notes=[*view.notes, *notes])
