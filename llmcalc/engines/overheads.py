"""What an engine needs beside weights and cache: estimates, each with its range and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Mixer
from llmcalc.engines.cache import Load
from llmcalc.questions.kvcache import GGML, base_of, version_of

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


def counted(name: str, n_bytes: int, why: str) -> Part:
    """A part that is a count: its range is the number itself."""
    return Part(name, n_bytes, n_bytes, n_bytes, why)


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
class Overheads:
    """What an engine needs beside weights and cache, from its start-up logs: middle, low and high, in bytes."""

    activation: tuple[int, int, int]
    other: tuple[int, int, int]
    graphs: tuple[int, int, int]
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


def overheads_vllm(sizes: Sizes, tp: int, sequences: int, tokens: int) -> Overheads:
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
        "59 start-up logs of vLLM 0.17 to 0.19",
    )


def rope_bytes(sizes: Sizes, mixers: tuple[Mixer, ...]) -> int:
    """vLLM's table of rotations: one row of 16-bit numbers per position of the longest context."""
    widths = [
        int(m.values if m.kind == "latent" else m.d_qk)
        for m in mixers
        if m.kind in ("kv", "latent")
    ]
    return sizes.max_context * max(widths, default=0) * 2


def absorbed_bytes(mixers: tuple[Mixer, ...], tp: int) -> int:
    """vLLM keeps latent attention's expansion a second time, split for absorption into queries and output."""
    latent = [m for m in mixers if m.kind == "latent"]
    return sum(
        len(m.layers.indices)
        * int(m.n_heads)
        // tp
        * int(m.d_qk - m.values + m.d_v)
        * int(m.keys)
        * 2
        for m in latent
    )


def counts_graphs(version: tuple[int, int] | None) -> bool:
    """Whether that vLLM takes CUDA graphs out of the pool, and 0.92 of the memory: since 0.20."""
    return version is None or version >= (0, 20)


def working(
    sizes: Sizes, load: Load, engine: str, ranks: int, sequences: int, visible: int
) -> list[Part]:
    """What the engine needs beside weights and cache, each an estimate with its range and where it comes from."""
    base = base_of(engine)
    if base == "vllm":
        o = overheads_vllm(sizes, ranks, sequences, load.batched_tokens)
        parts = [
            Part("activations", *o.activation, f"peak of one batch; {o.source}"),
            Part("context, NCCL", *o.other, f"outside torch's allocator; {o.source}"),
        ]
        graphs = Part("CUDA graphs", *o.graphs, f"{o.source}; taken out of the pool since 0.20")
        return [*parts, graphs] if counts_graphs(version_of(engine)) else parts
    if base == "tensorrt-llm":
        big = visible > 200 * GIB
        table = {1: 5.2, 2: 5.9} if big else {1: 4.0, 2: 4.6}
        middle = table.get(ranks, 6.5 if big else 5.2)
        n = int(middle * GIB)
        return [
            Part(
                "reserve",
                n,
                int(0.7 * n),
                int(1.5 * n),
                "72 published batch sizes; grows with max_num_tokens",
            )
        ]
    if base in GGML:
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
        n = int(_sglang_reserve(visible, ranks) * 2**20)
        return [Part("reserve", n, n, n + GIB, "mem_fraction_static's default of 0.5.23")]
    n = 4 * sizes.vocab * int(load.batch)
    context = int(0.4 * GIB)
    return [
        Part("logits", n, n, 4 * n, "one row of float32 per sequence; a prefill may keep more"),
        Part("CUDA context", context, int(0.25 * GIB), GIB, "300 to 1,000 MiB by CUDA version"),
    ]


def _sglang_reserve(visible: int, tp: int) -> float:
    """MiB that SGLang leaves outside weights and pools: activations, graphs, chunks (kv pool configurator, 0.5.23)."""
    gib = visible / GIB
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
