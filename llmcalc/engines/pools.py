"""SGLang's and TensorRT-LLM's pools: tokens and blocks at a price per token.

Sources: SGLang 0.5.23 (model_executor/pool_configurator.py, mem_cache/*); TensorRT-LLM's PyTorch backend
(_torch/pyexecutor/resource_manager.py) of 2026.
"""

from __future__ import annotations

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, ceil_div, round_up
from llmcalc.engines.cache import (
    Cache,
    Load,
    Row,
    gathered,
    kind_of,
    shared_heads,
    state_size,
    token_bytes,
)
from llmcalc.errors import InputError

SGLANG = "SGLang 0.5.23 (pool_configurator.py): tokens at a price each, windows at a fixed ratio"
TENSORRT = (
    "TensorRT-LLM of 2026, PyTorch backend (resource_manager.py): blocks of 32 tokens, windows off"
)


def sglang(anatomy: Anatomy, load: Load) -> Cache:
    """Slots of the token pools for these sequences; layers with a window have a pool of their own."""
    mixers = [shared_heads(m, load.tp) for m in anatomy.mixers if m.kind not in ("none", "shared")]
    _refuse(anatomy, mixers, "SGLang", index=True)
    hybrid = any(m.window for m in mixers) and any(m.per_token and not m.window for m in mixers)
    top, bottom = load.swa_ratio
    page = load.block_size or 1
    tokens = round_up(load.context * load.batch, page) if page > 1 else load.context * load.batch
    rows = []
    for m in mixers:
        state = m.layers.count * load.batch * state_size(m, load, True)
        if not m.per_token:
            rows.append(Row(kind_of(m), m.layers, None, Dim(0), state))
            continue
        held = tokens * top // bottom if hybrid and m.window else tokens
        each = token_bytes(m, load)
        rows.append(
            Row(
                kind_of(m),
                m.layers,
                held,
                m.layers.count * each * held,
                state,
                m.layers.count * each,
            )
        )
    notes: tuple[str, ...] = (f"one further page of {page} tokens per pool is padding",)
    if hybrid:
        notes = (
            *notes,
            f"the window's pool has {top}/{bottom} of the other's tokens (swa_full_tokens_ratio)",
        )
    return gathered("sglang", SGLANG, rows, tokens, notes)


def tensorrt_llm(anatomy: Anatomy, load: Load) -> Cache:
    """Blocks of 32 tokens per sequence; without ``max_attention_window`` every layer holds every token."""
    mixers = [
        shared_heads(m, load.tp, ceil=True)
        for m in anatomy.mixers
        if m.kind not in ("none", "shared")
    ]
    _refuse(anatomy, mixers, "TensorRT-LLM", index=False)
    if any(m.states for m in mixers):
        raise InputError("the rule of TensorRT-LLM's cache for recurrent layers is not known")
    block = load.block_size or 32
    rows = []
    for m in mixers:
        each, held = token_bytes(m, load), ceil_div(load.context, block) * block
        kv = m.layers.count * each * held * load.batch
        rows.append(Row(kind_of(m), m.layers, held, kv, Dim(0), m.layers.count * each))
    windows = any(m.window for m in mixers)
    notes = (
        ("windows are not used unless max_attention_window is set: every layer holds every token",)
        if windows
        else ()
    )
    return gathered(
        "tensorrt-llm", TENSORRT, rows, round_up(load.context, block) * load.batch, notes
    )


def _refuse(anatomy: Anatomy, mixers: list[Mixer], engine: str, *, index: bool) -> None:
    """A kind of cache whose rule is not known for the engine is refused by name."""
    for m in mixers:
        if m.kind == "cross" or m.compress_rate is not None or (m.index_keys and not index):
            raise InputError(
                f"the rule of {engine}'s cache for the {kind_of(m)} layers of {anatomy.family} is not known"
            )
