"""``fit`` against vLLM start-ups, asked as a user would: the pool that the log prints lies inside
what the command prints.

Data: data/vllm_startups.jsonl: public logs by their repository, with the settings that each states.
They were seen while the ranges were set, the MI300X's range is its own log's, and one start whose
draft model is not described (DFlash) is left out: this holds the ranges, and is no blind trial.
The weights are the log's own, since several run quantised; all beside them is estimated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]

DATA = Path(__file__).parent / "data" / "vllm_startups.jsonl"
STARTS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text().splitlines()]
PRINT = 2**30 // 100
"""vLLM prints hundredths of a GiB."""

OPTIONS = {
    "engine": "--engine",
    "device": "--device",
    "utilization": "--utilization",
    "tp": "--count",
    "max_model_len": "--ctx",
    "max_num_seqs": "--max-seqs",
    "max_num_batched_tokens": "--batched-tokens",
}


@pytest.mark.parametrize("start", STARTS, ids=lambda s: f"{s['model']}-{s['engine']}-{s['device']}")
def test_the_pool_of_a_start_lies_inside(cli: Cli, start: dict[str, Any]) -> None:
    words: list[object] = ["fit", start["model"], "--json"]
    for key, option in OPTIONS.items():
        if key in start:
            words += [option, start[key]]
    if "max_model_len" not in start:
        words += ["--ctx", 2048]
    if start.get("enforce_eager"):
        words.append("--enforce-eager")
    found = json.loads(cli(*words).out)
    usable = found["facts"]["usable_bytes"]
    beside = [r for r in found["rows"] if r["part"] not in ("weights", "cache")]
    least = usable - start["weights"] - sum(r["high"] for r in beside)
    most = usable - start["weights"] - sum(r["low"] for r in beside)
    assert least - PRINT <= start["pool"] <= most + PRINT, (least, start["pool"], most)
