"""Does a model fit: weights and cache, which are exact, and what an engine needs beside them, which is an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines.cache import Cache, Load
from llmcalc.engines.overheads import (
    Part,
    Sizes,
    absorbed_bytes,
    counted,
    counts_graphs,
    rope_bytes,
    working,
)
from llmcalc.formats.element import DType
from llmcalc.formats.stored import rank_bytes, stored_bytes
from llmcalc.parallel import TOWERS, check_degree, stage
from llmcalc.questions.kvcache import base_of, engine_for, version_of

Verdict = Literal["yes", "no", "unsure"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: a model, a load, an engine, and devices of ``visible`` bytes, ``tp`` times ``pp`` of them.

    ``wide`` is the dtype of the weights, ``quant`` how the matrices inside the layers are quantised. ``stored`` says
    what a checkpoint holds as it is: role to bytes in the file and elements in the model. ``sequences`` is vLLM's
    ``max_num_seqs``.
    """

    anatomy: Anatomy
    sizes: Sizes
    load: Load
    engine: str
    visible: int
    utilization: float
    wide: DType
    quant: str | None = None
    tp: int = 1
    pp: int = 1
    sequences: int = 1024
    stored: Mapping[str, tuple[int, int]] | None = None
    mix: str | None = None
    """The GGUF file type that ``stored`` is predicted from."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one rank: its parts, the memory that counts, what is left for the cache, and what it needs."""

    parts: tuple[Part, ...]
    usable: int
    cache: Cache
    pool_low: int
    pool_high: int
    notes: tuple[str, ...] = ()
    share: float = 1.0
    """TensorRT-LLM's fraction is one of what weights and working memory leave."""

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
        return (
            "yes"
            if self.need <= self.pool_low
            else "no"
            if self.need > self.pool_high
            else "unsure"
        )


def plan(ask: Ask) -> Plan:
    """Weights, working memory and cache of the fullest device against the memory that the engine may use."""
    check_degree(ask.anatomy, ask.tp)
    if ask.pp == 1:
        return _rank(ask)
    stages = [replace(ask, anatomy=stage(ask.anatomy, ask.pp, i)) for i in range(ask.pp)]
    return min((_rank(s) for s in stages), key=lambda p: p.pool - p.need)


def _rank(ask: Ask) -> Plan:
    load = replace(ask.load, tp=ask.tp)
    function, note = engine_for(ask.engine)
    cache = function(ask.anatomy, load)
    parts = [
        weights_part(ask),
        *working(ask.sizes, load, ask.engine, ask.tp * ask.pp, ask.sequences, ask.visible),
    ]
    of_rest = base_of(ask.engine) == "tensorrt-llm"
    usable = ask.visible if of_rest else int(ask.visible * ask.utilization)
    share = ask.utilization if of_rest else 1.0
    low, high = (
        left(usable, sum(ends), share) for ends in ([p.high for p in parts], [p.low for p in parts])
    )
    notes = tuple(n for n in (*cache.notes, note) if n)
    return Plan(tuple(parts), usable, cache, low, high, notes, share)


def left(usable: int, held: int, share: float) -> int:
    """What weights and working memory leave, or TensorRT-LLM's fraction of it."""
    return int((usable - held) * share)


def weights_part(ask: Ask) -> Part:
    """Weights of one device: a checkpoint as stored, else every tensor's share in the dtype that was asked for."""
    kv = max((int(m.n_kv_heads) for m in ask.anatomy.mixers if m.kind == "kv"), default=None)
    n: Dim = rank_bytes(ask.anatomy, ask.wide, ask.quant, ask.tp, kv)
    why = f"every tensor as one of {ask.tp} ranks holds it" if ask.tp > 1 else "every tensor"
    why += f", {ask.quant or ask.wide.name}"
    if ask.stored is not None:
        n = Dim(stored_bytes(ask.anatomy, ask.stored, ask.tp, kv), "stored_bytes")
        why = (
            f"every tensor as a {ask.mix} file has it"
            if ask.mix
            else "the tensors of the checkpoint, as stored"
        )
        why += f", as one of {ask.tp} ranks holds them" if ask.tp > 1 else ""
    if base_of(ask.engine) == "vllm":
        extra = rope_bytes(ask.sizes, ask.anatomy.mixers) + absorbed_bytes(
            ask.anatomy.mixers, ask.tp
        )
        n = n + Dim(extra, "rotary_bytes")
        why += ", with the rotary table"
    towers = [w for w in ask.anatomy.weights if w.role.startswith(TOWERS) and not w.tied_to]
    if ask.tp == 1 or not towers:
        return counted("weights", n, why)
    whole = int(sum(int(w.params) for w in towers)) * ask.wide.size
    return Part(
        "weights",
        n,
        n - whole + whole // ask.tp,
        int(n),
        f"{why}; the towers whole, or cut at best",
    )


def default_utilization(engine: str) -> float:
    """The share of the memory that an engine takes unless told otherwise."""
    base = base_of(engine)
    if base == "vllm":
        return 0.92 if counts_graphs(version_of(engine)) else 0.9
    return 0.9 if base == "tensorrt-llm" else 1.0


def blocks_in(pool: int, cache: Cache) -> int | None:
    """Blocks of vLLM's pool: whole ones only."""
    size = cache.facts.get("bytes_per_block")
    return pool // int(size) if size else None


def concurrency(pool: int, cache: Cache) -> float | None:
    """How many sequences of this context vLLM prints for a pool: blocks over blocks per sequence, the null block in."""
    blocks, each = blocks_in(pool, cache), cache.facts.get("blocks_per_sequence")
    return blocks / int(each) if blocks is not None and each else None


def pool_tokens(pool: int, cache: Cache, context: int) -> int | None:
    """Tokens that vLLM prints for a pool: blocks shared by the groups, in tokens of one block."""
    blocks, groups, block = (
        blocks_in(pool, cache),
        cache.facts.get("groups"),
        cache.facts.get("block_size"),
    )
    return blocks // int(groups) * int(block) if blocks is not None and groups and block else None


def batch_tensorrt(
    visible: int, weights: int, reserve: int, per_token: int, tokens: int, fraction: float
) -> int:
    """TensorRT-LLM's largest batch: a fraction of what is free, over sequences rounded up to blocks of 32 tokens."""
    free = left(visible, weights + reserve, fraction)
    return max(0, free // (-(-tokens // 32) * 32 * per_token))
