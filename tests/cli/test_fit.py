"""``llmcalc fit``: the verdict, its exit code, and that what it says would fit does fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.anatomy import Anatomy
from llmcalc.calc.parallel import partition, stage
from llmcalc.calc.params import parameters
from llmcalc.sources import resolve
from llmcalc.sources.devices import find, names
from tests.conftest import Ran

Cli = Callable[..., Ran]
GIB = 2**30


def asked(cli: Cli, *args: object) -> tuple[int, dict[str, Any]]:
    ran = cli("fit", *args, "--json")
    assert ran.code in (0, 1), ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return ran.code, found


def bytes_of(found: dict[str, Any], part: str) -> int:
    return next(int(r["bytes"]) for r in found["rows"] if r["part"] == part)


def test_the_question_of_every_deployment(cli: Cli) -> None:
    """Llama 3.1 70B in bf16: 70,553,706,496 parameters (its config on the meta device), cut in four but for norms."""
    question = ("--model", "llama-3.1-70b", "--device", "h100", "--ctx", 32768, "--engine", "vllm")
    code, found = asked(cli, *question, "--count", 4, "--concurrency", 64)
    assert code == 1 and found["facts"]["verdict"] == "no"
    quarter = 70553706496 * 2 // 4
    assert quarter < bytes_of(found, "weights") < quarter + GIB // 16
    assert bytes_of(found, "cache") == 64 * 32768 * 80 * 2 * 2 * 128 * 2
    code, found = asked(cli, *question, "--count", 4, "--concurrency", found["facts"]["max_sequences"])
    assert code == 0 and found["facts"]["fits"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers", "formula"])
def test_what_it_says_fits_does_and_one_more_does_not(cli: Cli, engine: str) -> None:
    question = ("llama-3-8b", "--device", "l40s", "--engine", engine)
    _, found = asked(cli, *question, "--ctx", 4096, "--concurrency", 2)
    context, most = found["facts"]["max_context"], found["facts"]["max_sequences"]
    assert context > 4096 and most > 2
    assert asked(cli, *question, "--ctx", context, "--concurrency", 2)[0] == 0
    assert asked(cli, *question, "--ctx", context + 64, "--concurrency", 2)[0] == 1
    assert asked(cli, *question, "--ctx", 4096, "--concurrency", most)[0] == 0
    assert asked(cli, *question, "--ctx", 4096, "--concurrency", most + 1)[0] == 1


def test_the_fewest_devices_fit(cli: Cli) -> None:
    question = ("llama-3.1-70b", "--device", "h100", "--ctx", 8192, "--engine", "vllm")
    code, found = asked(cli, *question, "--count", 1)
    fewest = found["facts"]["min_count"]
    assert code == 1 and fewest == 4  # 141 GB of weights: two H100s hold them with no room for the rest
    assert asked(cli, *question, "--count", fewest)[0] == 0
    assert asked(cli, *question, "--count", fewest // 2)[0] == 1


def test_narrower_formats_are_named_with_what_they_leave(cli: Cli) -> None:
    code, found = asked(cli, "llama-3-8b", "--device-memory", "16GiB", "--ctx", 8192)
    ways = {w["value"]: w["left_bytes"] for w in found["facts"]["ways"] if w["change"] == "format"}
    assert code == 1 and ways["weights in 4 bits (awq)"] > ways["weights in fp8"] > 0
    assert asked(cli, "llama-3-8b", "--device-memory", "16GiB", "--ctx", 8192, "--weights", "awq")[0] == 0


def test_pipeline_stages_hold_the_model_once() -> None:
    """vLLM's get_pp_indices gives a remainder to the stages before the last; together they hold every parameter."""
    assert [len(r) for r in partition(61, 4)] == [15, 15, 16, 15] and [len(r) for r in partition(7, 3)] == [2, 3, 2]
    for name in ("llama-3-8b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b"):
        whole = resolve(name).anatomy
        parts = [stage(whole, 3, i) for i in range(3)]
        assert sum(int(parameters(p)) for p in parts) == int(parameters(whole)), name
        layers = [sum(len(m.layers.indices) for m in p.mixers) for p in (whole, *parts)]
        assert layers[0] == sum(layers[1:]), name


def test_a_tied_head_is_on_both_ends() -> None:
    whole: Anatomy = resolve("llama-3.2-1b").anatomy
    held = sum(int(parameters(stage(whole, 2, i))) for i in range(2))
    assert held == 1235814400 + 128256 * 2048  # the published count, and the table once more


def test_two_stages_fit_where_one_does_not(cli: Cli) -> None:
    question = ("llama-3.1-70b", "--device", "h100", "--ctx", 8192, "--engine", "vllm", "--count", 4)
    code, found = asked(cli, *question, "--pp", 2)
    assert code == 0 and "of 2 ranks" in found["rows"][0]["why"]


def test_llama_cpp_offloads_what_fits(cli: Cli) -> None:
    question = ("llama-3-8b", "--engine", "llama.cpp", "--ctx", 8192, "--weights", "q8_0")
    code, found = asked(cli, *question, "--device-memory", "6GiB")
    facts = found["facts"]
    layers = facts["max_gpu_layers"]
    assert code == 1 and 0 < layers < 32 and facts["device_bytes"] <= 6 * GIB
    assert asked(cli, *question, "--device-memory", "6GiB", "--gpu-layers", layers)[0] == 0
    assert asked(cli, *question, "--device-memory", "6GiB", "--gpu-layers", layers + 1)[0] == 1
    held = sum(r["bytes"] for r in found["rows"] if r["part"].startswith("weights"))
    assert held == 8030261248 * 34 // 32  # q8_0: 34 bytes per 32 elements, every tensor


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_stages_cover_every_layer_once(layers: int, stages: int) -> None:
    if stages > layers:
        return
    parts = partition(layers, stages)
    assert [i for part in parts for i in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_devices_are_many_and_every_one_says_where_its_figures_come_from() -> None:
    assert len(names()) >= 40 and any(n.startswith("m3") for n in names())
    for name in names():
        device = find(name)
        assert device.source and device.memory_bytes >= device.visible_bytes > 0, name
    assert find("H100 SXM").name == "h100" and find("a100").memory_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("llama-3-8b",), "on what?"),
        (("llama-3-8b", "--device", "h1000"), "h1000"),
        (("llama-3-8b", "--device", "h100", "--device-memory", "8GiB"), "twice"),
        (("llama-3-8b", "--device-memory", "24"), "less than a MiB"),
        (("llama-3-8b", "--device", "h100", "--count", 0), "--count"),
        (("llama-3-8b", "--device", "h100", "--count", 3), "does not divide 32 heads"),
        (("llama-3-8b", "--device", "h100", "--count", 4, "--pp", 3), "--pp 3"),
        (("llama-3-8b", "--device", "h100", "--utilization", 1.5), "--utilization"),
        (("llama-3-8b", "--device", "h100", "--weights", "int3"), "int3"),
        (("llama-3-8b", "--device", "h100", "--gpu-layers", 3), "llama.cpp's"),
        (("llama-3-8b", "--device", "h100", "--concurrency", 0), "--batch"),
        (("--d", 768, "--layers", 12, "--device", "h100", "--ctx", 128), "no vocabulary"),
    ],
)
def test_wrong_questions_are_one_line(cli: Cli, args: tuple[object, ...], word: str) -> None:
    ran = cli("fit", *args)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and word in ran.err.splitlines()[0]


def test_auto_takes_this_machine(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi lists two cards, or, where there is none, the main memory."""
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = asked(cli, "gpt2", "--device", "auto", "--engine", "transformers")[1]
    assert alone["facts"]["device_memory_bytes"] > GIB // 4
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA L4, 23034'\necho 'NVIDIA L4, 23034'\n")
    fake.chmod(0o755)
    found = asked(cli, "gpt2", "--device", "auto", "--engine", "vllm")[1]
    assert found["facts"]["visible_bytes"] == 23034 * 2**20 and "2 ranks" in found["rows"][0]["why"]
