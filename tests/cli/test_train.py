"""``train``: what it prints, what it refuses, and a real step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


def facts(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("train", *words, "--json")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["facts"])


def test_flop_of_a_step_and_a_run(cli: Cli) -> None:
    """Llama-3 405B: 6·N·D of 15.6T tokens, 3.8e25 (arXiv 2407.21783); LLaMA 65B: 21 days are 2,048
    x 380 tokens/s.
    """
    found = facts(
        cli,
        "llama-3.1-405b",
        "--train-tokens",
        "15.6T",
        "--flop-convention",
        "none",
        "--tokens",
        "8192",
    )
    assert found["run_flop"] == pytest.approx(3.8e25, rel=0.01)
    found = facts(
        cli, "gpt3", "--train-tokens", "300B", "--flop-convention", "none", "--tokens", "2048"
    )
    assert found["run_flop"] == pytest.approx(3.14e23, rel=0.01)


def test_utilisation_of_a_measured_step(cli: Cli) -> None:
    words = (
        "llama-3-8b",
        "--tokens",
        "8192",
        "--like",
        "torchtitan",
        "--recompute",
        "selective",
        "--zero",
        "3",
        "--dp",
        "8",
    )
    found = facts(cli, *words, "--step-time", "1.5", "--device", "h200")
    assert found["achieved_flop_per_s"] == pytest.approx(found["step_flop"] / 1.5 / 8)
    assert found["mfu"] == pytest.approx(found["achieved_flop_per_s"] / 989.4e12)


def test_days_of_a_run_with_recomputation(cli: Cli) -> None:
    """Narayanan et al. 2021: GPT-3 on 300B tokens, 1,024 A100 at 140 TFLOP/s, everything
    recomputed: 34 days.
    """
    words = (
        "gpt3",
        "--like",
        "megatron",
        "--tp",
        "8",
        "--dp",
        "128",
        "--recompute",
        "full",
        "--flop-convention",
        "none",
    )
    found = facts(cli, *words, "--train-tokens", "300B", "--achieved", "140T")
    assert found["run_seconds"] / 86400 == pytest.approx(33.9, rel=0.01)


def test_time_and_energy(cli: Cli) -> None:
    words = (
        "gpt2",
        "--train-tokens",
        "1B",
        "--achieved",
        "100T",
        "--like",
        "zero",
        "--dp",
        "4",
        "--watts",
        "500",
    )
    found = facts(cli, *words)
    assert found["run_seconds"] == pytest.approx(found["run_flop"] / 4 / 100e12, rel=1e-6)
    assert found["energy_kwh"] == pytest.approx(found["run_seconds"] * 4 * 500 / 3.6e6)


def test_a_share_of_a_large_batch(cli: Cli) -> None:
    """Seven tokens in a step of 16,777,216."""
    words = (
        "gpt2",
        "--tokens",
        "8192",
        "--micro-batch",
        "2",
        "--like",
        "zero",
        "--dp",
        "1024",
        "--tokens-of-interest",
        "7",
    )
    found = facts(cli, *words)
    assert found["tokens_per_step"] == 16_777_216
    assert found["share_of_interest"] == pytest.approx(7 / 16_777_216)


def test_what_does_not_fit_is_exit_code_1(cli: Cli) -> None:
    ran = cli("train", "llama-3-8b", "--device", "h100", "--tokens", "2048")
    assert ran.code == 1 and "more than h100 has" in ran.err


def test_a_real_step_takes_what_is_predicted(cli: Cli) -> None:
    pytest.importorskip("torch")
    for precision in ("fp32", "bf16"):
        found = facts(
            cli, "toy", "--live", "--run-on", "cpu", "--precision", precision, "--tokens", "48"
        )
        assert (
            found["measured_weights"]
            == found["measured_gradients"]
            == found["measured_optimizer"] // 2
            > 0
        )
        assert found["measured_peak"] <= found["peak_bytes"]
    ran = cli("train", "llama-3-8b", "--live", "--precision", "fp32", "--run-on", "cpu")
    assert ran.code == 3 and "--set" in ran.err


def test_speed_that_is_measured(cli: Cli) -> None:
    pytest.importorskip("torch")
    words = (
        "toy",
        "--measure",
        "--run-on",
        "cpu",
        "--flop-rate",
        "1000T",
        "--bandwidth",
        "100TB",
        "--ctx",
        "32",
    )
    ran = cli("speed", *words, "--batches", "1", "--json")
    found = json.loads(ran.out)["facts"]
    assert 0 < found["reached"] < 1 and found["measured_tokens_per_second"] > 0


def test_bad_input_is_one_line(cli: Cli) -> None:
    for words in (
        ("--optimizer", "adamx"),
        ("--micro-batch", "0"),
        ("--zero", "5"),
        ("--like", "megatron", "--tp", "5"),
        ("--like", "megatron", "--precision", "bf16"),
        ("--precision", "fp8"),
        ("--weights", "nf4"),
        ("--lora-rank", "-1"),
        ("--step-time", "0"),
        ("--flop-convention", "kaplan"),
        ("--device", "h1000"),
        ("--live", "--like", "megatron"),
    ):
        ran = cli("train", "gpt2", *words)
        assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err, words


def test_states_of_experts_are_divided_among_those_who_hold_them(cli: Cli) -> None:
    """Expert-data-parallel ranks are dp·cp/ep (Megatron-LM): all ranks together hold each master
    copy once.
    """
    recipe = (
        "mixtral-8x7b",
        "--like",
        "megatron",
        "--zero",
        1,
        "--dp",
        8,
        "--recompute",
        "full",
        "--json",
    )
    whole = 46_702_792_704
    for ep, sharers in ((1, 8), (2, 4), (4, 2), (8, 1)):
        found = json.loads(cli("train", *recipe, "--ep", ep).out)
        held = {row["part"]: row["bytes"] for row in found["rows"]}
        assert 8 * held["master"] == pytest.approx(4 * whole, abs=64)
        routed = 45_097_156_608 // ep
        assert held["weights"] == 2 * (whole - 45_097_156_608 + routed)
        traffic = {t["exchange"]: t for t in found["facts"]["traffic"]}
        if ep > 1:
            got = traffic.get("reduce-scatter of gradients of experts", {"ranks": 1, "bytes": 0})
            assert got["ranks"] == sharers and got["bytes"] == 4 * routed * (sharers - 1) // sharers


def test_the_slowest_rank_decides(cli: Cli) -> None:
    words = ("train", "gpt2", "--precision", "bf16", "--dp", 4, "--link", "50GB", "--rank-seconds")
    facts = json.loads(cli(*words, "1,1,1,1.3", "--json").out)["facts"]
    assert facts["compute_s"] == 1.3 and facts["step_s"] == pytest.approx(1.3 + 373_319_424 / 50e9)
    assert facts["waiting_s"] == [pytest.approx(x) for x in (0.3, 0.3, 0.3, 0)]
    for wrong in ("1,1", "1,1,1,x", "1,1,1,0", "1,1,1,-2", ""):
        ran = cli(*words, wrong)
        assert ran.code == 2 and "--rank-seconds" in ran.err
