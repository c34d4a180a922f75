"""vLLM, version by version."""

from __future__ import annotations

from functools import partial

from llmcalc.engines.base import Engine, Rules, Sampling, half_precision
from llmcalc.engines.vllm.memory import EVIDENCE, copies, working, working_with_graphs
from llmcalc.engines.vllm.pool import PoolRules, pool
from llmcalc.engines.vllm.printed import tokens_of_blocks

V1 = PoolRules(
    name="vLLM 0.9 to 0.15 (V1): one batch in flight, groups merge under 1.25",
    in_flight=1,
    merge=(5, 4),
)
ASYNC = PoolRules(
    name="vLLM 0.16 to 0.33 (v1/core/kv_cache_utils.py)",
    in_flight=2,
    merge=(3, 2),
)
_rules = partial(
    Rules,
    evidence=EVIDENCE,
    copies=copies,
    copies_why="with the rotary table",
    prints=tokens_of_blocks,
)
"""What no version changed."""

VERSIONS = (
    _rules(
        name=V1.name,
        source="v1/core/kv_cache_utils.py of 0.10",
        cache=partial(pool, rules=V1),
        since=(0, 9),
        until=(0, 15),
        asked_as="0.10",
        working=working,
        utilization=0.9,
    ),
    _rules(
        name="vLLM 0.16 to 0.19: CUDA graphs outside of the pool's budget",
        source="v1/core/kv_cache_utils.py of 0.19",
        cache=partial(pool, rules=ASYNC),
        since=(0, 16),
        until=(0, 19),
        asked_as="0.19",
        working=working,
        utilization=0.9,
    ),
    _rules(
        name=ASYNC.name,
        source="v1/core/kv_cache_utils.py of 0.33.0",
        cache=partial(pool, rules=ASYNC),
        since=(0, 20),
        until=(0, 33),
        working=working_with_graphs,
        utilization=0.92,
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
    },
    cache_dtype=half_precision("vllm"),
    sampling=SAMPLING,
)
