"""TensorRT-LLM: blocks of tokens per sequence, windows off unless they are asked for.

Source: _torch/pyexecutor/resource_manager.py of TensorRT-LLM's PyTorch backend, 2026.
"""

from __future__ import annotations

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim, ceil_div, round_up
from llmcalc.engines.base import GIB, Engine, Need, Part, Rules, estimated, half_precision
from llmcalc.engines.cache import Cache, Load, Row, gathered, kind_of, refuse_unknown, token_bytes
from llmcalc.errors import InputError
from llmcalc.parallel import shared_heads

RULES = (
    "TensorRT-LLM of 2026, PyTorch backend (resource_manager.py): blocks of 32 tokens, windows off"
)
EVIDENCE = "72 published batch sizes"


def blocks(anatomy: Anatomy, load: Load) -> Cache:
    """Blocks of 32 tokens per sequence.

    Without ``max_attention_window`` every layer holds every token.
    """
    mixers = [
        shared_heads(m, load.tp, ceil=True)
        for m in anatomy.mixers
        if m.kind not in ("none", "shared")
    ]
    refuse_unknown(anatomy, mixers, "TensorRT-LLM", index=False)
    if any(m.states for m in mixers):
        raise InputError("the rule of TensorRT-LLM's cache for recurrent layers is not known")
    block = load.block_size or 32
    rows = []
    for m in mixers:
        each, held = token_bytes(m, load), ceil_div(load.context, block) * block
        kv = m.layers.count * each * held * load.batch
        rows.append(
            Row(
                kind=kind_of(m),
                layers=m.layers,
                tokens=held,
                kv_bytes=kv,
                state_bytes=Dim(0),
                per_token=m.layers.count * each,
            )
        )
    windows = any(m.window for m in mixers)
    notes = (
        ("windows are not used unless max_attention_window is set: every layer holds every token",)
        if windows
        else ()
    )
    return gathered("tensorrt-llm", RULES, rows, round_up(load.context, block) * load.batch, notes)


_RESERVE = {1: 4.0, 2: 4.6, "more": 5.2}
_RESERVE_BIG = {1: 5.2, 2: 5.9, "more": 6.5}
"""GiB by ranks, on devices of up to 200 GiB and above."""


def working(need: Need) -> list[Part]:
    """What the engine keeps before it divides the rest."""
    table = _RESERVE_BIG if need.visible > 200 * GIB else _RESERVE
    middle = int(table.get(need.ranks, table["more"]) * GIB)
    span = (middle, int(0.7 * middle), int(1.5 * middle))
    return [estimated("reserve", span, f"{EVIDENCE}; grows with max_num_tokens")]


def largest_batch(
    *, visible: int, weights: int, reserve: int, per_token: int, tokens: int, fraction: float
) -> int:
    """The largest batch: a fraction of what is free, over sequences rounded up to blocks of 32."""
    free = int((visible - weights - reserve) * fraction)
    return max(0, free // (-(-tokens // 32) * 32 * per_token))


ENGINE = Engine(
    name="tensorrt-llm",
    aliases=("trtllm", "tensorrt"),
    versions=(
        Rules(
            name=RULES,
            source="TensorRT-LLM of 2026 (resource_manager.py)",
            cache=blocks,
            working=working,
            evidence=EVIDENCE,
            utilization=0.9,
            of_the_rest=True,
        ),
    ),
    options={"block_size": "tokens_per_block"},
    cache_dtype=half_precision("tensorrt-llm"),
)
