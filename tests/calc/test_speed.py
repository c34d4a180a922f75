"""Bounds against measurements that others published, and the rules' worked numbers.

data/speed_reports.jsonl: public decode rates, bytes read per token, training throughputs and costs,
each with the bound that follows from first principles. LLMCALC_SPEED_REPORTS names another file of
the same form.
"""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcalc.anatomy import Anatomy
from llmcalc.devices import find
from llmcalc.dims import Dim
from llmcalc.engines.cache import Load
from llmcalc.families import anatomy, config_for
from llmcalc.formats.element import dtype
from llmcalc.formats.stored import Format
from llmcalc.questions.flops import (
    attention_flop,
    decode_flop,
    forward_flop,
    matmul_params,
    megatron_flop,
    training_flop,
    training_seconds,
)
from llmcalc.questions.speed import (
    Ask,
    Peaks,
    decode,
    kv_reads,
    prefill,
    ridge,
    weight_reads,
)
from llmcalc.sources import resolve
from tests.calc.forms import of_bytes

RECORDS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (
        Path(
            os.environ.get("LLMCALC_SPEED_REPORTS")
            or Path(__file__).parent / "data" / "speed_reports.jsonl"
        )
        .read_text()
        .splitlines()
    )
]
BYTES: dict[str, Fraction] = {
    "int8": Fraction(1),
    "int4 g32": Fraction(5, 8),
    "bnb.nf4": Fraction(9, 16),
    "bnb.nf4-dq": Fraction("0.51587"),
    "Q4_0": Fraction(18, 32),
    "Q4_1": Fraction(20, 32),
    "Q8_0": Fraction(34, 32),
    "Q4_K_M": Fraction(18, 32),
    "IQ4_NL": Fraction(18, 32),
    "GPTQ 4 bit g128": Fraction("4.15") / 8,
    "q4f16_1": Fraction(18, 32),
}
"""Bytes per weight of a matrix, scales included; for mixes the least that their name allows."""


def model_of(config: dict[str, Any]) -> Anatomy:
    """A record's sizes as a model: the family that has its MLP, its biases and its norms."""
    raw = {
        k: v
        for k, v in config.items()
        if k not in ("tied", "mlp", "norm", "linear_bias", "lm_head_bias")
    }
    kind = "llama"
    if config.get("num_experts"):
        kind, raw["num_local_experts"] = "mixtral", raw.pop("num_experts")
    elif (
        config.get("mlp") == "plain"
        and config["num_key_value_heads"] < config["num_attention_heads"]
    ):
        kind, new = "falcon", config["num_key_value_heads"] > 1
        raw |= {
            "num_kv_heads": config["num_key_value_heads"],
            "ffn_hidden_size": config["intermediate_size"],
        }
        raw |= {"new_decoder_architecture": new, "multi_query": not new}
    elif config.get("mlp") == "plain":
        kind = "gpt_neox"
    elif config.get("qk_norm"):
        kind = "qwen3"
    elif config.get("qkv_bias"):
        kind = "qwen2"
    return anatomy(config_for({**raw, "model_type": kind, "tie_word_embeddings": config["tied"]}))


def whole_head(record: dict[str, Any]) -> bool:
    formula = f"{record.get('bound_formula')} {record.get('expected_formula')}"
    return "whole head" in formula or "replicated head" in formula


def form_of(record: dict[str, Any]) -> Format | None:
    quantisation = record["settings"].get("quantization")
    if quantisation in (None, "bf16", "F16"):
        return of_bytes(None)
    packed = BYTES.get(quantisation)
    return None if packed is None else of_bytes(packed)


def tokens_held(settings: dict[str, Any]) -> int:
    """Tokens in the cache while a rate was measured: the depth, or half of what a test reads or
    writes.
    """
    found = re.match(r"(?:pp|tg)(\d+)", str(settings.get("test", "")))
    return int(settings.get("depth") or (int(found[1]) // 2 if found else 0))


def load_of(context: int, batch: int) -> Load:
    kind = dtype("float16")
    return Load(
        context=Dim(max(context, 1), "context"),
        batch=Dim(batch, "batch"),
        key_dtype=kind,
        value_dtype=kind,
        state_dtype=kind,
    )


def skipped(record: dict[str, Any]) -> str | None:
    """Why a record says nothing that can be calculated from its own settings."""
    if record.get("config") is None and record["quantity"] != "gpu_hours":
        return "no sizes"
    if record["quantity"] == "decode_rate" and form_of(record) is None:
        return f"a format whose bytes are not known: {record['settings'].get('quantization')}"
    if "file size" in str(record.get("bound_formula")):
        return "its bytes are a file's"
    return None


def bytes_of(record: dict[str, Any]) -> int:
    settings = record["settings"]
    form = form_of(record)
    assert form is not None
    model, batch = model_of(record["config"]), int(settings.get("batch", 1))
    tp = (
        1
        if settings.get("parallel") == "sequential layers"
        else int(settings.get("tp") or settings.get("devices") or 1)
    )
    reads = weight_reads(model, form, batch, tp, whole_head=whole_head(record))
    sequences = (
        1 if str(settings.get("test", "")).startswith("pp") else batch
    )  # a prompt read in steps is one sequence
    ask = Ask(
        anatomy=model,
        load=load_of(tokens_held(settings), sequences),
        peaks=Peaks(flop_per_s=1e15, bytes_per_s=1e12),
        weights=form,
    )
    return reads + (kv_reads(ask, tokens_held(settings)) if tokens_held(settings) else 0)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_the_record(record: dict[str, Any]) -> None:
    why = skipped(record)
    if why is not None:
        pytest.skip(why)
    quantity, asked = record["quantity"], record["settings"]
    if quantity == "bytes_read_per_token_per_device":
        assert bytes_of(record) == pytest.approx(record["expected"], rel=2e-3)
        assert bytes_of(record) < record["value_base"] * 1.001
        return
    if quantity == "decode_rate":
        device = record["device"]["bandwidth_bytes_s"]
        bound = int(asked.get("batch", 1)) * device / bytes_of(record)
        assert bound == pytest.approx(record["bound"], rel=2e-2)
    elif quantity == "tokens_per_second_per_gpu":
        model = model_of(record["config"])
        per_token = training_flop(model, asked["seq_len"]) / asked["seq_len"]
        bound = record["device"]["peak_flops"] / per_token
        assert bound == pytest.approx(record["bound"], rel=5e-3)
    else:
        flop = 6 * record["params"] * asked["tokens"]
        assert training_seconds(flop, 1, record["device"]["peak_flops"]) < record["value_base"]
        return
    above = record.get("expectation") == "violates_single_stream_bound"
    assert (record["value_base"] > bound) == above


def test_few_records_say_nothing() -> None:
    assert sum(skipped(r) is None for r in RECORDS) >= 0.9 * len(RECORDS)


# the rules' worked numbers


def test_llama_3_8b_per_token() -> None:
    """15.0 GFLOP per token, 4.295 of attention at 8,192 tokens when decoding, 2.147 on the causal
    average.
    """
    found = resolve("llama-3-8b").anatomy
    assert 2 * int(matmul_params(found)) == pytest.approx(15.0098e9, rel=1e-4)
    assert decode_flop(found, 8192) - 2 * int(matmul_params(found)) == 4_294_967_296
    assert attention_flop(found, 8192, "causal") / 8192 == pytest.approx(2.147e9, rel=1e-3)
    assert forward_flop(found, 100, "none") == 2 * int(matmul_params(found)) * 100


def test_llama_3_8b_on_an_h100() -> None:
    """15.01 GB over 3.35 TB/s: 4.481 ms; one sequence of 8,192 tokens adds 0.3205 ms.
    Ridge 295.3.
    """
    h100, found = find("h100"), resolve("llama-3-8b").anatomy
    peaks = Peaks(flop_per_s=float(h100.flops["bf16"]), bytes_per_s=float(h100.bandwidth or 0))
    ask = Ask(anatomy=found, load=load_of(8192, 1), peaks=peaks, weights=of_bytes(None))
    assert ridge(peaks) == pytest.approx(295.3, abs=0.1)
    step = decode(ask)
    assert step.weight_bytes / peaks.bytes_per_s == pytest.approx(4.481e-3, rel=1e-3)
    assert step.kv_bytes / peaks.bytes_per_s == pytest.approx(0.3205e-3, rel=1e-3)
    assert step.limit == "memory"
    assert prefill(ask).limit == "arithmetic"


def test_latent_attention_decodes_on_its_latents() -> None:
    """DeepSeek-V3: 278,528 FLOP per key and layer, 241.8 per byte of its 1,152."""
    found = resolve("deepseek-v3").anatomy
    per_key = (decode_flop(found, 1000) - 2 * int(matmul_params(found))) / 1000 / 61
    assert per_key == 278_528 and per_key / 1152 == pytest.approx(241.8, abs=0.1)


def test_what_papers_count() -> None:
    """Narayanan 4.5110e18 per iteration, 84 days for 1T; Llama-3 405B 3.8e25."""
    assert megatron_flop(1536, 2048, 96, 12288, 51200) == pytest.approx(4.5110e18, rel=1e-4)
    days = training_seconds(int(8 * 450e9 * 1.008e12), 3072, 163e12) / 86400
    assert 83 < days < 85
    found = resolve("llama-3.1-405b").anatomy
    assert training_flop(found, 8192, "none") / 8192 * 15.6e12 == pytest.approx(3.8e25, rel=1e-2)


def test_palm_s_utilisation() -> None:
    """PaLM 540B, appendix B: 238.3k tokens/s on 6,144 chips of 275 TFLOP/s: 46.2 % with attention,
    45.7 % without.
    """
    n, tokens, rate = 540.35e9, 2048, 238.3e3 / (6144 * 275e12)
    raw = {
        "model_type": "llama",
        "hidden_size": 18432,
        "intermediate_size": 64,
        "num_hidden_layers": 118,
    }
    found = anatomy(
        config_for({**raw, "vocab_size": 9, "num_attention_heads": 48, "head_dim": 256})
    )
    attention = (
        training_flop(found, tokens, "full") - training_flop(found, tokens, "none")
    ) / tokens
    assert attention == 12 * 118 * 48 * 256 * tokens
    assert rate * (6 * n + attention) == pytest.approx(0.462, abs=1e-3)
    assert rate * 6 * n == pytest.approx(0.457, abs=1e-3)


@given(
    st.sampled_from(["gpt2", "mixtral-8x7b", "gemma-3-1b", "deepseek-v3"]),
    st.integers(1, 5000),
    st.integers(1, 64),
)
def test_more_never_costs_less(name: str, context: int, batch: int) -> None:
    found = resolve(name).anatomy
    assert decode_flop(found, context + 1) >= decode_flop(found, context)
    assert weight_reads(found, of_bytes(None), batch + 1) >= weight_reads(
        found, of_bytes(None), batch
    )
    assert forward_flop(found, context, "causal") <= forward_flop(found, context, "full")
    assert (
        training_flop(found, context, "causal", "full")
        > training_flop(found, context, "causal", "selective") - 1
    )
    assert 2 * weight_reads(found, of_bytes(None), batch, 2) >= weight_reads(
        found, of_bytes(None), batch
    )
