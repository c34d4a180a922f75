"""From what a user named to a model that runs: files, style, device, format, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from llmcalc.anatomy import Anatomy
from llmcalc.errors import InputError, UnavailableError
from llmcalc.families import forward
from llmcalc.forward import Forward
from llmcalc.live.device import DTYPES, choose, float_dtype
from llmcalc.live.files import Files
from llmcalc.live.measure import available
from llmcalc.live.ranks import ALONE, together
from llmcalc.live.run import Runner
from llmcalc.live.weights import Weights
from llmcalc.parallel import one_rank
from llmcalc.sources import Model
from llmcalc.units import size


@dataclass(frozen=True, slots=True)
class Live:
    """A checkpoint ready to run, and what was decided on the way."""

    model: Model
    runner: Runner
    device: torch.device
    dtype: torch.dtype
    streamed: bool
    notes: tuple[str, ...] = ()


def load(
    model: Model,
    device: str = "auto",
    wanted: str | None = None,
    stream: bool | None = None,
    tp: int = 1,
) -> Live:
    """The model on a device; ``wanted`` is the format to run in (its own where None).

    ``tp`` is how many processes share it; each of them calls this and loads its own share.
    ``stream`` loads one layer at a time; None does so where the weights are larger than what is
    free.
    """
    if model.header is None or model.folder is None:
        raise InputError(
            f"{model.name} has no weights here, only sizes",
            hint="name a directory, .safetensors or .gguf file; without a model the toy one is run",
        )
    anatomy = _runnable(model)
    found_style = forward(model.config)
    place = choose(device)
    ranks = together(anatomy, found_style, tp, place) if tp > 1 else ALONE
    kind = float_dtype(wanted) if wanted else _own_dtype(model, place)
    files = Files(model.header, model.folder)
    weights = Weights(files, anatomy, place, kind, quantisation=model.quantisation, ranks=ranks)
    anatomy = one_rank(anatomy, tp)
    notes = []
    need = run_bytes(anatomy, kind)
    free = available(place)
    if stream is None:
        stream = need > free
        if stream:
            notes.append(
                f"{size(need)} of weights, {size(free)} free on {place}: one layer at a time is"
                " loaded"
            )
    with no_memory(place, need):
        runner = Runner(anatomy, _with_factors(found_style, files), weights, stream)
    return Live(
        model=model, runner=runner, device=place, dtype=kind, streamed=stream, notes=tuple(notes)
    )


def _runnable(model: Model) -> Anatomy:
    """The anatomy without what stands outside the model: multi-token prediction."""
    parts = tuple(p for p in model.anatomy.parts if not getattr(p, "extra", False))
    return replace(model.anatomy, parts=parts)


def _with_factors(found: Forward, files: Files) -> Forward:
    """The style with the frequencies' factors, a tensor of a GGUF (Llama 3.1 and later)."""
    if "rope_freqs.weight" not in files or found.rotary is None:
        return found
    factors = tuple(files.tensor("rope_freqs.weight").tolist())  # dim/2 of them
    rotary = replace(found.rotary, kind="factors", settings={"factors": factors})
    return replace(found, rotary=rotary)


def _own_dtype(model: Model, device: torch.device) -> torch.dtype:
    """The format that most of the checkpoint is stored in, if a model can be run in it."""
    assert model.header is not None
    counts = model.header.elements_by_dtype()
    own = max(counts, key=lambda name: counts[name], default="float32")
    if own in DTYPES and not (model.raw or {}).get("quantization_config"):
        return DTYPES[own]
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def run_bytes(anatomy: Anatomy, kind: torch.dtype) -> int:
    """Bytes of all weights in the format that they are run in."""
    elements = sum(int(w.params) for w in anatomy.weights if w.stored)
    return elements * kind.itemsize


def layer_bytes(anatomy: Anatomy, kind: torch.dtype) -> int:
    """What streaming holds at once: the largest layer, and what stands outside the layers."""
    outer = sum(int(w.params) for w in anatomy.weights if not (w.tied_to or w.in_stack))
    layers: dict[int, int] = {}
    for w in anatomy.weights:
        if w.in_stack and not w.tied_to:
            for i in w.layers.indices:
                layers[i] = layers.get(i, 0) + int(w.per_layer)
    return (outer + max(layers.values(), default=0)) * kind.itemsize


@contextmanager
def no_memory(device: torch.device, need: int, what: str = "of weights") -> Iterator[None]:
    """Turns a full device into one line: what was asked for, what there was, what would help."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        free = available(device)
        raise UnavailableError(
            f"out of memory on {device}: {size(need)} {what}, {size(free)} free",
            hint="16 bits take half of float32; `llmcalc trace --stream-layers` holds one layer; a"
            " shorter text takes less",
        ) from None
    except RuntimeError as error:
        # torch has no class of its own for a CPU that is out of memory
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise UnavailableError(
            f"out of memory on {device}: {size(need)} {what}, {size(available(device))} free",
            hint="16 bits take half of float32; `llmcalc trace --stream-layers` holds one layer",
        ) from None
