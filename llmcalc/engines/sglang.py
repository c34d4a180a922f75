"""SGLang: tokens at a price each, layers with a window in a pool of their own.

Source: model_executor/pool_configurator.py and mem_cache of SGLang 0.5.23.
"""

from __future__ import annotations

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim, round_up
from llmcalc.engines.base import GIB, Engine, Need, Part, Rules, estimated, half_precision
from llmcalc.engines.cache import (
    Cache,
    Load,
    Row,
    gathered,
    kind_of,
    refuse_unknown,
    state_size,
    token_bytes,
)
from llmcalc.parallel import shared_heads

RULES = "SGLang 0.5.23 (pool_configurator.py): tokens at a price each, windows at a fixed ratio"


def pools(anatomy: Anatomy, load: Load) -> Cache:
    """Slots of the token pools for these sequences; layers with a window have a pool of
    their own.
    """
    mixers = [shared_heads(m, load.tp) for m in anatomy.mixers if m.kind not in ("none", "shared")]
    refuse_unknown(anatomy, mixers, "SGLang", index=True)
    hybrid = any(m.window for m in mixers) and any(m.per_token and not m.window for m in mixers)
    top, bottom = load.swa_ratio
    page = load.block_size or 1
    tokens = round_up(load.context * load.batch, page) if page > 1 else load.context * load.batch
    rows = []
    for m in mixers:
        state = m.layers.count * load.batch * state_size(m, load, True)
        if not m.per_token:
            rows.append(
                Row(
                    kind=kind_of(m),
                    layers=m.layers,
                    tokens=None,
                    kv_bytes=Dim(0),
                    state_bytes=state,
                )
            )
            continue
        held = tokens * top // bottom if hybrid and m.window else tokens
        each = token_bytes(m, load)
        rows.append(
            Row(
                kind=kind_of(m),
                layers=m.layers,
                tokens=held,
                kv_bytes=m.layers.count * each * held,
                state_bytes=state,
                per_token=m.layers.count * each,
            )
        )
    notes: tuple[str, ...] = (f"one further page of {page} tokens per pool is padding",)
    if hybrid:
        notes = (
            *notes,
            f"the window's pool has {top}/{bottom} of the other's tokens (swa_full_tokens_ratio)",
        )
    return gathered("sglang", RULES, rows, tokens, notes)


def _reserve(visible: int, tp: int) -> float:
    """MiB that SGLang leaves outside weights and pools: activations, graphs, chunks (kv pool
    configurator, 0.5.23).
    """
    gib = visible / GIB
    chunk = 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
    graphs = (
        8
        if gib < 20
        else (
            (48 if tp < 4 else 160)
            if gib < 35
            else (32 if tp < 4 else 160)
            if gib < 60
            else 256
            if tp < 4
            else 512
        )
    )
    reserved = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024 + 2 * graphs
    return max(reserved, 10240) if gib > 60 else reserved


def working(need: Need) -> list[Part]:
    """What ``mem_fraction_static`` leaves outside weights and pools by default."""
    reserve = int(_reserve(need.visible, need.ranks) * 2**20)
    span = (reserve, reserve, reserve + GIB)
    return [estimated("reserve", span, "mem_fraction_static's default of 0.5.23")]


ENGINE = Engine(
    name="sglang",
    versions=(
        Rules(
            name=RULES,
            source="SGLang 0.5.23 (pool_configurator.py)",
            cache=pools,
            since=(0, 5),
            until=(0, 5),
            working=working,
        ),
    ),
    options={"block_size": "--page-size"},
    cache_dtype=half_precision("sglang"),
)
