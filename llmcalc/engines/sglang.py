"""SGLang: tokens at a price each, layers with a window in a pool of their own.

Source: model_executor/pool_configurator.py and mem_cache of SGLang 0.5.23.
"""

from __future__ import annotations

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim, round_up
from llmcalc.engines.base import (
    GIB,
    Engine,
    Need,
    Part,
    Rules,
    estimated,
    half_precision,
    is_gb10,
)
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


_BY_MEMORY = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
)
"""Below so many GiB: a chunk's tokens, and sequences of the largest graph to 3 ranks and from 4."""


def default_utilization(visible: int, ranks: int) -> float:
    """SGLang's ``mem_fraction_static`` where none is named (server_args.py, 0.5.5 to 0.5.20).

    ``(mem - reserve) / mem``, reserve = 512 MiB + 1.5 MiB per token of a chunk + 2 MiB per sequence
    of the largest graph + 128 MiB per rank, 10 GiB at least on devices above 60.
    """
    gib = visible / GIB
    row = next((r for r in _BY_MEMORY if gib < r[0]), (0, 16384, 512, 512))
    chunk, graph = row[1], row[2] if ranks < 4 else row[3]
    reserve = 512 + 3 * chunk // 2 + 2 * graph + 128 * ranks
    if gib > 60:
        reserve = max(reserve, 10240)
    mebibytes = visible / 2**20
    return max(0.01, round((mebibytes - reserve) / mebibytes, 3))


def working(need: Need) -> list[Part]:
    """The fraction of what is taken before the weights are loaded; nothing else is subtracted."""
    middle, low, high, why = 0.5, 0.3, 0.9, "26 start-up logs of 0.5 on 6 kinds of device"
    if need.ranks > 1:
        middle, high = 0.7, 2.6
    if is_gb10(need.device):
        middle, low, high = 8.3, 1.0, 12.0
    share = need.utilization * GIB
    span = (int(middle * share), int(low * share), int(high * share))
    return [estimated("context, NCCL", span, f"the fraction of what is taken before; {why}")]


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
    default_utilization=default_utilization,
    options={"block_size": "--page-size"},
    cache_dtype=half_precision("sglang"),
)
