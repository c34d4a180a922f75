"""Ollama: its own runner to 0.11, then llama.cpp's server.

Source: fs/ggml/ggml.go of Ollama 0.11; ``-c num_ctx·num_parallel -np num_parallel`` since.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines.base import Engine, Rules
from llmcalc.engines.cache import Cache, Load, Row, gathered, kind_of
from llmcalc.engines.llama_cpp import (
    GGML,
    OPTIONS,
    RULES,
    cell,
    cells,
    half,
    state_bytes,
    working,
)
from llmcalc.errors import InputError

OLDER = (
    "Ollama to 0.11 (fs/ggml/ggml.go): its own runner, windows plus one batch, latent attention"
    " expanded"
)


def own_runner(anatomy: Anatomy, load: Load) -> Cache:
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
        each = cell(m, load)
        grows = m.layers.count * each if m.window is None else Dim(0)
        rows.append(
            Row(
                kind=kind_of(m),
                layers=m.layers,
                tokens=held,
                kv_bytes=m.layers.count * each * held,
                state_bytes=m.layers.count * load.batch * state_bytes(m),
                per_token=grows,
            )
        )
    return gathered("ollama", OLDER, rows, tokens)


ENGINE = Engine(
    name="ollama",
    versions=(
        Rules(
            name=OLDER,
            source="fs/ggml/ggml.go of Ollama 0.11",
            cache=own_runner,
            until=(0, 11),
            asked_as="0.11",
            working=working,
        ),
        Rules(
            name=f"Ollama of 2026: starts {RULES}",
            source="llm/server.go of Ollama 0.12",
            cache=partial(cells, engine="ollama"),
            since=(0, 12),
            working=working,
        ),
    ),
    options=OPTIONS,
    cache_dtype=half("ollama"),
    **GGML,
)
