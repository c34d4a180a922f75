"""``llmcalc fit``: does it fit on these devices, and what would make it fit?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from llmcalc.cli.check import result_of
from llmcalc.cli.fit.table import Subject, offload_view, plan_view
from llmcalc.cli.kvcache.compare import keeps_something
from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load, count_of
from llmcalc.cli.options.model import ModelOptions, OutputOptions, bytes_in, takes
from llmcalc.cli.output.write import write
from llmcalc.cli.params.command import config_dtype, quantisation
from llmcalc.devices import Device, find, of_memory, of_this_machine
from llmcalc.engines.overheads import Sizes
from llmcalc.errors import InputError
from llmcalc.formats.element import DType, dtype, find_dtype
from llmcalc.formats.file_type import file_type
from llmcalc.formats.scheme import by_role, tensors
from llmcalc.formats.stored import QUANTISED, native
from llmcalc.questions.fit import Ask, default_utilization, plan
from llmcalc.questions.kvcache import GGML, base_of
from llmcalc.sources import Model
from llmcalc.sources.header import Header


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
            help=f"A dtype, {', '.join(QUANTISED)}, or a GGUF file type: q4_k_m. Default: the model's.",
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
            help="vLLM's max_num_seqs, which its sampling buffers follow; default 1024.",
        ),
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
    output: OutputOptions,
) -> None:
    """Weights, cache and working memory of every device against its memory; exit 1 if it does not fit.

    \b
    llmcalc fit --model llama-3.1-70b --device h100 --count 4 --ctx 32768 --concurrency 64 --engine vllm
    llmcalc fit model.gguf --device-memory 8GiB --ctx 8192 --engine llama.cpp
    llmcalc fit llama-3-8b --device rtx-4090 --ctx 8192
    """
    ggml = base_of(load.engine) in GGML
    if devices.gpu_layers is not None and not ggml:
        raise InputError(
            "--gpu-layers is llama.cpp's: other engines keep every layer on the devices"
        )
    if devices.max_seqs is not None and base_of(load.engine) != "vllm":
        raise InputError(
            f"--max-seqs is a setting of vllm, and the engine is {base_of(load.engine)}"
        )
    engines.check(load.engine)
    found = model.resolve()
    device, count = _device(devices)
    if devices.gpu_layers is not None and count > 1:
        raise InputError(
            "--gpu-layers is for one device; with more, llama.cpp divides all layers among them"
        )
    subject = Subject(found, device, count, ask_of(found, device, count, load, devices, engines))
    if ggml and count == 1:
        view, fits = offload_view(subject, devices.gpu_layers, output)
    else:
        answer = plan(subject.ask)
        view, fits = plan_view(subject, answer, output), answer.verdict == "yes"
    write(view, output)
    if not fits:
        raise typer.Exit(1)


def ask_of(
    found: Model,
    device: Device,
    count: int,
    load: LoadOptions,
    devices: DeviceOptions,
    engines: EngineOptions,
) -> Ask:
    """The question as the calculation takes it."""
    if load.tp != 1:
        raise InputError("--tp is --count here: one tensor-parallel rank per device")
    if devices.pp < 1:
        raise InputError(f"--pp is {devices.pp}; it must be at least 1")
    if count % devices.pp:
        raise InputError(f"--pp {devices.pp} does not divide {count} devices")
    if devices.max_seqs is not None and devices.max_seqs < 1:
        raise InputError(f"--max-seqs is {devices.max_seqs}; it must be at least 1")
    keeps_something(found)
    if devices.concurrency is not None:
        if load.batch != "1":
            raise InputError("--concurrency and --batch say the same thing twice")
        load = replace(load, batch=str(count_of("--concurrency", devices.concurrency, "batch")))
    mix = file_type(devices.weights)
    wide, quant = _weights(found, None if mix else devices.weights)
    ggml = base_of(load.engine) in GGML
    pp = count if ggml else devices.pp
    header = None if devices.weights is not None else found.header
    if ggml and header is not None and header.format != "gguf":
        header = None  # it reads a conversion, not this file
    return Ask(
        found.anatomy,
        sizes_of(found),
        build_load(found, load, engines),
        load.engine,
        device.visible_bytes,
        _utilization(devices, load.engine),
        wide,
        quant,
        count // pp,
        pp,
        devices.max_seqs or 1024,
        by_role(tensors(found.anatomy, mix))
        if mix
        else None
        if header is None
        else stored_by_role(found, header),
        mix,
    )


def stored_by_role(found: Model, header: Header) -> dict[str, tuple[int, int]]:
    """Bytes in the file and elements in the model of every role; what has no role stands under the empty one."""
    roles = result_of(found, header).roles
    n_bytes: dict[str, int] = {}
    for name, stored in header.tensors.items():
        role = roles.get(name, "")
        n_bytes[role] = n_bytes.get(role, 0) + stored.n_bytes
    elements: dict[str, int] = {}
    for w in found.anatomy.weights:
        if not w.tied_to:
            elements[w.role] = elements.get(w.role, 0) + int(w.params)
    return {role: (n, elements.get(role, 0)) for role, n in n_bytes.items()}


def _utilization(options: DeviceOptions, engine: str) -> float:
    share = options.utilization
    if share is None:
        return default_utilization(engine)
    if not 0 < share <= 1:
        raise InputError(f"--utilization is {share}; it must be above 0 and at most 1")
    return share


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
    """This machine's GPUs: as the NVIDIA driver lists them, else as torch sees them, else its main memory."""
    from importlib.util import find_spec

    device, n = of_this_machine()
    if device.unified and find_spec("torch") is not None:
        from llmcalc.live.device import accelerators

        seen = accelerators()
        if seen:
            name, n_bytes = seen[0]
            return Device(name, n_bytes, n_bytes, True, None, {}, None, "torch"), len(seen)
    return device, n


def _weights(found: Model, named: str | None) -> tuple[DType, str | None]:
    """The dtype of the weights that stay wide, and how the others are quantised."""
    own = config_dtype(found.raw or {})
    if named is None:
        known = native(quantisation(found.raw)) if found.header is None else None
        return own if own.block == 1 and own.size > 1 else dtype("bfloat16"), known
    if named.lower() in QUANTISED:
        return own if own.block == 1 and own.size > 1 else dtype("bfloat16"), named.lower()
    if find_dtype(named) is None:
        raise InputError(
            f"no weight format is called {named!r}",
            hint=f"known: {', '.join(QUANTISED)}, or a dtype",
        )
    return dtype(named), None


def sizes_of(model: Model) -> Sizes:
    """What the estimates depend on, read off the parts."""
    weights = model.anatomy.weights
    table = next((w for w in weights if w.role == "embed.token"), None)
    if table is None:
        raise InputError(
            f"{model.name} has no vocabulary: only its blocks are described", hint="give --vocab"
        )
    widths = [
        int(w.shape[0])
        for w in weights
        if w.role in ("mlp.up", "mlp.gate")
        and len(w.shape) == 2
        and (w.experts > 1 or not w.stacked)
    ]
    fused = [
        int(w.shape[0]) // 2
        for w in weights
        if w.role == "mlp.gate_up" and len(w.shape) == 2 and not w.transposed
    ]
    return Sizes(
        int(table.shape[1]),
        max([*widths, *fused], default=0),
        int(table.shape[0]),
        model.longest_context or 0,
        any(w.experts > 1 for w in weights),
        any(w.role.startswith("vision") for w in weights),
    )
