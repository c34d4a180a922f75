"""``speed``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


def facts(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("speed", *words, "--json")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def test_llama_3_8b_on_an_h100(cli: Cli) -> None:
    """4.481 ms for the weights and 0.3205 ms for 8,192 tokens of cache (3.35 TB/s)."""
    data = facts(cli, "llama-3-8b", "--device", "h100", "--ctx", "8192", "--batches", "1,2")
    one, two = data["rows"]
    assert one["step_s"] == pytest.approx(4.801e-3, rel=1e-3)
    assert one["limit"] == "memory" and one["prefill_limit"] == "arithmetic"
    assert two["tokens_per_second_all"] > one["tokens_per_second_all"] > two["tokens_per_second"]
    assert two["kv_bytes"] == 2 * one["kv_bytes"] == 2 * 2**30


def test_rates_of_one_s_own_and_shares_of_them(cli: Cli) -> None:
    words = (
        "llama-3-8b",
        "--flop-rate",
        "989.4T",
        "--bandwidth",
        "3.35TB",
        "--ctx",
        "8192",
        "--batches",
        "1",
    )
    whole = facts(cli, *words)["rows"][0]["step_s"]
    part = facts(cli, *words, "--memory-share", "0.8")["rows"][0]["step_s"]
    assert part == pytest.approx(whole / 0.8)


def test_devices_that_work_together_talk(cli: Cli) -> None:
    alone = facts(cli, "llama-3-8b", "--device", "h100", "--ctx", "1024", "--batches", "8")["rows"][
        0
    ]
    four = facts(
        cli, "llama-3-8b", "--device", "h100", "--ctx", "1024", "--batches", "8", "--tp", "4"
    )["rows"][0]
    assert four["link_bytes"] == 2 * 3 * 64 * 8 * 4096 * 2 // 4 and alone["link_bytes"] == 0
    assert alone["step_s"] / 4 < four["step_s"] < alone["step_s"]


def test_experts_that_are_hit_are_read(cli: Cli) -> None:
    rows = facts(cli, "mixtral-8x7b", "--device", "h100", "--ctx", "128", "--batches", "1,2,64")[
        "rows"
    ]
    one, two, many = (r["weight_bytes"] for r in rows)
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert two - one == pytest.approx(experts * ((1 - 0.75**2) - 0.25), rel=1e-6)
    assert many == pytest.approx(2 * (46_702_792_704 - 32000 * 4096), rel=1e-4)


def test_bad_input_is_one_line(cli: Cli) -> None:
    for words in (
        ("llama-3-8b", "--ctx", "64"),
        ("llama-3-8b", "--ctx", "64", "--device", "h1000"),
        ("llama-3-8b", "--ctx", "64", "--device", "h100", "--memory-share", "1.5"),
        ("llama-3-8b", "--ctx", "64", "--device", "h100", "--weights", "int3"),
        ("llama-3-8b", "--ctx", "64", "--device", "h100", "--batches", "0"),
        ("llama-3-8b", "--ctx", "64", "--flop-rate", "1T", "--bandwidth", "1TB", "--tp", "2"),
    ):
        ran = cli("speed", *words)
        assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err, words


@pytest.mark.parametrize(
    ("model", "n_bytes"),
    [("llama-3-8b", 4_912_898_048 - 295_501_824), ("llama-3.2-1b", 799_862_784)],
)
def test_a_gguf_file_type_is_read_as_it_is(cli: Cli, model: str, n_bytes: int) -> None:
    """llama-quantize's Q4_K_M of both (dry run); an untied input table is looked up and
    not read.
    """
    ran = cli(
        "speed", model, "--weights", "q4_k_m", "--device", "rtx-4090", "--ctx", 4096, "--json"
    )
    assert ran.code == 0, ran.err
    assert {r["weight_bytes"] for r in json.loads(ran.out)["rows"]} == {n_bytes}
