"""The contract of ``llmcalc params``: the lines that always work, the JSON, the exit codes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]


def facts(ran: Ran) -> dict[str, object]:
    data: dict[str, dict[str, object]] = json.loads(ran.out)
    return data["facts"]


def test_the_line_that_must_always_work(cli: Cli) -> None:
    ran = cli("params", "--d", 768, "--layers", 12)
    assert ran.code == 0 and "85,054,464" in ran.out and "L·(12d² + 13d)" in ran.out
    assert "only the blocks are counted" in ran.err


def test_with_a_vocabulary_it_is_gpt2_small(cli: Cli) -> None:
    ran = cli("params", "--d", 768, "--layers", 12, "--vocab", 50257, "--ctx", 1024, "--json")
    assert facts(ran)["total_params"] == 124439808


def test_untied_and_llama_shaped_sizes(cli: Cli) -> None:
    untied = cli(
        "params", "--d", 768, "--layers", 12, "--vocab", 50257, "--ctx", 1024, "--untied", "--json"
    )
    assert facts(untied)["total_params"] == 124439808 + 50257 * 768
    llama = (
        "--arch",
        "llama",
        "--d",
        4096,
        "--layers",
        32,
        "--heads",
        32,
        "--kv-heads",
        8,
        "--d-ff",
        14336,
        "--vocab",
        128256,
    )
    assert facts(cli("params", *llama, "--json"))["total_params"] == 8030261248


def test_json_has_the_keys_of_the_contract(cli: Cli) -> None:
    data = json.loads(cli("params", "--model", "deepseek-v3", "--json").out)
    assert data["kind"] == "params/1" and {"name", "family", "source"} <= data["model"].keys()
    keys = {
        "total_params",
        "stored_params",
        "buffer_params",
        "active_params",
        "active_params_without_embedding",
    }
    assert keys | {"embedding_params", "tied", "n_tensors", "weight_bytes"} <= data["facts"].keys()
    assert data["facts"]["weight_bytes"]["bfloat16"] == 2 * data["facts"]["total_params"]
    assert all({"part", "formula", "params"} <= row.keys() for row in data["rows"])
    assert (
        data["facts"]["buffer_params"] == 14848 and data["facts"]["stored_params"] == 671026419200
    )


def test_tensors_are_listed_as_published(cli: Cli) -> None:
    rows = json.loads(cli("params", "llama-3-8b", "--tensors", "--json").out)["rows"]
    assert (
        len(rows) == 291
        and {"name", "shape", "params", "role", "dtype", "tied_to"} <= rows[0].keys()
    )
    by_name = {row["name"]: row["shape"] for row in rows}
    assert by_name["model.layers.31.self_attn.k_proj.weight"] == [1024, 4096]
    tied = json.loads(cli("params", "gpt2", "--tensors", "--json").out)["rows"][-1]
    assert (tied["name"], tied["tied_to"], tied["params"]) == ("lm_head.weight", "wte.weight", 0)


@pytest.mark.parametrize(
    ("expected", "code"), [("124439808", 0), ("124,439,808", 0), ("163037184", 1)]
)
def test_expect(cli: Cli, expected: str, code: int) -> None:
    # huggingface/transformers#14960: 163,037,184 counts the tied head twice
    ran = cli("params", "gpt2", "--expect", expected)
    assert ran.code == code
    if code:
        assert "38,597,376 fewer" in ran.err


def test_the_conventions_that_go_by_non_embedding_are_each_named(cli: Cli) -> None:
    # karpathy/nanoGPT#209
    ran = cli("params", "gpt2", "--json")
    assert facts(ran)["params_without_positions"] == 123653376
    assert facts(ran)["params_without_embedding"] == 85056000
    text = cli("params", "gpt2").out
    assert "without positions" in text and "without lookup tables" in text


@pytest.mark.parametrize("by", ["part", "layer", "role", "weight"])
def test_groupings_sum_to_the_total(cli: Cli, by: str) -> None:
    data = json.loads(cli("params", "qwen3-30b-a3b", "--by", by, "--json").out)
    assert sum(row["params"] for row in data["rows"]) == data["facts"]["total_params"]


def test_layers_that_are_alike_are_one_row(cli: Cli) -> None:
    rows = json.loads(cli("params", "deepseek-v3", "--by", "layer", "--json").out)["rows"]
    assert [r["part"] for r in rows] == [
        "model.embed_tokens.weight",
        "model.layers 0-2",
        "model.layers 3-60",
        "model.norm.weight",
        "lm_head.weight",
    ]


def test_dtype_and_units(cli: Cli) -> None:
    assert "float32" in cli("params", "gpt2", "--dtype", "fp32").out
    assert "GB" in cli("params", "llama-3-8b", "--units", "si").out
    ran = cli("params", "gpt2", "--dtype", "float17")
    assert ran.code == 2 and "float16" in ran.err


def test_set_changes_one_size_in_any_spelling(cli: Cli) -> None:
    for setting in ("n_kv_heads=32", "num_key_value_heads=32"):
        ran = cli("params", "llama-3-8b", "--set", setting, "--json")
        assert facts(ran)["total_params"] == 8030261248 + 32 * 2 * 24 * 128 * 4096
        assert any("by hand" in note for note in json.loads(ran.out)["notes"])
    ran = cli("params", "llama-3-8b", "--set", "n_kv_headz=32")
    assert ran.code == 2 and "n_kv_heads" in ran.err
    assert cli("params", "gpt2", "--set", "nonsense").code == 2


def test_formats(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("params", "gpt2", "--format", "csv").out)))
    assert (
        rows[0]["part"] == "wte"
        and rows[0]["params"] == "38597376"
        and rows[0]["params_formula"] == "V·d"
    )
    markdown = cli("params", "gpt2", "--format", "markdown").out
    assert "| wte | V·d | 38,597,376 |" in markdown
    assert cli("params", "gpt2", "--format", "xml").code == 2


def test_explain_puts_the_numbers_in(cli: Cli) -> None:
    assert "12·(12·768² + 13·768)" in cli("params", "--d", 768, "--layers", 12, "--explain").out


def test_nothing_is_cut_in_a_pipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # install-release#319, ccusage#946: names shortened with an ellipsis at 80 columns
    monkeypatch.setenv("COLUMNS", "40")
    out = cli("params", "llama-3-8b", "--tensors").out
    assert (
        "model.layers.31.post_attention_layernorm.weight" in out
        and "…" not in out
        and "..." not in out
    )
    assert sum("model.layers." in line for line in out.splitlines()) == 288


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["params"], "--layers 12"),
        (["params", "--d", "768"], "--layers"),
        (["params", "lama-3-8b"], "llama-3-8b"),
        (["params", "gpt2", "--model", "llama-3-8b"], "twice"),
        (["params", "gpt2", "--d", "5"], "--set"),
        (["params", "--d", "-768", "--layers", "12"], "--d"),
        (["params", "--d", "0", "--layers", "12"], "--d"),
        (["params", "--d", "1e30", "--layers", "12"], "--d"),
        (["params", "--d", "7.5", "--layers", "12"], "--d"),
        (["params", "--d", "768", "--layers", "12", "--arch", "mamba"], "gpt2, llama"),
        (["params", "gpt2", "--by", "colour"], "part, layer"),
        (["params", "gpt2", "--expect", "many"], "many"),
        (["params", "gpt2", "--jsno"], "--json"),
        (["prams", "gpt2"], "params"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, words: list[str], named: str) -> None:
    ran = cli(*words)
    assert ran.code == 2 and ran.out == "" and "Traceback" not in ran.err and named in ran.err, (
        ran.err
    )
    assert ran.err.startswith("error: ")


def test_a_hub_id_without_a_network(cli: Cli) -> None:
    ran = cli("params", "org/name@main")
    assert (
        ran.code == 3
        and "org/name@main is not in the local cache" in ran.err
        and len(ran.err.splitlines()) == 3
    )


def test_the_traceback_is_there_for_those_who_ask(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMCALC_DEBUG", "1")
    assert "Traceback" in cli("params", "nothing-like-it").err


@pytest.mark.parametrize("what", ["presets", "families", "dtypes"])
def test_lists(cli: Cli, what: str) -> None:
    data = json.loads(cli("list", what, "--json").out)
    assert data["kind"] == "list/1" and data["facts"]["count"] == len(data["rows"]) >= 30
    assert cli("list", what).code == 0


def test_list_of_nothing(cli: Cli) -> None:
    assert cli("list", "colours").code == 2


def test_a_preset_beside_a_directory_of_its_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert cli("params", "gpt2", "--expect", 124439808).code == 0
