"""What ``trace --live`` shows: measured beside predicted, next tokens, attention, the lens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from llmcalc.cli.output.view import Column, Fact, Grid, View
from llmcalc.cli.prompts import label, prompt_ids
from llmcalc.cli.trace.table import COLUMNS, Row, Subject, described, notes, rows
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype
from llmcalc.live.device import name_of
from llmcalc.live.load import Live, layer_bytes, load, run_bytes
from llmcalc.live.measure import peak_resident
from llmcalc.live.trace import Trace, first_nan, ids_tensor, lens, top, watch
from llmcalc.questions.kvcache import cache_bytes
from llmcalc.questions.trace import Step, ask, peak_bound, walk
from llmcalc.tokens.base import Tokenizer
from llmcalc.units import exact, size

if TYPE_CHECKING:
    from llmcalc.cli.trace.options import LiveOptions

_SMALL = 1024
"""Vocabularies up to this size have all their logits in JSON."""
_PRINTED = 65536
"""Numbers of a tensor that are printed, at most."""
_KEPT = frozenset({"layer", "attn.weights", "attn.q", "attn.k", "attn.v"})
"""Slots whose numbers are looked at when the pass is over."""


def view(subject: Subject, run: LiveOptions) -> tuple[View | None, int]:
    """The watched pass as a View, and how many of its numbers differ from what was predicted.

    Of several processes the first one alone has something to show; differences are those of all.
    """
    # before anything is loaded
    began = peak_resident()
    live = load(subject.model, run.device, run.dtype, run.stream_layers or None, run.tp)
    prompt, tokenizer = prompt_ids(live, run.prompt, run.ids)
    padded, valid = _padded(live, prompt, run.pad_left)  # (1, T) both
    tokens = padded.shape[1]
    trace = watch(live, padded, valid, _KEPT)
    steps = _steps(live, tokens)
    kind = dtype(name_of(live.dtype))
    found = rows(subject, steps, kind)
    differences = _measure(found, trace)
    facts, more = _facts(live, trace, steps, tokens, kind.size)
    if live.streamed:
        facts += _streamed(live, trace, began)
    ranks = live.runner.ranks
    differences = sum(ranks.gathered(differences + more))
    if ranks.size > 1:
        facts.append(_by_rank(live))
        # the others must take part in what is gathered above, and say nothing
        if ranks.rank > 0:
            return None, differences
    said = _said(live, subject, steps, trace, tokenizer)
    facts += _next(trace, tokenizer, run.top)
    if run.logit_lens:
        facts.append(_lens(live, trace, tokenizer))
    grid = None
    if run.attention is not None:
        grid = _heat(trace, run.attention, _labels(tokenizer, padded[0].tolist()))
    if run.qkv is not None:
        facts += _matrices(trace, run.qkv)
    where = f"run on {live.device} in {name_of(live.dtype)}"
    made = View(
        kind="trace/1",
        title=f"{subject.model.name}, {where}: {tokens} tokens",
        columns=_columns(),
        rows=found,
        facts=facts,
        notes=said,
        model=described(subject.model),
        grid=grid,
        picture=grid.picture if grid else None,
    )
    return made, differences


def _steps(live: Live, tokens: int) -> list[Step]:
    """The walk through what this process holds; the logits are joined before anybody sees them."""
    steps = list(walk(live.runner.anatomy, ask(1, tokens)))
    ranks = live.runner.ranks
    if ranks.size == 1:
        return steps
    whole = Dim(ranks.vocab, "vocab")
    found = []
    for step in steps:
        if step.slot in ("head", "last"):
            step = replace(step, shape=(*step.shape[:-1], whole))
        found.append(step)
    return found


def _padded(
    live: Live, prompt: Sequence[int], pad: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids (1, T) with padding before them, and which are text, or None where all are."""
    if pad < 0:
        raise InputError(f"--pad-left is {pad}; it must not be negative")
    ids = ids_tensor(live, [[0] * pad + list(prompt)])
    if not pad:
        return ids, None
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[:, :pad] = False
    return ids, valid


def _measure(found: list[Row], trace: Trace) -> int:
    """Puts what was seen beside what was predicted; how many shapes differ."""
    differences = 0
    for row in found:
        seen = trace.steps.get((row["layer"], row.pop("slot")))
        if seen is None:
            continue
        row |= {
            "measured_shape": seen.shape,
            "dtype": seen.dtype,
            "mean": seen.mean,
            "std": seen.std,
            "max_abs": seen.max_abs,
            "seconds": seen.seconds,
            "memory_bytes": seen.memory_bytes,
        }
        differences += seen.shape != tuple(int(x) for x in row["shape"])
    return differences


def _columns() -> list[Column]:
    """Predicted shape, measured shape, then what the numbers were."""
    shown = {"step", "layer", "op", "part", "shape"}
    columns = []
    for column in COLUMNS:
        if column.key == "layers":
            continue
        heading = "predicted" if column.key == "shape" else column.heading
        columns.append(replace(column, shown=column.key in shown, heading=heading))
    shape = next(column.show for column in COLUMNS if column.key == "shape")
    return [
        *columns,
        Column("measured_shape", "measured", shape),
        Column("dtype", "dtype", shown=False),
        Column("mean", "mean", _short, right=True),
        Column("std", "std", _short, right=True),
        Column("max_abs", "largest", _short, right=True),
        Column("seconds", "ms", _milliseconds, right=True),
        Column("memory_bytes", "memory", _memory, right=True, shown=False),
    ]


def _short(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.3f}"


def _memory(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else size(n_bytes)


def _facts(
    live: Live, trace: Trace, steps: Sequence[Step], tokens: int, element: int
) -> tuple[list[Fact], int]:
    """Weights, cache and peak, predicted and measured; the number of exact ones that differ."""
    loaded = live.runner.weights.loaded
    weights = run_bytes(live.runner.anatomy, live.dtype)
    cache = cache_bytes(live.runner.anatomy, tokens, 1, element)
    bound = int(peak_bound(steps, element))
    have = loaded.n_bytes + loaded.buffer_bytes

    def at_most(n: int) -> str:
        return f"{exact(n)} B, at most {exact(bound)} predicted"

    facts = [
        Fact("device", str(live.device), "device"),
        Fact("dtype", name_of(live.dtype)),
        Fact("measured_params", loaded.params, "parameters loaded", exact),
        Fact("weight_bytes_predicted", weights),
        Fact("weight_bytes", have, "weights", _beside(weights)),
        Fact("kv_bytes_predicted", cache),
        Fact("kv_bytes", trace.cache.n_bytes, "cache", _beside(cache)),
        Fact("activation_bytes_bound", bound),
        Fact("activation_bytes", trace.peak_bytes, "activations at once", at_most),
        Fact("seconds", trace.seconds, "seconds, watched", lambda s: f"{s:.4f}"),
    ]
    differ = (have != weights, trace.cache.n_bytes != cache, trace.peak_bytes > bound)
    return facts, sum(differ)


def _beside(predicted: int) -> Callable[[int], str]:
    """How a number of bytes is shown that is known exactly before."""

    def said(n: int) -> str:
        return f"{exact(n)} B, predicted {exact(predicted)}: difference {n - predicted}"

    return said


def _streamed(live: Live, trace: Trace, began: int) -> list[Fact]:
    """What one layer at a time needs at once, predicted, and how far memory has really grown."""
    at_once = layer_bytes(live.runner.anatomy, live.dtype) + trace.cache.n_bytes + trace.peak_bytes
    grown = peak_resident() - began

    def said(n: int) -> str:
        return f"{size(n)}; largest layer, embedding, head, cache and activations: {size(at_once)}"

    return [
        Fact("stream_bytes_predicted", at_once),
        Fact("peak_resident_growth_bytes", grown, "memory grew at most by", said),
    ]


def _by_rank(live: Live) -> Fact:
    """What every process holds of the weights."""
    loaded = live.runner.weights.loaded
    each = live.runner.ranks.gathered(loaded.n_bytes + loaded.buffer_bytes)

    def said(ns: Sequence[int]) -> str:
        return ", ".join(f"{exact(n)} B" for n in ns)

    return Fact("rank_weight_bytes", each, "weights by process", said)


def _said(
    live: Live, subject: Subject, steps: Sequence[Step], trace: Trace, tokenizer: Tokenizer | None
) -> list[str]:
    said = [*live.notes, *notes(subject, steps)]
    broken = first_nan(live, trace)
    if broken is not None:
        raise InputError(f"the model's output is not a number: {broken}")
    if subject.model.name == "toy":
        said.insert(0, "a toy model of 64 characters: its text is a toy's")
    if tokenizer is None:
        said.append("no tokenizer is beside the files: tokens are shown as ids")
    return said


def _labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    return [label(tokenizer, i) for i in ids]


def _next(trace: Trace, tokenizer: Tokenizer | None, k: int) -> list[Fact]:
    """The likeliest next tokens, and all logits of a small vocabulary."""
    last = trace.logits[0, -1]  # (V)
    items = [
        {"id": token, "token": label(tokenizer, token), "logit": logit, "probability": probability}
        for token, logit, probability in top(last, max(1, k))
    ]
    said = ", ".join(f"{x['token']} {x['probability']:.4f}" for x in items)
    facts = [Fact("next", items, "next token", lambda _: said)]
    if last.numel() <= _SMALL:
        facts.append(Fact("last_logits", [round(float(x), 6) for x in last.float()]))
    return facts


def _lens(live: Live, trace: Trace, tokenizer: Tokenizer | None) -> Fact:
    """The likeliest next token after each layer."""
    seen = [
        {"layer": layer, "id": token, "token": label(tokenizer, token), "probability": probability}
        for layer, token, probability in lens(live, trace)
    ]
    said = ", ".join(f"{x['layer']}: {x['token']} {x['probability']:.2f}" for x in seen)
    return Fact("logit_lens", seen, "after each layer", lambda _: said)


def _place(text: str, what: str) -> tuple[int, ...]:
    words = text.split(".")
    if not all(word.isdigit() for word in words):
        raise InputError(f"{what} is {text!r}; it is numbers: 3.0")
    return tuple(int(word) for word in words)


def _heat(trace: Trace, text: str, labels: Sequence[str]) -> Grid:
    """One head's weights: a row per query, a column per key."""
    place = _place(text, "--attention")
    if len(place) != 2:
        raise InputError(f"--attention is {text!r}; it is LAYER.HEAD: 0.3")
    layer, head = place
    weights = trace.kept.get((layer, "attn.weights"))  # (1, n_h, T, T)
    if weights is None:
        raise InputError(f"layer {layer} has no attention weights to draw")
    if head >= weights.shape[1]:
        raise InputError(f"--attention {text}: layer {layer} has heads 0 to {weights.shape[1] - 1}")
    numbers = weights[0, head].tolist()
    return Grid(
        title=f"layer {layer}, head {head}: how much each query (row) takes from each key (column)",
        corner="query",
        rows=list(labels),
        columns=list(labels),
        texts=[[f"{x:.2f}" if x else "·" for x in row] for row in numbers],
        heat=numbers,
    )


def _matrices(trace: Trace, text: str) -> list[Fact]:
    """Queries, keys, values and weights of one layer's heads, as they were."""
    layer = _place(text, "--qkv")[0]
    facts = []
    for slot in ("attn.q", "attn.k", "attn.v", "attn.weights"):
        tensor = trace.kept.get((layer, slot))  # (1, heads, T, d_h or T)
        if tensor is None:
            raise InputError(f"--qkv {text}: layer {layer} has no {slot}")
        if tensor.numel() > _PRINTED:
            raise InputError(
                f"--qkv {text}: {slot} has {tensor.numel()} numbers, too many to print"
            )
        heads = _rounded(tensor[0].tolist())
        facts.append(Fact(slot.replace(".", "_"), heads, slot, _written))
    return facts


def _rounded(x: Any) -> Any:
    """A nested list of numbers, each to five digits behind the point."""
    return [_rounded(y) for y in x] if isinstance(x, list) else round(x, 5)


def _written(heads: list[list[list[float]]]) -> str:
    lines = []
    for n, head in enumerate(heads):
        rows = [" ".join(f"{x:.3f}" for x in row) for row in head]
        lines.append(f"head {n}: " + " / ".join(rows))
    return "; ".join(lines)
