"""The live checks: caches really allocated, weights really loaded, against what was calculated."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

CACHES = (
    ("gpt2", 300),
    ("llama-3-8b", 300),
    ("gemma-3-1b", 700),
    ("gpt-oss-20b", 300),
    ("deepseek-v3", 64),
    ("falcon-11b", 64),
    ("gpt-neo-125m", 300),
    ("mamba-130m", 50),
    ("zamba-7b-v1", 40),
    ("qwen3-next-80b-a3b", 40),
    ("t5-small", 64),
    ("whisper-tiny", 64),
    ("mistral-7b-v0.1", 5000),
)


@pytest.mark.parametrize(("name", "context"), CACHES)
@pytest.mark.parametrize("engine", ["formula", "transformers"])
def test_the_cache_that_is_allocated_is_the_one_predicted(
    cli: Callable[..., Any], name: str, context: int, engine: str
) -> None:
    ran = cli(
        "kvcache",
        name,
        "--ctx",
        context,
        "--batch",
        "2",
        "--engine",
        engine,
        "--live",
        "--device",
        "cpu",
        "--json",
    )
    if "no file and no preset" in ran.err:
        pytest.fail(ran.err)
    facts = json.loads(ran.out)["facts"]
    assert ran.code == 0
    assert facts["measured_bytes"] == facts["kv_bytes"] > 0


def test_what_cannot_be_allocated_says_so(cli: Callable[..., Any]) -> None:
    ran = cli("kvcache", "gpt2", "--ctx", "64", "--engine", "vllm", "--live")
    assert ran.code == 3 and "vllm" in ran.err
    ran = cli(
        "kvcache", "gpt2", "--ctx", "64", "--engine", "llama.cpp", "--kv-dtype", "q8_0", "--live"
    )
    assert ran.code == 3


def test_params_and_check_of_the_toy(cli: Callable[..., Any]) -> None:
    facts = json.loads(cli("params", "toy", "--live", "--device", "cpu", "--json").out)["facts"]
    assert facts["measured_params"] == facts["total_params"] == 140_544
    assert facts["measured_bytes"] == 2 * 140_544
    ran = cli("check", "toy", "--live", "--device", "cpu", "--ctx", "128", "--json")
    facts = json.loads(ran.out)["facts"]
    assert ran.code == 0
    assert facts["kv_bytes"] == facts["kv_bytes_predicted"] == 2 * 2 * 3 * 2 * 16 * 128
    assert 0 < facts["activation_bytes"] <= facts["activation_bytes_bound"]


def test_a_wrong_prediction_is_exit_code_1(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: a loader that leaves one tensor's bytes out is found."""
    from llmcalc.live.weights import Loaded

    honest = Loaded.add

    def forgetful(self: Loaded, weight: Any, name: str, tensors: Any) -> None:
        if "layers.1.mlp.up_proj" not in name:
            honest(self, weight, name, tensors)

    monkeypatch.setattr(Loaded, "add", forgetful)
    for words in (
        ("params", "toy", "--live"),
        ("check", "toy", "--live"),
        ("trace", "--live", "--ids", "1"),
    ):
        assert cli(*words, "--device", "cpu").code == 1
