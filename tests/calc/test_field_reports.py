"""What engines printed in public threads, against llmcalc; and questions that other tools got
wrong.

Data: data/field_reports.jsonl and data/user_cases.jsonl, every record with its source.
``LLMCALC_FIELD_REPORTS`` and ``LLMCALC_USER_CASES`` name other files of the same schema.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.calc import reports
from tests.calc.reports import Skip, number

DATA = Path(__file__).parent / "data"


def records(name: str, variable: str) -> list[dict[str, Any]]:
    path = Path(os.environ.get(variable) or DATA / name)
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


FIELD = records("field_reports.jsonl", "LLMCALC_FIELD_REPORTS")
USERS = records("user_cases.jsonl", "LLMCALC_USER_CASES")


@pytest.mark.parametrize("record", FIELD, ids=lambda r: r["id"])
def test_field_report(record: dict[str, Any]) -> None:
    try:
        said = number(record)
    except Skip as reason:
        pytest.skip(str(reason))
    slack = max(float(record["tolerance"]), 0.0)
    # a few prints reach first principles only so far (allocator rounding, papers' rounding): the
    # record says how far
    share = {"within_1pct": 0.01, "within_5pct": 0.05}.get(record.get("agree_level", ""), 0.0)
    slack = max(slack, share * abs(record["value_in_base_units"]))
    if record["engine"] == "vLLM" and "max_position_embeddings" not in record["config"]:
        slack += 16 * 2**20  # a rotary table of unsaid length is among the weights
    assert abs(said - record["value_in_base_units"]) <= slack, (
        said,
        record["value_in_base_units"],
        record["source"],
    )


def as_report(case: dict[str, Any]) -> dict[str, Any]:
    """A question as a record of the field: its inputs are sizes and settings under
    shorter names.
    """
    i = case["inputs"]
    size = i.get("kv_bytes_per_elem") or i.get("state_bytes_per_elem") or 2
    config = {
        "num_hidden_layers": i.get("layers"),
        "num_attention_heads": i.get("heads") or i.get("kv_heads"),
        "num_key_value_heads": i.get("kv_heads"),
        "head_dim": i.get("head_dim"),
        "sliding_window": i.get("window"),
        **{k: i[k] for k in i if k.startswith(("linear_", "swa_", "global_", "conv_"))},
    }
    flags: dict[str, Any] = {
        "ctx": i.get("ctx") or i.get("max_model_len"),
        "n_seq": i.get("max_num_seqs") or i.get("batch"),
        "n_ubatch": i.get("n_ubatch"),
        "kv_dtype": {1: "fp8", 2: "float16", 4: "float32"}[size],
    }
    if "state_bytes_per_elem" in i:
        flags["conv_dtype"] = flags["kv_dtype"]
    engine = "llama.cpp" if "llama.cpp" in str(i.get("engine", "")) else "paper"
    config = {k: v for k, v in config.items() if v is not None}
    flags = {k: v for k, v in flags.items() if v is not None}
    return {
        "engine": engine,
        "arch_class": "",
        "model": i["model"],
        "config": config,
        "flags": flags,
        "quantity": case["quantity"],
    }


def answer(case: dict[str, Any]) -> float:
    """What llmcalc says to a question."""
    i, quantity = case["inputs"], case["quantity"]
    if quantity == "weights_bytes" and "params" in i and "buffers" not in i:
        return float(i["params"] * reports.dtype(i["dtype"]).size)
    if quantity in ("kv_bytes", "kv_bytes_per_token"):
        record = as_report(case)
        found = reports.cache(record)
        return float(
            found.per_token
            if quantity == "kv_bytes_per_token"
            else found.kv_bytes - found.state_bytes
        )
    if quantity == "recurrent_state_bytes":
        record = {**as_report(case), "engine": "llama.cpp"}
        return reports.state_bytes(record)
    if quantity == "kv_tokens" and "printed_concurrency" in i:
        return float(int(i["printed_concurrency"] * i["ctx"]))
    if quantity == "tensor_bytes":
        size = reports.dtype(i["dtype"]).size
        for axis in i["shape"]:
            size *= axis
        return float(size)
    raise Skip(f"{quantity} is no quantity of these commands")


@pytest.mark.parametrize("case", USERS, ids=lambda c: c["id"])
def test_user_case(case: dict[str, Any]) -> None:
    try:
        said = answer(case)
    except Skip as reason:
        pytest.skip(str(reason))
    slack = float(case["tolerance_in_base_units"] or 0) + 0.5
    assert abs(said - case["right_value_in_base_units"]) <= slack, (
        said,
        case["right_value_in_base_units"],
        case["source"],
    )
