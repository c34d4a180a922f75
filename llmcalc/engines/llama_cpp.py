"""llama.cpp's cells: rounded to 256, one stream per sequence or one for all, windows with room for a batch.

Source: llama-kv-cache*.cpp, llama-memory-recurrent.cpp, llama-context.cpp as vendored in llama-cpp-python 0.3.36.
Ollama starts the same code (``-c num_ctx·num_parallel -np num_parallel``).
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, least, round_up, total
from llmcalc.engines.cache import Cache, Load, Row, gathered, in_bytes, kind_of
from llmcalc.errors import InputError

RULES = "llama.cpp of early 2026 (llama-kv-cache.cpp): cells in multiples of 256"
CACHE_TYPES = ("float32", "float16", "bfloat16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


NOT_RUN = (
    "gptj",
    "codegen",
    "gpt_neo",
    "opt",
    "biogpt",
    "ctrl",
    "xglm",
    "openai-gpt",
    "reformer",
    "megatron-bert",
)
"""Families without a graph in llama.cpp."""


def llama_cpp(anatomy: Anatomy, load: Load, engine: str = "llama.cpp") -> Cache:
    """The K and V tensors of every layer, and the recurrent memory, for ``batch`` slots of ``context`` tokens."""
    _check(anatomy, load)
    slots, one = load.batch, Dim(1)
    cells = (
        round_up(load.context * load.batch, 256) if load.unified else round_up(load.context, 256)
    )
    streams = one if load.unified else slots
    rows = [_row(m, load, cells, streams) for m in anatomy.mixers if m.kind not in ("none",)]
    notes = (
        ("the tensors of all devices together; --tp does not divide them",) if load.tp > 1 else ()
    )
    return gathered(engine, RULES, rows, cells * streams, notes)


def _check(anatomy: Anatomy, load: Load) -> None:
    """What llama.cpp refuses, and what is not known of it."""
    if anatomy.family in NOT_RUN:
        raise InputError(
            f"llama.cpp does not run {anatomy.family}", hint="--engine transformers does"
        )
    for kind, side in ((load.key_dtype, "K"), (load.value_dtype, "V")):
        if kind.name not in CACHE_TYPES:
            raise InputError(
                f"llama.cpp has no cache of type {kind.name}",
                hint=f"it has {', '.join(CACHE_TYPES)}",
            )
        for m in anatomy.mixers:
            if kind.block > 1 and load.flash_attention and m.d_qk and m.d_qk % kind.block:
                raise InputError(
                    f"{side} as {kind.name} needs heads that {kind.block} divides; a head has {int(m.d_qk)}"
                )
    if load.value_dtype.block > 1 and not load.flash_attention:
        raise InputError(
            f"llama.cpp holds V as {load.value_dtype.name} with flash attention only",
            hint="drop --no-flash-attention",
        )
    kinds = {m.kind for m in anatomy.mixers}
    if "latent" in kinds and load.key_dtype != load.value_dtype:
        raise InputError(
            "latent attention has one cache for K and V, so their types must be the same"
        )
    if "cross" in kinds or anatomy.family == "rwkv":
        raise InputError(f"the rule of llama.cpp's cache for {anatomy.family} is not known")
    if any(m.index_keys or m.compress_rate is not None for m in anatomy.mixers):
        raise InputError(
            f"the rule of llama.cpp's cache for the sparse attention of {anatomy.family} is not known"
        )


def _row(m: Mixer, load: Load, cells: Dim, streams: Dim) -> Row:
    state = m.layers.count * load.batch * _state(m)
    if not m.per_token:
        return Row(kind_of(m), m.layers, None, Dim(0), state)
    held = cells
    if m.window is not None and not load.swa_full:
        wide = m.window * load.batch if load.unified else m.window
        held = round_up(least(cells, wide + Dim(load.ubatch, "ubatch")), 256)
    each = _token(m, load)
    grows = m.window is None or int(held) == int(cells)
    kv = m.layers.count * each * held * streams
    return Row(kind_of(m), m.layers, held, kv, state, m.layers.count * each if grows else Dim(0))


def _token(m: Mixer, load: Load) -> Dim:
    """One cell of one layer: a row of K and a row of V; latent attention keeps one row for both."""
    if m.kind == "latent":
        return in_bytes(m.keys + m.values, load.key_dtype)
    same = load.key_dtype == load.value_dtype
    if same and load.key_dtype.block == 1:
        return in_bytes(m.keys + m.values, load.key_dtype)
    names = ("element_bytes", "element_bytes") if same else ("key_bytes", "value_bytes")
    return in_bytes(m.keys, load.key_dtype, names[0]) + in_bytes(
        m.values, load.value_dtype, names[1]
    )


def _state(m: Mixer) -> Dim:
    """Recurrent memory is float32 always; the convolution keeps one column less than its width."""
    return total(s.channels * (s.width - 1 if s.kind == "conv" else s.width) * 4 for s in m.states)


OLLAMA_OLDER = "Ollama to 0.11 (fs/ggml/ggml.go): its own runner, windows plus one batch, latent attention expanded"


def ollama_older(anatomy: Anatomy, load: Load) -> Cache:
    """What Ollama's own runner allocated, before it started llama.cpp's server."""
    tokens = load.context * load.batch
    rows = []
    for m in anatomy.mixers:
        if m.kind == "latent":
            m = replace(m, kind="kv", keys=m.n_heads * m.d_qk, values=m.n_heads * m.d_v)
        if m.kind == "cross" or m.compress_rate is not None or m.index_keys:
            raise InputError(f"the rule of Ollama's older cache for {anatomy.family} is not known")
        held = (
            m.window * load.batch + Dim(load.ubatch, "ubatch") if m.window is not None else tokens
        )
        each = _token(m, load)
        grows = m.layers.count * each if m.window is None else Dim(0)
        rows.append(
            Row(
                kind_of(m),
                m.layers,
                held,
                m.layers.count * each * held,
                m.layers.count * load.batch * _state(m),
                grows,
            )
        )
    return gathered("ollama", OLLAMA_OLDER, rows, tokens)


def ollama(anatomy: Anatomy, load: Load) -> Cache:
    """What Ollama's server allocates: llama.cpp's cells for ``num_ctx`` tokens in each of ``num_parallel`` slots."""
    return llama_cpp(anatomy, load, "ollama")
