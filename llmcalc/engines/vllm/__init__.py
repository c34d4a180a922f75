"""vLLM, version by version."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmcalc.engines.base import Engine, Rules, Sampling, half_precision
from llmcalc.engines.vllm.memory import (
    EARLY,
    GRAPHS,
    SELECTING,
    SORTING,
    Profile,
    copies,
    default_batch,
    default_sequences,
    padded_experts,
    working,
)
from llmcalc.engines.vllm.pool import PoolRules, pool
from llmcalc.engines.vllm.printed import tokens_by_concurrency, tokens_of_blocks

V1 = PoolRules(
    name="vLLM 0.9 to 0.11 (V1): one batch in flight, groups of the smaller count",
    in_flight=1,
    merge=(1, 1),
)
MERGED = PoolRules(
    name="vLLM 0.12 to 0.18: one batch in flight, groups merge under 1.25",
    in_flight=1,
    merge=(5, 4),
)
WIDER = PoolRules(
    name="vLLM 0.19 to 0.26: one batch in flight, groups merge under 1.5",
    in_flight=1,
    merge=(3, 2),
)
ASYNC = PoolRules(
    name="vLLM 0.27 to 0.33 (v1/core/kv_cache_utils.py): two batches in flight",
    in_flight=2,
    merge=(3, 2),
    latent=128,
)


def _row(pool_rules: PoolRules, profile: Profile, **more: Any) -> Rules:
    """A row: its pool, its profile, and what no version changed."""
    return Rules(
        cache=partial(pool, rules=pool_rules),
        working=partial(working, profile=profile),
        evidence=profile.evidence,
        copies=copies,
        copies_why="with the rotary table",
        padded=padded_experts,
        **more,
    )


VERSIONS = (
    _row(
        V1,
        EARLY,
        name=V1.name,
        source="v1/core/kv_cache_utils.py of 0.9 to 0.11",
        since=(0, 9),
        until=(0, 11),
        asked_as="0.11",
        utilization=0.9,
        prints=tokens_of_blocks,
    ),
    _row(
        MERGED,
        SORTING,
        name="vLLM 0.12 to 0.16: a sampler that sorts",
        source="v1/core/kv_cache_utils.py of 0.13, v1/sample/ops of 0.16",
        since=(0, 12),
        until=(0, 16),
        asked_as="0.16",
        utilization=0.9,
        prints=tokens_of_blocks,
    ),
    _row(
        MERGED,
        SELECTING,
        name="vLLM 0.17 and 0.18: a sampler that selects",
        source="v1/sample/ops/topk_topp_triton.py of 0.17.1",
        since=(0, 17),
        until=(0, 18),
        asked_as="0.18",
        utilization=0.9,
        prints=tokens_of_blocks,
    ),
    _row(
        WIDER,
        SELECTING,
        name="vLLM 0.19: CUDA graphs outside of the pool's budget",
        source="v1/core/kv_cache_utils.py of 0.19.1",
        since=(0, 19),
        until=(0, 19),
        asked_as="0.19",
        utilization=0.9,
        prints=tokens_of_blocks,
    ),
    _row(
        WIDER,
        GRAPHS,
        name="vLLM 0.20.0 and 0.20.1: CUDA graphs taken out of the pool",
        source="config/cache.py and envs.py of 0.20.0",
        since=(0, 20),
        until=(0, 20, 1),
        asked_as="0.20.1",
        utilization=0.92,
        prints=tokens_of_blocks,
    ),
    _row(
        WIDER,
        GRAPHS,
        name="vLLM 0.20.2 to 0.26: tokens printed by concurrency",
        source="v1/core/kv_cache_utils.py of 0.20.2, 0.23 and 0.25.1",
        since=(0, 20, 2),
        until=(0, 26),
        asked_as="0.25",
        utilization=0.92,
        prints=tokens_by_concurrency,
    ),
    _row(
        ASYNC,
        GRAPHS,
        name=ASYNC.name,
        source="v1/core/kv_cache_utils.py of 0.27.0 and 0.33.0",
        since=(0, 27),
        until=(0, 33),
        utilization=0.92,
        prints=tokens_by_concurrency,
    ),
)

SAMPLING = Sampling(
    order=("bias", "repetition", "frequency", "temperature", "min-p", "top-k", "top-p"),
    settings=frozenset(
        (
            *("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty"),
            *("temperature", "min_p", "top_k", "top_p"),
        )
    ),
    note="vLLM 0.33: min-p before top-k and top-p; frequency and presence count the answer alone",
    hottest=2,
    coldest=(1e-5, 0.01),
    above_zero=("top_p",),
)

ENGINE = Engine(
    name="vllm",
    versions=VERSIONS,
    oldest=(0, 9),
    options={
        "block_size": "--block-size",
        "batched_tokens": "--max-num-batched-tokens",
        "in_flight": "--async-scheduling",
        "no_prefix_caching": "--no-enable-prefix-caching",
        "speculative": "--speculative-config",
        "ssm_dtype": "--mamba-ssm-cache-dtype",
        "max_seqs": "--max-num-seqs",
        "enforce_eager": "--enforce-eager",
        "no_hybrid": "--disable-hybrid-kv-cache-manager",
    },
    default_sequences=default_sequences,
    default_batch=default_batch,
    wants_its_share_free=True,
    cache_dtype=half_precision("vllm"),
    sampling=SAMPLING,
)
