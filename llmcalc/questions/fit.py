"""Does a model fit: weights and cache, which are counted, and what an engine needs beside them.

The counted parts are exact for the rules that their engine's row names; what is estimated carries
its range and the measurements that it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines import Chosen, choose
from llmcalc.engines.base import Need, Part, counted
from llmcalc.engines.cache import Cache, Load, gathered
from llmcalc.errors import InputError
from llmcalc.formats.stored import Checkpoint, FileType, Format, stored_bytes
from llmcalc.parallel import check_degree, stage
from llmcalc.questions.kvcache import keeps_something
from llmcalc.questions.weights import format_of
from llmcalc.sources.model import Model
from llmcalc.units import size as size_of

Verdict = Literal["yes", "no", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a log says of this start, in place of a term: bytes of a rank, None where it says none.

    ``used`` are what other programs hold of a device.
    """

    weights: int | None = None
    pool: int | None = None
    used: int = 0


NOTHING_MEASURED = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question: a model, a load, an engine, and devices of ``visible`` bytes.

    There are ``tp`` times ``pp`` devices. ``sequences`` are those that the engine makes room for at
    a time (vLLM's ``max_num_seqs``), ``max_context`` the longest that the model was made for.
    """

    anatomy: Anatomy
    load: Load
    engine: str
    visible: int
    utilization: float
    weights: Format
    max_context: int = 0
    tp: int = 1
    pp: int = 1
    sequences: int = 1024
    device: str = ""
    """Its name, in small letters; empty where only its memory is known."""
    mxfp4: bool = False
    """Whether its experts are published in MXFP4, which engines lay out in their own way."""
    measured: Measured = NOTHING_MEASURED
    whole: Anatomy | None = None
    """The model that ``anatomy`` is a stage of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer for one rank: its parts, the memory that counts, what is left for the cache."""

    parts: tuple[Part, ...]
    usable: int
    cache: Cache
    pool_low: int
    pool_high: int
    notes: tuple[str, ...] = ()
    share: float = 1.0
    """TensorRT-LLM's fraction is one of what weights and working memory leave."""
    known: bool = True
    """Whether more than the weights is known."""
    starts: bool = True
    """Whether the engine starts beside what others hold."""

    @property
    def need(self) -> int:
        """What the cache takes."""
        return int(self.cache.kv_bytes)

    @property
    def pool(self) -> int:
        """What is left for the cache by the middle of the estimates."""
        return left(self.usable, sum(p.n_bytes for p in self.parts), self.share)

    @property
    def verdict(self) -> Verdict:
        """Yes and no where every estimate agrees, unsure between them."""
        if not self.starts:
            return "no"
        if not self.known:
            return "no" if self.pool_high < 0 else "unsure"
        if self.need <= self.pool_low:
            return "yes"
        return "no" if self.need > self.pool_high else "unsure"


def ask_for(
    model: Model,
    *,
    load: Load,
    engine: str,
    visible: int,
    count: int = 1,
    pp: int = 1,
    weights: str | None = None,
    utilization: float | None = None,
    sequences: int | None = None,
    device: str = "",
    measured: Measured = NOTHING_MEASURED,
) -> Ask:
    """The question of a model on ``count`` devices, ``pp`` stages of them, each of ``visible``
    bytes.

    An engine that divides by layers makes a stage of every device. A checkpoint that the engine
    does not read as it is (safetensors under llama.cpp) is counted as its conversion in 16 bits.
    """
    for flag, value in (("--count", count), ("--pp", pp), ("--max-seqs", sequences)):
        if value is not None and value < 1:
            raise InputError(f"{flag} is {value}; it must be at least 1")
    if count % pp:
        raise InputError(f"--pp {pp} does not divide {count} devices")
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError(f"--utilization is {utilization}; it must be above 0 and at most 1")
    chosen = choose(engine)
    anatomy = model.anatomy
    if anatomy.cache_known:
        keeps_something(anatomy, chosen.engine)
    if anatomy.cache_known and not anatomy.vocab:
        raise InputError(
            f"{model.name} has no vocabulary: only its blocks are described", hint="give --vocab"
        )
    if model.header is not None and model.header.format not in chosen.engine.reads:
        model = replace(model, header=None)
    stages = count if chosen.engine.by_layers else pp
    device = device.lower()
    if chosen.engine.default_batch is not None and load.batched_tokens is None:
        usual_batch = chosen.engine.default_batch(device, visible, chosen.version)
        load = replace(load, batched_tokens=usual_batch)
    if sequences is None and chosen.engine.default_sequences is not None:
        sequences = chosen.engine.default_sequences(device, visible)
    usual = chosen.rules.utilization
    if chosen.engine.default_utilization is not None:
        usual = chosen.engine.default_utilization(visible, count)
    _check_measured(measured, visible, chosen)
    if measured.pool is not None and not anatomy.cache_known:
        raise InputError(
            f"--pool-measured asks what fits into a pool, and what {anatomy.family} keeps is not"
            " known"
        )
    return Ask(
        anatomy=model.anatomy,
        load=load,
        engine=engine,
        visible=visible,
        utilization=usual if utilization is None else utilization,
        weights=format_of(model, weights),
        max_context=model.longest_context or 0,
        tp=count // stages,
        pp=stages,
        sequences=sequences or 1024,
        device=device,
        measured=measured,
        mxfp4=weights is None and (model.quantisation or {}).get("quant_method") == "mxfp4",
    )


def _check_measured(measured: Measured, visible: int, chosen: Chosen) -> None:
    if measured.used >= visible:
        raise InputError(f"--used is {size_of(measured.used)}, and the device has no more")
    if chosen.engine.by_layers and (measured.weights, measured.pool) != (None, None):
        raise InputError(
            f"{chosen.engine.name} has no pool: --weights-measured and --pool-measured are of"
            " engines that share one"
        )


def fit(ask: Ask) -> Plan:
    """Weights, working memory and cache of the fullest device against what the engine may use."""
    check_degree(ask.anatomy, ask.tp)
    if ask.pp == 1:
        return _rank(ask)
    stages = [
        replace(ask, anatomy=stage(ask.anatomy, ask.pp, i), whole=ask.anatomy)
        for i in range(ask.pp)
    ]
    return min((_rank(s) for s in stages), key=lambda p: p.pool - p.need)


def _rank(ask: Ask) -> Plan:
    chosen = choose(ask.engine)
    rules, load = chosen.rules, replace(ask.load, tp=ask.tp)
    if not ask.anatomy.cache_known:
        return _weights_alone(ask)
    parts = [weights_part(ask), *rules.working(_need(ask))]
    cache = rules.cache(ask.anatomy, load)
    usable = ask.visible if rules.of_the_rest else int(ask.visible * ask.utilization)
    share = ask.utilization if rules.of_the_rest else 1.0
    usable, starts, said = _beside_others(ask, chosen, usable)
    if ask.measured.pool is not None:
        parts = [parts[0], _rest(usable - parts[0].n_bytes - int(ask.measured.pool / share))]
    return Plan(
        parts=tuple(parts),
        usable=usable,
        cache=cache,
        pool_low=left(usable, sum(p.high for p in parts), share),
        pool_high=left(usable, sum(p.low for p in parts), share),
        notes=tuple(n for n in (*cache.notes, chosen.note, said) if n),
        share=share,
        starts=starts,
    )


def _beside_others(ask: Ask, chosen: Chosen, usable: int) -> tuple[int, bool, str]:
    """What is usable beside what others hold, whether the engine starts, and what to say."""
    used, name = ask.measured.used, chosen.engine.name
    if not used:
        return usable, True, ""
    if not chosen.engine.wants_its_share_free:
        return usable - used, True, f"{size_of(used)} of the device are taken by others (--used)"
    free = ask.visible - used
    if usable <= free:
        return usable, True, f"{name} counts its share of all: what others hold lies outside of it"
    most = int(100 * free / ask.visible) / 100
    return (
        usable,
        False,
        f"{name} does not start: its share is {size_of(usable)} and {size_of(free)} are free;"
        f" --utilization {most:g} at most",
    )


def _rest(n_bytes: int) -> Part:
    """All that a measured pool leaves beside the weights."""
    if n_bytes < 0:
        raise InputError(
            f"--pool-measured and the weights are {size_of(-n_bytes)} more than what is usable",
            hint="give the log's --utilization, and its weights with --weights-measured",
        )
    return counted("the rest", Dim(n_bytes), "what the measured pool leaves of the usable")


def _weights_alone(ask: Ask) -> Plan:
    """The answer where tensors are counted and not explained."""
    chosen = choose(ask.engine)
    part = _measured_weights(ask) or counted(
        "weights", stored_bytes(ask.anatomy, ask.weights, ask.tp), _said(ask)
    )
    usable, starts, said = _beside_others(ask, chosen, int(ask.visible * ask.utilization))
    room = usable - int(part.n_bytes)
    why = f"what {ask.anatomy.family} keeps and needs beside its weights is not known: no family"
    return Plan(
        parts=(part,),
        usable=usable,
        cache=gathered(chosen.name, "not known", [], ask.load.context),
        pool_low=room,
        pool_high=room,
        notes=tuple(n for n in (f"{why} describes it", said) if n),
        known=False,
        starts=starts,
    )


def _need(ask: Ask) -> Need:
    """What the engine's estimates depend on; the whole model's sizes, on whatever stage."""
    return Need(
        anatomy=ask.whole or ask.anatomy,
        here=ask.anatomy,
        load=replace(ask.load, tp=ask.tp),
        ranks=ask.tp * ask.pp,
        sequences=ask.sequences,
        visible=ask.visible,
        max_context=ask.max_context,
        device=ask.device,
        utilization=ask.utilization,
    )


def left(usable: int, held: int, share: float) -> int:
    """What weights and working memory leave, or the engine's fraction of it."""
    return int((usable - held) * share)


def weights_part(ask: Ask) -> Part:
    """Weights of one device: a checkpoint as stored, else every tensor in the format asked for."""
    measured = _measured_weights(ask)
    if measured is not None:
        return measured
    rules = choose(ask.engine).rules
    n: Dim = stored_bytes(ask.anatomy, ask.weights, ask.tp)
    why = _said(ask)
    copies = rules.copies(_need(ask))
    if rules.copies_why:
        n = n + Dim(copies, "rotary_bytes")
        why += f", {rules.copies_why}"
    more = rules.padded(ask.anatomy, ask.tp) if rules.padded is not None and ask.mxfp4 else None
    if more is not None:
        why += "; MXFP4 experts as its backend pads them: Marlin, at least FlashInfer CUTLASS"
        low, high = int(n) + more[0], int(n) + more[1]
        return Part(name="weights", n_bytes=Dim(high), low=low, high=high, why=why)
    towers = [w for w in ask.anatomy.weights if w.tower and w.stored]
    if ask.tp == 1 or not towers:
        return counted("weights", n, why)
    # which engines cut a tower is not known: it is whole on every rank, or cut at best
    whole = int(stored_bytes(replace(ask.anatomy, parts=tuple(towers)), ask.weights))
    low = int(n) - whole + whole // ask.tp
    why += "; the towers whole, or cut at best"
    return Part(name="weights", n_bytes=n, low=low, high=int(n), why=why)


def _measured_weights(ask: Ask) -> Part | None:
    """The weights that a log prints, None where none is given."""
    if ask.measured.weights is None:
        return None
    return counted("weights", Dim(ask.measured.weights), "as measured (--weights-measured)")


def _said(ask: Ask) -> str:
    """Whose bytes they are."""
    ranks = f"as one of {ask.tp} ranks holds" if ask.tp > 1 else ""
    if isinstance(ask.weights, Checkpoint):
        said = "the tensors of the checkpoint, as stored"
    elif isinstance(ask.weights, FileType):
        said = f"every tensor as a {ask.weights.name} file has it"
    else:
        said = f"every tensor {ranks} it" if ranks else "every tensor"
        return f"{said}, {ask.weights.name}"
    return f"{said}, {ranks} them" if ranks else said


def printed_tokens(chosen: Chosen, pool: int, cache: Cache, context: int) -> int | None:
    """Tokens that the engine prints for a pool; None where it prints none."""
    prints = chosen.rules.prints
    return prints(pool, cache, context) if prints is not None else None
