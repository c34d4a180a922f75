"""The roofline of prefill and decoding: work and bytes against a device's peaks.

A bound, not a forecast.

A step takes at least FLOP over the peak rate, and at least bytes over the bandwidth (Williams et
al. 2009); which of the two is larger says what limits. Real engines reach a part of it: efficiency
factors are the caller's, 1 is the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.devices import Device
from llmcalc.dims import Dim
from llmcalc.engines.cache import Load
from llmcalc.engines.formula import formula
from llmcalc.errors import InputError
from llmcalc.formats.stored import Format, Packed, Plain, Published, stored
from llmcalc.questions.flops import decode_flop, forward_flop
from llmcalc.questions.kvcache import known
from llmcalc.questions.weights import format_of
from llmcalc.sources.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What one device can do at most:

    FLOP per second, bytes per second from its memory, and over its link.
    """

    flop_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass on one device: its work, its bytes, and the least time that each takes."""

    flop: int
    weight_bytes: int
    kv_bytes: int
    link_bytes: int
    compute_s: float
    memory_s: float
    link_s: float
    tokens: int

    @property
    def seconds(self) -> float:
        """The least time: the larger of work and bytes, then what goes over the link."""
        return max(self.compute_s, self.memory_s) + self.link_s

    @property
    def intensity(self) -> float:
        """FLOP per byte of memory."""
        return self.flop / (self.weight_bytes + self.kv_bytes)

    @property
    def limit(self) -> str:
        """What binds."""
        return "arithmetic" if self.compute_s > self.memory_s else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A model in some format on ``tp`` devices that work together, with ``batch`` sequences of
    ``context`` tokens.
    """

    anatomy: Anatomy
    load: Load
    peaks: Peaks
    weights: Format
    element: int = 2
    """Bytes of a number that devices send each other."""
    tp: int = 1
    whole_head: bool = False
    compute_share: float = 1.0
    memory_share: float = 1.0


def ask_for(
    model: Model,
    *,
    load: Load,
    peaks: Peaks,
    weights: str | None = None,
    tp: int = 1,
    compute_share: float = 1.0,
    memory_share: float = 1.0,
    whole_head: bool = False,
) -> Ask:
    """The question of a model whose weights are in their own format, or in one asked for
    by name.
    """
    for flag, share in (("--compute-share", compute_share), ("--memory-share", memory_share)):
        if not 0 < share <= 1:
            raise InputError(f"{flag} is {share}; it must be above 0 and at most 1")
    known(model.anatomy)
    form = format_of(model, weights)
    element = form.wide.size if isinstance(form, Plain | Packed | Published) else model.wide.size
    return Ask(
        anatomy=model.anatomy,
        load=replace(load, tp=1),
        peaks=peaks,
        weights=form,
        element=element,
        tp=tp,
        compute_share=compute_share,
        memory_share=memory_share,
        whole_head=whole_head,
    )


def peaks_of(
    device: Device | None,
    *,
    flop_per_s: float | None = None,
    bytes_per_s: float | None = None,
    link_bytes_per_s: float | None = None,
) -> Peaks:
    """A device's peaks, or rates that replace them; what is not known is an InputError."""
    flop = flop_per_s or (_best(device) if device else None)
    bandwidth = bytes_per_s or (device.bandwidth if device else None)
    if not flop or not bandwidth:
        missing = "--device h100" if device is None else "--flop-rate and --bandwidth"
        raise InputError(
            f"the peaks are not known: give {missing}", hint="`llmcalc list devices` shows all"
        )
    link = link_bytes_per_s or (device.link if device else None)
    return Peaks(flop_per_s=flop, bytes_per_s=bandwidth, link_bytes_per_s=link)


def _best(device: Device) -> float | None:
    """The rate for 16-bit matrices, in which weights of any format are multiplied.

    Where an engine multiplies in fewer bits, the caller says so.
    """
    rates = (device.flops.get(kind) for kind in ("bf16", "fp16", "fp32"))
    return next((float(rate) for rate in rates if rate), None)


def weight_reads(
    anatomy: Anatomy, form: Format, tokens: int = 1, tp: int = 1, *, whole_head: bool = False
) -> int:
    """Bytes of weights that one device reads for some tokens: matrices once, of experts those hit.

    The lookup of the embedding is left out; a tied head is read all the same. ``whole_head`` says
    that every device reads all of the head.
    """
    pieces = stored(anatomy, form, tp)
    heads = stored(anatomy, form) if whole_head else pieces
    tied = {w.tied_to for w in anatomy.text if w.tied_to and w.is_matrix}
    read = Fraction(0)
    for piece in pieces:
        weight = piece.weight
        passed = weight.text and weight.op != "lookup" and weight.role != "head"
        if passed and not (weight.buffer and weight.op == "state"):
            read += int(piece.n_bytes) * _hit(weight, tokens)
    for piece in heads:
        if piece.weight.role == "head" or piece.weight.name in tied:
            read += int(piece.n_bytes)
    return ceil(read)


def _hit(weight: Weight, tokens: int) -> Fraction:
    """The share of a weight's experts that some tokens pass through: 1 - (1 - k/E)^tokens."""
    if not weight.routed or weight.active >= weight.experts:
        return Fraction(1)
    missed = 1 - Fraction(int(weight.active), int(weight.experts))
    return 1 - missed**tokens if tokens <= 64 else Fraction(1 - float(missed) ** tokens)


def kv_reads(ask: Ask, context: int) -> int:
    """Bytes of the cache that one device reads to decode one token of every sequence."""
    load = replace(ask.load, context=Dim(context, "context"), tp=ask.tp)
    return int(formula(ask.anatomy, load).kv_bytes)


def link_bytes(anatomy: Anatomy, tokens: int, tp: int, element: int = 2) -> int:
    """Bytes that one device sends for tensor parallelism: two all-reduces per layer, 2·(tp - 1)/tp
    each.
    """
    if tp == 1:
        return 0
    sums = [w for w in anatomy.text if w.role in ("attn.o", "mlp.down", "ssm.out")]
    layers = {(w.role.split(".")[0], i) for w in sums for i in w.layers.indices}
    width = anatomy.d_model
    return 2 * (tp - 1) * len(layers) * tokens * width * element // tp


def _step(ask: Ask, flop: int, weights: int, kv: int, tokens: int) -> Step:
    link = link_bytes(ask.anatomy, tokens, ask.tp, ask.element)
    rate = ask.peaks.link_bytes_per_s
    if link and not rate:
        raise InputError(
            "the device's link is not known, which tensor parallelism needs", hint="--link 450GB"
        )
    compute_rate = ask.peaks.flop_per_s * ask.compute_share
    memory_rate = ask.peaks.bytes_per_s * ask.memory_share
    return Step(
        flop=flop // ask.tp,
        weight_bytes=weights,
        kv_bytes=kv,
        link_bytes=link,
        compute_s=flop / ask.tp / compute_rate,
        memory_s=(weights + kv) / memory_rate,
        link_s=link / rate if rate else 0.0,
        tokens=tokens,
    )


def _reads(ask: Ask, tokens: int) -> int:
    return weight_reads(ask.anatomy, ask.weights, tokens, ask.tp, whole_head=ask.whole_head)


def decode(ask: Ask) -> Step:
    """One token of every sequence: weights read once, and every sequence's cache."""
    batch, context = int(ask.load.batch), int(ask.load.context)
    reads = _reads(ask, batch)
    return _step(
        ask, batch * decode_flop(ask.anatomy, context), reads, kv_reads(ask, context), batch
    )


def prefill(ask: Ask) -> Step:
    """The prompts of every sequence at once, attention causal; the cache is written once."""
    batch, context = int(ask.load.batch), int(ask.load.context)
    tokens = batch * context
    reads = _reads(ask, tokens)
    return _step(
        ask, batch * forward_flop(ask.anatomy, context), reads, kv_reads(ask, context), tokens
    )


def ridge(peaks: Peaks) -> float:
    """FLOP per byte from which arithmetic limits and no longer memory."""
    return peaks.flop_per_s / peaks.bytes_per_s
