"""The roofline of prefill and decoding: work and bytes against a device's peaks. A bound, not a forecast.

A step takes at least FLOP over the peak rate, and at least bytes over the bandwidth (Williams et al. 2009); which of
the two is larger says what limits. Real engines reach a part of it: efficiency factors are the caller's, 1 is the
bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import Dim
from llmcalc.engines.cache import Load
from llmcalc.engines.plain import formula
from llmcalc.errors import InputError
from llmcalc.formats.file_type import mix
from llmcalc.formats.stored import QUANTISED, quantisable
from llmcalc.parallel import SPLIT
from llmcalc.questions.flops import decode_flop, forward_flop, in_text


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one device can do at most: FLOP per second, bytes per second from its memory, and over its link."""

    flop_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: bytes of what stays wide, and exact bytes per packed element (None packs nothing).

    ``head`` says whether the head is packed too, ``whole_head`` whether every device reads all of it.
    """

    wide: int = 2
    packed: Fraction | None = None
    head: bool = False
    whole_head: bool = False
    each: Mapping[str, Fraction] | None = None
    """Bytes per element of every weight, by name, where each has its own format."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Ask:
    """A model in some format on ``tp`` devices that work together, with ``batch`` sequences of ``context`` tokens."""

    anatomy: Anatomy
    load: Load
    peaks: Peaks
    form: Format
    tp: int = 1
    compute_share: float = 1.0
    memory_share: float = 1.0


def named_format(quant: str | None, wide: int) -> Format:
    """The format of a quantisation that ``calc.weights`` knows by name."""
    if quant is None:
        return Format(wide)
    if quant not in QUANTISED:
        raise InputError(
            f"no weight format is called {quant!r}",
            hint=f"known: {', '.join(QUANTISED)}, or a dtype",
        )
    n_bytes, per, _ = QUANTISED[quant]
    return Format(wide, Fraction(n_bytes, per))


def weight_reads(anatomy: Anatomy, form: Format, tokens: int = 1, tp: int = 1) -> int:
    """Bytes of weights that one device reads for ``tokens`` tokens: matrices once, of experts those that are hit.

    The lookup of the embedding is left out; a tied head is read all the same. Norms and routers are on every device.
    """
    total = Fraction(0)
    for w in anatomy.weights:
        if w.op == "lookup" or not in_text(w) or (w.buffer and w.op == "state"):
            continue
        elements = Fraction(int(w.layers.count * w.per_layer)) * _hit(w, tokens)
        total += elements * _bytes_each(w, form) / _devices(w, form, tp)
    return ceil(total)


def _hit(weight: Weight, tokens: int) -> Fraction:
    """The share of a weight's experts that some tokens pass through: 1 - (1 - k/E)^tokens."""
    if weight.experts <= 1 or weight.active >= weight.experts:
        return Fraction(1)
    missed = 1 - Fraction(int(weight.active), int(weight.experts))
    return 1 - missed**tokens if tokens <= 64 else Fraction(1 - float(missed) ** tokens)


def mixed_format(anatomy: Anatomy, file_type: str, wide: int) -> Format:
    """The format of a GGUF file type: every weight in what llama.cpp's quantiser gives it."""
    sums: dict[str, tuple[int, int]] = {}
    for t in mix(anatomy, file_type):
        n_bytes, elements = sums.get(t.weight.name, (0, 0))
        sums[t.weight.name] = (n_bytes + t.n_bytes, elements + t.elements)
    return Format(wide, each={name: Fraction(*pair) for name, pair in sums.items()})


def _bytes_each(weight: Weight, form: Format) -> Fraction:
    if form.each is not None:
        return form.each.get(weight.tied_to or weight.name, Fraction(form.wide))
    packs = quantisable(weight) or (weight.role == "head" and form.head and weight.op == "matmul")
    return form.packed if form.packed is not None and packs else Fraction(form.wide)


def _devices(weight: Weight, form: Format, tp: int) -> int:
    if weight.role == "head":
        return 1 if form.whole_head else tp
    return tp if SPLIT.get(weight.role) and weight.op != "scale" else 1


def kv_reads(ask: Ask, context: int) -> int:
    """Bytes of the cache that one device reads to decode one token of every sequence."""
    load = replace(ask.load, context=Dim(context, "context"), tp=ask.tp)
    return int(formula(ask.anatomy, load).kv_bytes)


def link_bytes(anatomy: Anatomy, tokens: int, tp: int, element: int = 2) -> int:
    """Bytes that one device sends for tensor parallelism: two all-reduces per layer, 2·(tp - 1)/tp each."""
    if tp == 1:
        return 0
    sums = [
        w for w in anatomy.weights if w.role in ("attn.o", "mlp.down", "ssm.out") and in_text(w)
    ]
    layers = {(w.role.split(".")[0], i) for w in sums for i in w.layers.indices}
    width = next((int(w.shape[1 if w.transposed else 0]) for w in sums), 0)
    return 2 * (tp - 1) * len(layers) * tokens * width * element // tp


def _step(ask: Ask, flop: int, weights: int, kv: int, tokens: int) -> Step:
    link = link_bytes(ask.anatomy, tokens, ask.tp, ask.form.wide)
    rate = ask.peaks.link_bytes_per_s
    if link and not rate:
        raise InputError(
            "the device's link is not known, which tensor parallelism needs", hint="--link 450GB"
        )
    return Step(
        flop // ask.tp,
        weights,
        kv,
        link,
        flop / ask.tp / (ask.peaks.flop_per_s * ask.compute_share),
        (weights + kv) / (ask.peaks.bytes_per_s * ask.memory_share),
        link / rate if rate else 0.0,
        tokens,
    )


def decode(ask: Ask) -> Step:
    """One token of every sequence: weights read once, and every sequence's cache."""
    batch, context = int(ask.load.batch), int(ask.load.context)
    reads = weight_reads(ask.anatomy, ask.form, batch, ask.tp)
    return _step(
        ask, batch * decode_flop(ask.anatomy, context), reads, kv_reads(ask, context), batch
    )


def prefill(ask: Ask) -> Step:
    """The prompts of every sequence at once, attention causal; the cache is written once."""
    batch, context = int(ask.load.batch), int(ask.load.context)
    tokens = batch * context
    reads = weight_reads(ask.anatomy, ask.form, tokens, ask.tp)
    return _step(
        ask, batch * forward_flop(ask.anatomy, context), reads, kv_reads(ask, context), tokens
    )


def ridge(peaks: Peaks) -> float:
    """FLOP per byte from which arithmetic limits and no longer memory."""
    return peaks.flop_per_s / peaks.bytes_per_s
