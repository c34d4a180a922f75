"""``llmcalc dtype``: notes say what the rows say, options that do nothing are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llmcalc.formats.block import BLOCKS
from tests.conftest import Ran

Cli = Callable[..., Ran]
MARKS = {
    "symmetric": "symmetric:",
    "affine": "affine:",
    "affine, range not widened": "range not widened:",
    "floor": "floor:",
    "ceil": "ceil:",
}
"""How the note on a rule begins."""
NUMBERS = "--value=-3,0.4,1e-3,2"


def said(cli: Cli, *words: object) -> dict[str, Any]:
    """A result as strict JSON: NaN and infinity are no numbers in it."""
    ran = cli("dtype", *words, "--json")
    assert ran.code == 0, ran.err

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return dict(json.loads(ran.out, parse_constant=refuse))


WRITTEN = ("int8", "int4", "int2", "uint8", "uint4", "uint2", "nvfp4", "nf4", "bnb_fp4", "q8_0")
MICRO = tuple(name for name in BLOCKS if name.startswith("mx"))


@pytest.mark.parametrize("name", [*WRITTEN, *MICRO, "q4_0", "tq2_0"])
def test_notes_are_of_the_rules_that_are_shown(cli: Cli, name: str) -> None:
    ways = [(), ("--affine",), ("--symmetric",)] if name.startswith("int") else [()]
    for way in ways:
        found = said(cli, name, NUMBERS, *way)
        rules = {
            r["rule"].removesuffix(", restricted").removesuffix(", full") for r in found["rows"]
        }
        noted = {
            rule
            for rule, mark in MARKS.items()
            if any(note.startswith(mark) for note in found["notes"])
        }
        assert noted == rules - {""}, found["notes"]
        assert found["notes"], "every way to round is told"


def test_a_clipped_number_is_clipped_to_its_code(cli: Cli) -> None:
    """microsoft/microxcaling#4, with a sign."""
    found = said(cli, "mxfp8_e4m3", "--value=-960,957")["rows"]
    clipped = [r for r in found if r["note"]]
    assert [(r["rule"], r["code"], r["note"]) for r in clipped] == [
        ("floor", -448, "clipped to -448"),
        ("floor", 448, "clipped to 448"),
    ]


def test_what_has_no_range_says_so(cli: Cli) -> None:
    one = said(cli, "uint8", "--value", "5,5")
    assert {r["rule"]: r["scale"] for r in one["rows"]}["affine, range not widened"] == 1
    assert "one value has no range of its own: there s = 1" in one["notes"]
    zero = said(cli, "int8", "--value", "0")
    assert {r["scale"] for r in zero["rows"]} == {1} and "zeros have no range: s = 1" in zero[
        "notes"
    ]
    assert not any("range of its own" in n for n in said(cli, "int8", "--value", "1,2")["notes"])


def test_a_format_without_a_rule_shows_none(cli: Cli) -> None:
    """Three values in two bits are made by no one formula."""
    assert said(cli, "ternary")["facts"] == {"levels": 3}
    assert "affine" in said(cli, "int8")["facts"]


def test_what_gguf_keeps_is_no_column(cli: Cli) -> None:
    ran = cli("dtype", "q4_0", "--value", "1,2,-3")
    assert "x / scale" not in ran.out and "tells neither codes nor scales" in ran.err


def test_a_file_says_by_which_rule_its_errors_are(cli: Cli) -> None:
    toy = "llmcalc/presets/toy"
    notes = said(cli, "int4", "--tensor", toy)["notes"]
    assert "errors in int4: symmetric, per tensor; round to nearest" in notes
    assert not any("errors in" in note for note in said(cli, "--tensor", toy)["notes"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bf16", "--live", "--symmetric"), "--symmetric does nothing"),
        (("bf16", "--live", "--scale", 0), "--scale does nothing"),
        (("bf16", "--live", "--zero", 0), "--zero does nothing"),
        (("bf16", "--live", "--params", 3), "--params does nothing"),
        (("bf16", "--symmetric", "--value", 1), "integers"),
        (("bf16", "--scale", 1, "--value", 1), "go with --codes"),
        (("mxfp4", "--zero", 1, "--bits", "0x00"), "go with --codes"),
        (("int8", "--affine", "--bits", "0x01"), "--value"),
        (("int8", "--affine", "--codes", 1, "--scale", 1), "--value"),
        (("int8", "--affine", "--symmetric", "--value", 1), "two ways"),
        (("int8", "--affine", "--params", 5), "--value"),
        (("bf16", "--run-on", "cpu"), "--live"),
        (("bf16", "--value", 1, "--codes", 3), "--value and --codes"),
        (("gptq", "--bits", "0x1", "--zero", 7), "--scale"),
        (("gptq", "--bits", "0x1", "--scale", 1), "--zero"),
        (("GPTQ", "--codes", 1, "--scale", 1), "--zero"),
        (("int8", "--codes", 1, "--scale", "inf"), "finite"),
        (("int8", "--codes", 1, "--scale", "nan"), "finite"),
        (("int8", "--codes", 1, "--scale", 1, "--zero", 200), "from -128 to 127"),
        (("awq", "--codes", 1, "--scale", 1, "--zero", 16), "from 0 to 15"),
        (("gptq", "--codes", 1, "--scale", 1, "--zero", "9" * 400), "from 0 to 15"),
        (("gptq", "--value", 1), "a way to store matrices"),
        (("fp8_block", "--bits", "0x7e"), "a way to store matrices"),
        (("awq", "--params", 9), "a way to store matrices"),
        (("q8_0", "--codes", 1, "--scale", 1), "no codes"),
    ],
)
def test_options_that_do_nothing_are_refused(
    cli: Cli, words: tuple[object, ...], says: str
) -> None:
    _one_line(cli("dtype", *words), says)


LONG = "0x" + "f" * 1_000_000


@pytest.mark.parametrize(
    "name", ["bf16", "float64", "int8", "int4", "mxfp4", "q4_k", "gptq", "awq"]
)
@pytest.mark.parametrize(
    ("bits", "says"),
    [
        ("7e21", "begins with 0x"),
        ("16256", "begins with 0x"),
        ("-0x7e", "begins with 0x"),
        ("-5", "begins with 0x"),
        ("", "begins with 0x"),
        ("0x", "--bits"),
        ("0xzz", "--bits"),
        (LONG, "--bits"),
        (LONG[2:], "begins with 0x"),
    ],
)
def test_wrong_codes_are_one_line(cli: Cli, name: str, bits: str, says: str) -> None:
    _one_line(cli("dtype", name, f"--bits={bits}"), says)


@pytest.mark.parametrize("name", ["int8", "mxfp4", "q4_k", "nf4"])
def test_an_odd_number_of_digits_is_no_bytes(cli: Cli, name: str) -> None:
    _one_line(cli("dtype", name, "--bits", "0x7e2"), "digits")


@pytest.mark.parametrize("name", sorted(set(BLOCKS) - {"nf4_double"}))
def test_a_wrong_number_of_bytes_says_how_many_and_how_they_lie(cli: Cli, name: str) -> None:
    ran = cli("dtype", name, "--bits", "0x7e")
    _one_line(ran, "--bits has 1 byte; a block of " + name)
    assert str(BLOCKS[name].size) in ran.err and BLOCKS[name].layout in ran.err


def _one_line(ran: Ran, says: str) -> None:
    lines = [line for line in ran.err.splitlines() if line and not line.startswith("hint")]
    assert ran.code == 2 and ran.out == "" and len(lines) == 1, (ran.code, ran.err[:300])
    assert lines[0].startswith("error: ") and says in lines[0] and len(lines[0]) < 300
