"""``llmcalc fit``: does it fit on these devices, and what would make it fit?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from llmcalc.cli.fit.table import Subject, offload_view, plan_view
from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load
from llmcalc.cli.options.model import (
    ModelOptions,
    OutputOptions,
    PredictOptions,
    bytes_if_given,
    bytes_in,
    count_in,
    takes,
)
from llmcalc.cli.options.weights import WEIGHTS_HELP
from llmcalc.cli.output.write import write
from llmcalc.devices import Device, find, of_memory, of_this_machine
from llmcalc.engines import choose
from llmcalc.errors import InputError
from llmcalc.questions.fit import Ask, Measured, ask_for
from llmcalc.questions.fit import fit as does_it_fit
from llmcalc.questions.load import not_a_setting, size
from llmcalc.sources import Model


@dataclass(frozen=True)
class DeviceOptions:
    """On what, and in which form."""

    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="A device by name (llmcalc list devices), or auto: this machine's."
        ),
    ] = None
    device_memory: Annotated[
        str | None, typer.Option("--device-memory", help="Memory of one device instead: 24GiB.")
    ] = None
    count: Annotated[
        int,
        typer.Option("--count", help="Devices: one tensor-parallel rank each, per pipeline stage."),
    ] = 1
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages among the devices.")] = 1
    concurrency: Annotated[
        str | None,
        typer.Option("--concurrency", help="Sequences at a time (--batch).", metavar="N"),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help=WEIGHTS_HELP,
        ),
    ] = None
    utilization: Annotated[
        float | None,
        typer.Option("--utilization", help="Share of the memory that the engine takes."),
    ] = None
    max_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-seqs",
            help="vLLM's max_num_seqs, which its sampling buffers follow; default: by the device.",
        ),
    ] = None
    used: Annotated[
        str | None,
        typer.Option("--used", help="What other programs hold of a device: 3GiB."),
    ] = None
    weights_measured: Annotated[
        str | None,
        typer.Option("--weights-measured", help="A rank's weights as a log prints them: 14.25GiB."),
    ] = None
    pool_measured: Annotated[
        str | None,
        typer.Option("--pool-measured", help="A rank's cache pool as a log prints it: 8.23GiB."),
    ] = None
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", help="llama.cpp: the main memory for what stays: 32GiB."),
    ] = None
    gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--gpu-layers", help="llama.cpp: layers on the device, the rest in main memory."
        ),
    ] = None


@takes
def fit(
    model: ModelOptions,
    load: LoadOptions,
    devices: DeviceOptions,
    engines: EngineOptions,
    predict: PredictOptions,
    output: OutputOptions,
) -> None:
    """Weights, cache and working memory of every device against its memory.

    Exit 1 if it does not fit.

    An engine's own words are read too: --max-model-len, -ngl (llmcalc list engines).

    \b
    llmcalc fit llama-3.1-70b --device h100 --count 4 --ctx 32768 --batch 64 --engine vllm
    llmcalc fit model.gguf --device-memory 8GiB --ctx 8192 --engine llama.cpp
    llmcalc fit llama-3-8b --device rtx-4090 --ctx 8192
    """
    engine = choose(load.engine).engine
    for option in ("gpu_layers", "max_seqs"):
        if getattr(devices, option) is not None and option not in engine.options:
            raise not_a_setting(f"--{option.replace('_', '-')}", option, engine.name)
    if devices.host_memory is not None and not engine.by_layers:
        raise not_a_setting("--host-memory", "gpu_layers", engine.name)
    engines.settings.check(load.engine)
    found = predict.of(model.resolve())
    device, count = _device(devices)
    for option in ("gpu_layers", "host_memory"):
        if getattr(devices, option) is not None and count > 1:
            raise InputError(
                f"--{option.replace('_', '-')} is for one device; with more, llama.cpp divides all"
                " layers among them"
            )
    ask = ask_of(found, device, count, (load, engines), devices)
    subject = Subject(model=found, device=device, count=count, ask=ask)
    if engine.by_layers and count == 1:
        host = bytes_if_given("--host-memory", devices.host_memory)
        view, fits = offload_view(subject, devices.gpu_layers, host, output)
    else:
        answer = does_it_fit(ask)
        view, fits = plan_view(subject, answer, output), answer.verdict == "yes"
    write(view, output)
    if not fits:
        raise typer.Exit(1)


def ask_of(
    found: Model,
    device: Device,
    count: int,
    asked: tuple[LoadOptions, EngineOptions],
    devices: DeviceOptions,
) -> Ask:
    """The question as the calculation takes it."""
    load, engines = asked
    if load.tp != 1:
        raise InputError("--tp is --count here: one tensor-parallel rank per device")
    if devices.concurrency is not None:
        if load.batch != "1":
            raise InputError("--concurrency and --batch say the same thing twice")
        many = count_in("--concurrency", devices.concurrency)
        load = replace(load, batch=str(size("--concurrency", many, "batch")))
    return ask_for(
        found,
        load=build_load(found, load, engines),
        engine=load.engine,
        visible=device.visible_bytes,
        count=count,
        pp=devices.pp,
        weights=devices.weights,
        utilization=devices.utilization,
        sequences=devices.max_seqs,
        device="" if device.source == "--device-memory" else device.name,
        measured=_measured(devices),
    )


def _measured(options: DeviceOptions) -> Measured:
    return Measured(
        weights=bytes_if_given("--weights-measured", options.weights_measured),
        pool=bytes_if_given("--pool-measured", options.pool_measured),
        used=bytes_if_given("--used", options.used) or 0,
    )


def _device(options: DeviceOptions) -> tuple[Device, int]:
    if options.count < 1:
        raise InputError(f"--count is {options.count}; it must be at least 1")
    if options.device_memory is not None:
        if options.device is not None:
            raise InputError("--device and --device-memory say the same thing twice")
        n_bytes = bytes_in("--device-memory", options.device_memory)
        if n_bytes < 2**20:
            raise InputError(
                f"--device-memory {options.device_memory} is less than a MiB", hint="24GB or 24GiB"
            )
        return of_memory(n_bytes), options.count
    if options.device is None:
        raise InputError(
            "on what? give --device h100, --device auto or --device-memory 24GiB",
            hint="`llmcalc list devices` shows all",
        )
    if options.device == "auto":
        device, n = _this_machine()
        return device, options.count if options.count > 1 else n
    return find(options.device), options.count


def _this_machine() -> tuple[Device, int]:
    """This machine's GPUs: as the NVIDIA driver lists them, else as torch sees them, else its main
    memory.
    """
    from importlib.util import find_spec

    device, n = of_this_machine()
    if device.unified and find_spec("torch") is not None:
        from llmcalc.live.device import accelerators

        seen = accelerators()
        if seen:
            name, n_bytes = seen[0]
            return Device(
                name=name,
                memory_bytes=n_bytes,
                visible_bytes=n_bytes,
                visible_known=True,
                bandwidth=None,
                flops={},
                link=None,
                source="torch",
            ), len(seen)
    return device, n
