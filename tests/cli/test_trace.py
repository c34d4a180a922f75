"""``trace`` without weights: shapes and counts that others published, and that the parts add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llmcalc.questions.params import parameters
from llmcalc.questions.trace import ask, totals, walk
from llmcalc.sources import presets, resolve

Cli = Callable[..., Any]


def rows(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("trace", *words, "--json")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def test_gpt2_from_ids_to_the_next_token(cli: Cli) -> None:
    """[2,5] -> [2,5,768] -> ... -> [2,5,50257] -> [2,50257] (Radford et al. 2019)."""
    data = rows(cli, "--model", "gpt2", "--batch", "2", "--tokens", "5")
    shapes = [r["shape"] for r in data["rows"]]
    assert shapes[0] == [2, 5] and shapes[1] == [2, 5, 768]
    assert shapes[-2:] == [[2, 5, 50257], [2, 50257]]
    by_part = {r["part"]: r for r in data["rows"]}
    assert by_part["h.0.attn.c_attn.weight"]["shape"] == [2, 5, 2304]
    assert by_part["queries · keys"]["shape"] == [2, 12, 5, 5]
    assert by_part["h.0.mlp.c_fc.weight"]["formula"] == "[B, T, 4d]"
    assert data["facts"]["total_params"] == 124_439_808


def test_llama_3_8b_on_seven_tokens(cli: Cli) -> None:
    """Grouped heads: queries [1,32,7,128], keys and values [1,8,7,128], logits [1,7,128256]."""
    data = rows(cli, "llama-3-8b", "--tokens", "7")
    part = {r["part"].removeprefix("model.layers.0.self_attn."): r["shape"] for r in data["rows"]}
    assert part["q_proj.weight"] == [1, 32, 7, 128]
    assert part["k_proj.weight"] == part["v_proj.weight"] == [1, 8, 7, 128]
    assert part["lm_head.weight"] == [1, 7, 128256]


def test_flop_are_two_per_weight_and_token_and_attention(cli: Cli) -> None:
    """A dense model's matrices take 2 FLOP per element and token; attention 4·n_h·d_h per query,
    key and layer.
    """
    data = rows(cli, "llama-3-8b", "--tokens", "7")
    matrices = 8_030_261_248 - 128_256 * 4096 - (2 * 32 + 1) * 4096
    attention = 4 * 32 * 32 * 128 * 7 * 7
    assert data["facts"]["total_flop"] == 2 * 7 * matrices + attention


def test_one_more_token_sees_the_past(cli: Cli) -> None:
    data = rows(cli, "llama-3-8b", "--tokens", "1", "--past", "999")
    assert next(r for r in data["rows"] if r["op"] == "scores")["shape"] == [1, 32, 1, 1000]
    data = rows(cli, "gemma-3-1b", "--tokens", "1", "--past", "5000", "--layers", "0,5")
    seen = {r["layer"]: r["shape"][-1] for r in data["rows"] if r["op"] == "scores"}
    assert seen == {0: 512, 5: 5001}


def test_layers_are_folded_by_kind_and_chosen_by_number(cli: Cli) -> None:
    data = rows(cli, "deepseek-v3", "--tokens", "4")
    assert sorted({r["layer"] for r in data["rows"] if r["layer"] is not None}) == [0, 3]
    assert {r["layers"] for r in data["rows"] if r["layer"] == 3} == {58}
    routed = next(r for r in data["rows"] if r["op"] == "experts")
    assert routed["shape"] == [4 * 8, 2048]
    assert {r["layer"] for r in rows(cli, "gpt2", "--layers", "0,11")["rows"]} == {None, 0, 11}
    assert len({r["layer"] for r in rows(cli, "gpt2", "--full")["rows"]}) == 13


def test_sizes_from_flags_can_be_traced(cli: Cli) -> None:
    words = ("--d", "64", "--layers", "2", "--heads", "4", "--vocab", "100", "--ctx", "32")
    ran = cli("trace", *words[:-2], "--full", "--json")
    assert ran.code == 0, ran.err
    assert {r["layer"] for r in json.loads(ran.out)["rows"]} == {None, 0, 1}
    assert cli("trace", "--d", "64", "--layers", "2").code == 2


@pytest.mark.parametrize("name", presets.names())
def test_every_parameter_of_a_decoder_is_passed_once(name: str) -> None:
    """The walk's parameters are the model's: less where towers are left out or layers are shared,
    never more.
    """
    model = resolve(name)
    steps = list(walk(model.anatomy, ask(1, 2)))
    params, flop = totals(steps)
    total = parameters(model.anatomy)
    assert 0 < int(params) <= int(total)
    assert int(flop) > 0
    whole = all(int(w.uses) == 1 and not w.extra for w in model.anatomy.weights)
    roles = {w.role.split(".")[0] for w in model.anatomy.weights}
    if whole and not roles & {"vision", "audio", "projector"}:
        assert int(params) == int(total)


def test_bad_input_is_one_line(cli: Cli) -> None:
    for words in (
        ("gpt2", "--tokens", "0"),
        ("gpt2", "--batch", "x"),
        ("gpt2", "--layers", "99"),
        ("nothing",),
    ):
        ran = cli("trace", *words)
        assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err
    assert cli("trace", "gpt2", "--plot", "x.doc").code == 2
