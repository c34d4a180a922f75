"""A forward pass watched: what every step really was, beside what the parts predict."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llmcalc.errors import InputError
from llmcalc.live.cache import Cache
from llmcalc.live.load import Live, no_memory, run_bytes
from llmcalc.live.measure import Alive, memory, reset_peak, wait

Key = tuple[int | None, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """One tensor as it was: shape, format, its numbers in short, seconds since the one before."""

    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    max_abs: float
    seconds: float
    memory_bytes: int


@dataclass(slots=True)
class Trace:
    """A watched pass: steps by layer and slot, logits (B, T, V), memory, and what was kept."""

    steps: dict[Key, Seen]
    logits: Tensor
    cache: Cache
    seconds: float
    peak_bytes: int
    kept: dict[Key, Tensor]


def ids_tensor(live: Live, rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids (B, T) on the device; one outside the vocabulary is an InputError."""
    vocab = int(live.runner.before["embed.token"].shape[0])
    for row in rows:
        for token in row:
            if not 0 <= token < vocab:
                raise InputError(f"id {token} is outside the embedding's {vocab} rows")
    if not rows or not rows[0]:
        raise InputError("there is no token to run", hint="give --prompt or --ids")
    return torch.tensor([list(row) for row in rows], device=live.device)


def watch(
    live: Live,
    ids: Tensor,
    valid: Tensor | None = None,
    keep: frozenset[str] = frozenset(),
    every_weight: bool = True,
) -> Trace:
    """Runs one prefill of ids (B, T) and notes every step.

    Tensors of the slots in ``keep`` are kept on the CPU. ``every_weight`` mixes in plain steps, so
    that scores and weights are there to see.
    """
    batch, tokens = ids.shape
    cache = live.runner.cache(batch, tokens)
    notes: dict[Key, Seen] = {}
    kept: dict[Key, Tensor] = {}
    clock = [time.perf_counter()]

    def seen(layer: int | None, slot: str, tensor: Tensor) -> None:
        wait(live.device)
        spent = time.perf_counter() - clock[0]
        notes[layer, slot] = _note(tensor, spent, memory(live.device).allocated)
        if slot in keep:
            kept[layer, slot] = tensor.detach().float().cpu().clone()
        clock[0] = time.perf_counter()  # what noting took is nobody's time

    layers = frozenset(p.index for p in live.runner.plans) if every_weight else frozenset()
    with no_memory(live.device, run_bytes(live.runner.anatomy, live.dtype)):
        seen(None, "ids", ids)
        logits = live.runner(ids, cache, valid, seen, layers, every=True)  # (B, T, V)
        seen(None, "last", logits[:, -1])
    return Trace(
        steps=notes,
        logits=logits,
        cache=cache,
        seconds=sum(s.seconds for s in notes.values()),
        peak_bytes=activation_peak(live, ids, valid),
        kept=kept,
    )


def activation_peak(live: Live, ids: Tensor, valid: Tensor | None) -> int:
    """Bytes of activations alive at once in an unwatched pass of the same tokens."""
    cache = live.runner.cache(*ids.shape)
    if live.device.type == "cuda":
        reset_peak(live.device)
        before = memory(live.device).allocated
        live.runner(ids, cache, valid, every=True)
        return memory(live.device).peak - before
    with Alive() as alive:
        live.runner(ids, cache, valid, every=True)
    return int(alive.peak)


def _note(tensor: Tensor, seconds: float, held: int) -> Seen:
    numbers = tensor.float()
    finite = numbers[torch.isfinite(numbers)]
    some = finite.numel() > 0
    return Seen(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        mean=float(finite.mean()) if some else math.nan,
        std=float(finite.std(correction=0)) if some else math.nan,
        max_abs=float(finite.abs().max()) if some else math.nan,
        seconds=seconds,
        memory_bytes=held,
    )


def first_nan(live: Live, trace: Trace) -> str | None:
    """Where NaN begins: the first broken weight, else the format; None if nowhere."""
    if bool(torch.isfinite(trace.logits).all()):
        return None
    for plan in live.runner.plans:
        w = live.runner.layer(plan.index)
        for slot, weight in plan.weights.items():
            held = w.get(slot, [])
            for tensor in held if isinstance(held, list) else [held]:
                broken = _count_nan(tensor)
                if broken:
                    name = weight.name.replace("{layer}", str(plan.index))
                    return f"tensor {name} holds {broken} NaN"
    for outer in (live.runner.before, live.runner.behind):
        for slot, tensor in outer.items():
            broken = _count_nan(tensor)
            if broken:
                return f"the weight of {slot} holds {broken} NaN"
    return f"the logits are not finite in {live.dtype}: a number grew too large for the format"


def _count_nan(tensor: Tensor) -> int:
    return int(torch.isnan(tensor).sum())


def top(logits: Tensor, k: int) -> list[tuple[int, float, float]]:
    """The k likeliest tokens of logits (V): id, logit, probability."""
    wide = logits.float()
    probabilities = wide.softmax(-1)  # (V)
    best = wide.topk(min(k, wide.numel()))  # (k)
    pairs = zip(best.values, best.indices, strict=True)
    return [(int(i), float(value), float(probabilities[i])) for value, i in pairs]


def lens(live: Live, trace: Trace, row: int = 0) -> list[tuple[int, int, float]]:
    """The likeliest next token if the model ended after each layer (the logit lens).

    Layer, id, probability.
    """
    found = []
    for plan in live.runner.plans:
        states = trace.kept[plan.index, "layer"]  # (B, T, d)
        x = states[row : row + 1, -1:].to(live.device, live.dtype)  # (1, 1, d)
        with torch.inference_mode():
            logits = live.runner.head(live.runner.last_norm(x))  # (1, 1, V)
            token, _, probability = top(logits[0, -1], 1)[0]
        found.append((plan.index, token, probability))
    return found
