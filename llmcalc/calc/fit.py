"""Does a model fit: weights and cache, which are exact, and what an engine needs beside them, which is an estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.calc.cache.load import Cache, Load
from llmcalc.calc.kvcache import engine_for
from llmcalc.calc.parallel import check_degree
from llmcalc.calc.weights import rank_bytes
from llmcalc.dims import Dim
from llmcalc.dtypes import DType
from llmcalc.errors import InputError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one rank: exact where low and high are the same, else an estimate between them."""

    name: str
    n_bytes: int
    low: int
    high: int
    why: str

    @property
    def exact(self) -> bool:
        """Whether the number is a count and not an estimate."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Machine:
    """The memory of one rank, how many ranks, and the share that the engine may take."""

    visible: int
    count: int
    utilization: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the estimates depend on."""

    d_model: int
    d_ff: int
    vocab: int
    max_context: int
    experts: bool
    vision: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one rank: its parts, the memory that counts, what is left for the cache, and what it needs."""

    engine: str
    tp: int
    parts: tuple[Part, ...]
    usable: int
    need: int
    cache: Cache
    verdict: Literal["yes", "no", "unsure"]
    pool_low: int
    pool_high: int
    notes: tuple[str, ...] = ()

    @property
    def pool(self) -> int:
        """What is left for the cache by the middle of the estimates."""
        return self.usable - sum(p.n_bytes for p in self.parts)


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an engine needs beside weights and cache, from its start-up logs: middle, low and high, in bytes."""

    activation: tuple[int, int, int]
    other: tuple[int, int, int]
    graphs: tuple[int, int, int]
    graphs_in_pool: bool
    source: str


def activation_vllm(sizes: Sizes, sequences: int, tokens: int) -> int:
    """vLLM's peak while it profiles: sampling all sequences, or the widest MLP over a batch of tokens.

    ``max(3.5·max_num_seqs·V·4 B + c, T·2·(3·d_ff + 4·d))``, V padded to 64, c = 0.20 GiB (dense), 0.35 (multimodal),
    0.55 (experts): fitted to 59 start-up logs of 0.17 to 0.19.
    """
    vocab = -(-sizes.vocab // 64) * 64
    constant = 0.55 if sizes.experts else 0.35 if sizes.vision else 0.20
    sampling = 14 * sequences * vocab + int(constant * GIB)
    return max(sampling, tokens * 2 * (3 * sizes.d_ff + 4 * sizes.d_model))


def overheads_vllm(sizes: Sizes, tp: int, sequences: int, tokens: int, newest: bool) -> Overheads:
    """vLLM 0.17 to 0.19 on H100s and A100s; newer versions take the graphs out of the pool too."""
    middle = activation_vllm(sizes, sequences, tokens)
    spread = (0.11, 0.30) if not (sizes.experts or sizes.vision) else (0.36, 0.25)
    activation = (middle, max(0, middle - int(spread[0] * GIB)), middle + int(spread[1] * GIB))
    other = {1: 0.25, 2: 2.07}.get(tp, 2.15)
    slack = 0.21 if tp == 1 else 0.35
    return Overheads(
        activation,
        tuple(int(x * GIB) for x in (other, max(0.0, other - slack), other + slack)),  # type: ignore[arg-type]
        tuple(int(x * GIB) for x in (1.02, 0.51, 1.85)),  # type: ignore[arg-type]
        newest,
        "59 start-up logs of vLLM 0.17 to 0.19",
    )


def rope_bytes(sizes: Sizes, mixers: tuple[Mixer, ...]) -> int:
    """vLLM's table of rotations: one row of 16-bit numbers per position of the longest context."""
    widths = [int(m.values if m.kind == "latent" else m.d_qk) for m in mixers if m.kind in ("kv", "latent")]
    return sizes.max_context * max(widths, default=0) * 2


def absorbed_bytes(mixers: tuple[Mixer, ...], tp: int) -> int:
    """vLLM keeps latent attention's expansion a second time, split for absorption into queries and output."""
    latent = [m for m in mixers if m.kind == "latent"]
    return sum(
        len(m.layers.indices) * int(m.n_heads) // tp * int(m.d_qk - m.values + m.d_v) * int(m.keys) * 2 for m in latent
    )


def weights_part(
    anatomy: Anatomy, sizes: Sizes, engine: str, wide: DType, quant: str | None, tp: int, n_kv: int | None
) -> Part:
    """Weights of one rank: exact by the split of every tensor."""
    n = int(rank_bytes(anatomy, wide, quant, tp, n_kv))
    why = f"every tensor as one of {tp} ranks holds it, {quant or wide.name}"
    if engine.startswith("vllm"):
        n += rope_bytes(sizes, anatomy.mixers) + absorbed_bytes(anatomy.mixers, tp)
        why += ", with the rotary table"
    return Part("weights", n, n, n, why)


def plan(
    anatomy: Anatomy,
    sizes: Sizes,
    machine: Machine,
    load: Load,
    engine: str,
    wide: DType,
    quant: str | None = None,
    n_kv_heads: int | None = None,
    sequences: int = 1024,
) -> Plan:
    """Weights, working memory and cache of one rank against the memory that the engine may use."""
    check_degree(anatomy, machine.count)
    load = replace(load, tp=machine.count)
    function, note = engine_for(engine)
    cache = function(anatomy, load)
    weights = weights_part(anatomy, sizes, engine, wide, quant, machine.count, n_kv_heads)
    parts = [weights, *_working(sizes, load, engine, machine.count, sequences, machine)]
    usable = int(machine.visible * machine.utilization)
    low, high = usable - sum(p.high for p in parts), usable - sum(p.low for p in parts)
    need = int(cache.kv_bytes)
    verdict: Literal["yes", "no", "unsure"] = "yes" if need <= low else "no" if need > high else "unsure"
    notes = tuple(n for n in (*cache.notes, note) if n)
    return Plan(engine, machine.count, tuple(parts), usable, need, cache, verdict, low, high, notes)


def _working(sizes: Sizes, load: Load, engine: str, tp: int, sequences: int, machine: Machine) -> list[Part]:
    """What the engine needs beside weights and cache, each an estimate with its range and where it comes from."""
    base, _, version = engine.partition("@")
    if base == "vllm":
        newest = not version
        o = overheads_vllm(sizes, tp, sequences, load.batched_tokens, newest)
        parts = [
            Part("activations", *_ordered(o.activation), f"peak of one batch; {o.source}"),
            Part("context, NCCL", *_ordered(o.other), f"outside torch's allocator; {o.source}"),
        ]
        graphs = Part("CUDA graphs", *_ordered(o.graphs), f"{o.source}; taken out of the pool since 0.20")
        return [*parts, graphs] if newest else parts
    if base == "tensorrt-llm":
        big = machine.visible > 200 * GIB
        table = {1: 5.2, 2: 5.9} if big else {1: 4.0, 2: 4.6}
        middle = table.get(tp, 6.5 if big else 5.2)
        n = int(middle * GIB)
        return [Part("reserve", n, int(0.7 * n), int(1.5 * n), "72 published batch sizes; grows with max_num_tokens")]
    if base in ("llama.cpp", "ollama"):
        n = 4 * load.ubatch * (sizes.vocab + sizes.d_model)
        context = int(0.4 * GIB)
        return [
            Part(
                "compute buffer",
                n,
                n,
                2 * n,
                "4·n_ubatch·(V + d), the last layer's; attention without flash needs more",
            ),
            Part("CUDA context", context, int(0.25 * GIB), GIB, "300 to 1,000 MiB by CUDA version"),
        ]
    if base == "sglang":
        n = int(_sglang_reserve(machine, tp) * 2**20)
        return [Part("reserve", n, n, n + GIB, "mem_fraction_static's default of 0.5.23")]
    n = load_logits(sizes, load)
    context = int(0.4 * GIB)
    return [
        Part("logits", n, n, 4 * n, "one row of float32 per sequence; a prefill may keep more"),
        Part("CUDA context", context, int(0.25 * GIB), GIB, "300 to 1,000 MiB by CUDA version"),
    ]


def _sglang_reserve(machine: Machine, tp: int) -> float:
    """MiB that SGLang leaves outside weights and pools: activations, graphs, chunks (kv pool configurator, 0.5.23)."""
    gib = machine.visible / GIB
    chunk = 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
    graphs = (
        8
        if gib < 20
        else (48 if tp < 4 else 160)
        if gib < 35
        else (32 if tp < 4 else 160)
        if gib < 60
        else 256
        if tp < 4
        else 512
    )
    reserved = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024 + 2 * graphs
    return max(reserved, 10240) if gib > 60 else reserved


def load_logits(sizes: Sizes, load: Load) -> int:
    """One row of float32 logits per sequence."""
    return 4 * sizes.vocab * int(load.batch)


def _ordered(three: tuple[int, int, int]) -> tuple[int, int, int]:
    middle, low, high = three
    return middle, low, high


def default_utilization(engine: str) -> float:
    """The share of the memory that an engine takes unless told otherwise."""
    base, _, version = engine.partition("@")
    if base == "vllm":
        return 0.9 if version else 0.92
    return 0.9 if base == "tensorrt-llm" else 1.0


def degrees(anatomy: Anatomy, most: int) -> list[int]:
    """Tensor-parallel degrees up to ``most`` that divide the heads of every layer."""
    out = []
    for tp in range(1, most + 1):
        try:
            check_degree(anatomy, tp)
        except InputError:
            continue
        if tp & (tp - 1) == 0 or tp == most:
            out.append(tp)
    return out


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
    blocks, groups, block = blocks_in(pool, cache), cache.facts.get("groups"), cache.facts.get("block_size")
    return blocks // int(groups) * int(block) if blocks is not None and groups and block else None


def batch_tensorrt(visible: int, weights: int, reserve: int, per_token: int, tokens: int, fraction: float) -> int:
    """TensorRT-LLM's largest batch: a fraction of what is free, over sequences rounded up to blocks of 32 tokens."""
    free = int((visible - weights - reserve) * fraction)
    return max(0, free // (-(-tokens // 32) * 32 * per_token))


@dataclass(frozen=True, slots=True)
class Way:
    """One change that would make it fit, with its numbers."""

    what: str
    value: str
    left: int


def largest_that_fits(build: object, start: int, limit: int) -> int:
    """The largest n from ``start`` to ``limit`` for which ``build(n)`` fits, 0 if none does."""
    assert callable(build)
    if not build(start):
        return 0
    low, high = start, start
    while high < limit and build(min(2 * high, limit)):
        low = high = min(2 * high, limit)
    high = min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if build(middle) else (low, middle)
    return low


def at_context(load: Load, n: int) -> Load:
    """The load at another context."""
    return replace(load, context=Dim(n, "context"))


def at_batch(load: Load, n: int) -> Load:
    """The load with another number of sequences."""
    return replace(load, batch=Dim(n, "batch"))
