"""``llmcalc kvcache`` as a user types it: defaults by engine, comparisons, the inverse,
refusals.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]


def data(cli: Cli, *args: object) -> dict[str, Any]:
    ran = cli("kvcache", *args, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_llama_cpp_caches_in_f16_unless_told_otherwise(cli: Cli) -> None:
    """llama-bench and llama-server: ``--cache-type-k`` and ``-v`` default to f16 (llama.cpp's
    common/arg.cpp).
    """
    found = data(cli, "llama-3-8b", "--ctx", 8192, "--engine", "llama.cpp")
    assert found["facts"]["kv_dtype"] == "float16" and any("f16" in n for n in found["notes"])


def test_servers_load_a_float32_model_in_16_bits(cli: Cli) -> None:
    """vLLM's ``--dtype auto``: half precision for float32 models; so GPT-2's cache takes 2 bytes an
    element.
    """
    assert data(cli, "gpt2", "--engine", "vllm")["facts"]["kv_bytes"] == 2 * 12 * 768 * 1024 * 2


def test_sparse_latents_in_fp8_keep_their_scales(cli: Cli) -> None:
    """vLLM's fp8_ds_mla: 656 bytes per token and layer, and 132 of the indexer, in one group of 122
    layers.
    """
    asked = ("deepseek-v3.2", "--ctx", 32768, "--engine", "vllm", "--kv-dtype", "fp8_ds_mla")
    facts = data(cli, *asked)["facts"]
    assert (facts["bytes_per_block"], facts["blocks_per_sequence"], facts["groups"]) == (
        3076352,
        512,
        1,
    )
    assert facts["kv_bytes"] == 1575092224


def test_vs_names_the_term_that_moved(cli: Cli) -> None:
    asked = (
        "llama-3-8b",
        "--ctx",
        8192,
        "--vs",
        "kv-heads=32",
        "--vs",
        "kv-dtype=fp8",
        "--vs",
        "engine=vllm",
    )
    heads, narrow, engine = data(cli, *asked)["facts"]["vs"]
    assert heads["ratio"] == 4 and heads["moved"][0]["sizes"] == {"n_kv": [8, 32]}
    assert narrow["ratio"] == 0.5 and narrow["moved"][0]["sizes"] == {"b": [2, 1]}
    assert engine["ratio"] == 1 and engine["moved"] == []


def test_a_change_does_not_touch_the_legend_of_the_question_itself(cli: Cli) -> None:
    ran = cli("kvcache", "llama-3-8b", "--ctx", 8192, "--vs", "kv-heads=32", "--format", "plain")
    assert "n_kv = n_kv_heads = 8" in ran.out and "n_kv 8 -> 32" in ran.out


def test_a_draft_is_a_row_of_its_own(cli: Cli) -> None:
    found = data(cli, "llama-3.1-70b", "--ctx", 4096, "--draft", "llama-3.2-1b")
    draft = found["rows"][-1]
    assert draft["kind"] == "draft llama-3.2-1b" and draft["kv_bytes"] == 2 * 16 * 8 * 64 * 4096 * 2
    assert found["facts"]["mha_bytes"] == 0


def test_the_grid_is_drawn_and_says_what_does_not_fit(cli: Cli) -> None:
    asked = ("kvcache", "llama-3-8b", "--ctx", 8192, "--memory", "24GiB")
    table = (
        cli(*asked, "--format", "plain").out.split("cache by context and sequences")[1].splitlines()
    )
    assert table[1].split() == ["context", "1", "2", "4", "8", "16", "32", "64"]
    assert table[7].split() == [
        "8,192",
        *["1.00", "GiB", "2.00", "GiB", "4.00", "GiB", "8.00", "GiB", "16.00", "GiB", "-", "-"],
    ]
    drawn = cli(*asked, "--plot", "-", "--format", "plain").out.split("32 64")[1]
    assert "▓▓" in drawn and "██" not in drawn.splitlines()[6] and "-- --" in drawn


def test_gpt_neo_sees_a_window_and_keeps_everything(cli: Cli) -> None:
    """Every other layer masks to 256 tokens (arXiv 2101.00027's model); transformers' cache holds
    all of them.
    """
    per_layer = 2 * 768 * 4
    assert data(cli, "gpt-neo-125m", "--ctx", 2048)["facts"]["kv_bytes"] == 6 * per_layer * (
        2048 + 256
    )
    whole = data(cli, "gpt-neo-125m", "--ctx", 2048, "--engine", "transformers")
    assert whole["facts"]["kv_bytes"] == 12 * per_layer * 2048


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("llama-3-8b", "--ctx", 0), "--ctx"),
        (("llama-3-8b", "--ctx", 10**18), "more than any machine"),
        (("llama-3-8b", "--batch", 0), "--batch"),
        (("llama-3-8b", "--engine", "vllm", "--block-size", 0), "--block-size is 0"),
        (("llama-3-8b", "--engine", "vllm", "--kv-dtype", "q8_0"), "vLLM's cache in q8_0"),
        (("llama-3-8b", "--engine", "vllm", "--kv-dtype", "fp8,bf16"), "one dtype"),
        (("llama-3-8b", "--engine", "vllm", "--kv-dtype", "fp8_ds_mla"), "latent attention"),
        (("llama-3-8b", "--engine", "transformers", "--kv-dtype", "fp8"), "transformers"),
        (
            ("llama-3-8b", "--engine", "vllm", "--ubatch", 64),
            "--ubatch is a setting of llama.cpp and ollama",
        ),
        (("llama-3-8b", "--static"), "--static is a setting of transformers"),
        (("llama-3-8b", "--tp", 3), "--tp 3"),
        (("llama-3-8b", "--memory", 80), "80 bytes"),
        (("llama-3-8b", "--plot", "x.doc"), "x.doc"),
        (("llama-3-8b", "--vs", "kv-heads"), "key=value"),
        (("gpt-neo-125m", "--engine", "llama.cpp"), "does not run gpt_neo"),
        (("bert-base",), "keeps nothing between tokens"),
        (("llama-3-8b", "--engine", "vlm"), "no engine"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, args: tuple[object, ...], word: str) -> None:
    ran = cli("kvcache", *args)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and word in ran.err.splitlines()[0]


def test_a_version_beyond_the_known_ones_is_named(cli: Cli) -> None:
    notes = data(cli, "llama-3-8b", "--ctx", 128, "--engine", "vllm@99.1")["notes"]
    assert any("99.1" in note for note in notes)
    assert not any(
        "were not read" in n
        for n in data(cli, "llama-3-8b", "--ctx", 128, "--engine", "vllm@0.20")["notes"]
    )


def test_repeated_heads_are_divided_among_ranks(cli: Cli) -> None:
    """Falcon 11B's reference caches all 32 heads: two ranks hold half each."""
    asked = ("falcon-11b", "--ctx", 4096, "--engine", "transformers")
    whole = data(cli, *asked)["facts"]["kv_bytes"]
    assert 2 * data(cli, *asked, "--tp", 2)["facts"]["kv_bytes"] == whole


def test_the_grid_fits_a_narrow_terminal() -> None:
    from llmcalc.cli.output.terminal import heat_map
    from llmcalc.cli.output.view import Grid

    texts = [["123.45 MiB"] * 7] * 2
    grid = Grid(
        title="t",
        corner="context",
        rows=["131,072", "65,536"],
        columns=["1", "2", "4", "8", "16", "32", "64"],
        texts=texts,
        heat=[[0.5] * 7] * 2,
    )
    assert len(heat_map(grid, 80).columns) == 6 and len(heat_map(grid, 200).columns) == 8


def test_the_scales_of_an_fp8_cache_are_counted_beside_it(cli: Cli) -> None:
    """vLLM: k_scale and v_scale, one float32 each per layer; keys alone in fp8 have one."""
    facts = json.loads(
        cli("kvcache", "llama-3-8b", "--ctx", "8192", "--kv-dtype", "fp8", "--json").out
    )["facts"]
    assert (facts["kv_bytes"], facts["kv_scale_bytes"]) == (536_870_912, 32 * 8)
    facts = json.loads(
        cli("kvcache", "llama-3-8b", "--ctx", "8192", "--kv-dtype", "fp8,bf16", "--json").out
    )["facts"]
    assert facts["kv_scale_bytes"] == 32 * 4
    assert (
        json.loads(cli("kvcache", "llama-3-8b", "--ctx", "8", "--json").out)["facts"][
            "kv_scale_bytes"
        ]
        == 0
    )
