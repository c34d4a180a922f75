"""Every scalar float against ml_dtypes: all codes, the borders of rounding, infinities, NaN, -0."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from llmcalc.errors import InputError
from llmcalc.formats.floats import FLOATS, Float, Value
from tests.conftest import Ran

Cli = Callable[..., Ran]
TYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e4m3_ieee": ml_dtypes.float8_e4m3,
    "float8_e3m4": ml_dtypes.float8_e3m4,
    "float8_e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float6_e2m3": ml_dtypes.float6_e2m3fn,
    "float6_e3m2": ml_dtypes.float6_e3m2fn,
    "float4_e2m1": ml_dtypes.float4_e2m1fn,
}
NARROW = sorted(name for name in TYPES if FLOATS[name].bits <= 16)
FINITE = ("float6_e2m3", "float6_e3m2", "float4_e2m1")


def value(x: Any) -> Value:
    """A number of ml_dtypes as this package writes it."""
    number = float(x)
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return "-0" if number == 0 and math.copysign(1, number) < 0 else Fraction(number)


def their_code(x: Any, name: str) -> int:
    """The code that ml_dtypes stores for a number."""
    kind = TYPES[name]
    whole = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(kind).itemsize]
    with np.errstate(all="ignore"):
        return int(np.asarray(x).astype(kind).view(whole))


def rows(cli: Cli, *words: object) -> list[dict[str, Any]]:
    ran = cli("dtype", *words, "--json")
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)["rows"]
    return found


def test_no_format_is_left_out() -> None:
    """TF32 alone has no type there: it is a float32 whose last 13 bits are not read."""
    assert set(FLOATS) - set(TYPES) == {"tf32"}


@pytest.mark.parametrize("name", NARROW)
def test_every_code_is_decoded(name: str) -> None:
    form = FLOATS[name]
    codes = np.arange(1 << form.bits, dtype=np.uint16 if form.bits > 8 else np.uint8)
    assert [form.decode(int(c)) for c in codes] == [value(x) for x in codes.view(TYPES[name])]


def grid(form: Float) -> list[np.float32]:
    """Float32 numbers at both ends of a format, on the borders of rounding and around them."""
    top = np.float32(float(form.largest))
    step = form.largest - largest_but_one(form)
    border = np.float32(float(form.largest + step / 2))
    least = np.float32(float(form.smallest))
    halves = [border, least / np.float32(2), least * np.float32(1.5)]
    around = [np.nextafter(x, np.float32(limit)) for x in halves for limit in (0, np.inf)]
    sizes = [top, top * np.float32(2), top * np.float32(4), least, *halves, *around]
    ones = [np.float32(x) for x in (0, 1, 1.25, 2.5, 3, 3.5, 5, 6, 7, np.inf)]
    found = [*sizes, *ones]
    return [*found, *(-x for x in found)]


def largest_but_one(form: Float) -> Fraction:
    found = form.decode(form.encode(form.largest) - 1)
    assert isinstance(found, Fraction)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NARROW)
def test_codes_are_those_of_ml_dtypes(name: str) -> None:
    """Not saturated: signs of infinities, what is too large, the ends of the subnormals, -0."""
    form = FLOATS[name]
    for x in grid(form):
        if name == "float8_e8m0fnu" and 2.0**-127 < x < 1.5 * 2.0**-127:
            continue  # the test below
        assert form.encode(value(x)) == their_code(x, name), (float(x), hex(their_code(x, name)))
    if name not in FINITE:
        assert form.encode("nan") == their_code(np.float32("nan"), name)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_codes_of_wide_formats_are_those_of_numpy(name: str) -> None:
    kind = TYPES[name]
    limits = np.finfo(kind)
    sizes = [limits.max, limits.tiny, limits.smallest_subnormal, kind(0), kind(1.1), kind("inf")]
    for x in [*sizes, *(-x for x in sizes), kind("nan")]:
        assert FLOATS[name].encode(value(x)) == their_code(x, name), x
    assert FLOATS[name].encode(2 * FLOATS[name].largest) == their_code(kind("inf"), name)


def test_where_the_smallest_power_is_not_the_nearest() -> None:
    """ml_dtypes 0.6 and torch 2.13 take 1.1·2^-127 for 2^-126; the nearest is 2^-127."""
    x = np.float32(1.1 * 2.0**-127)
    assert their_code(x, "float8_e8m0fnu") == 1
    assert int(torch.tensor(x).to(torch.float8_e8m0fnu).view(torch.uint8)) == 1
    assert FLOATS["float8_e8m0fnu"].encode(Fraction(float(x))) == 0


@pytest.mark.parametrize("name", FINITE)
def test_no_nan_is_refused_and_says_what_ml_dtypes_stores(cli: Cli, name: str) -> None:
    """ml_dtypes stores a NaN as -0 and an infinity as the largest."""
    assert value(np.float32("nan").astype(TYPES[name])) == "-0"
    with pytest.raises(InputError, match="no NaN; ml_dtypes stores it as -0"):
        FLOATS[name].encode("nan")
    found = {r["value"]: r for r in rows(cli, name, "--value", "nan,inf,-inf")}
    assert found["nan"]["hex"] is None and "ml_dtypes stores it as -0" in found["nan"]["note"]
    top = float(np.float32("inf").astype(TYPES[name]))
    assert (found["inf"]["stored"], found["-inf"]["stored"]) == (top, -top)
    assert found["inf"]["note"] == "no infinity: the largest"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NARROW)
def test_neighbours_are_the_next_numbers(name: str) -> None:
    """By ml_dtypes' own numbers in order; infinity stands above the largest, NaN nowhere."""
    form = FLOATS[name]
    codes = np.arange(1 << form.bits, dtype=np.uint16 if form.bits > 8 else np.uint8)
    numbers = codes.view(TYPES[name]).astype(np.float64)
    ordered = np.unique(numbers[~np.isnan(numbers)])
    step = max(1, len(codes) // 4096)
    for code, x in zip(codes[::step], numbers[::step], strict=True):
        below, above = form.neighbours(int(code))
        if not np.isfinite(x):
            assert (below, above) == (None, None)
            continue
        at = int(np.searchsorted(ordered, x))
        wanted = (ordered[at - 1] if at else None, *ordered[at + 1 : at + 2], None)[:2]
        for got, want in zip((below, above), wanted, strict=True):
            assert (got is None) == (want is None), (hex(code), got, want)
            assert want is None or float(0 if got == "-0" else got) == want  # type: ignore[arg-type]


def test_zero_has_one_sign_where_there_is_no_minus_zero(cli: Cli) -> None:
    """In e4m3fnuz the code of -0 is NaN, so 0 is above the smallest negative number."""
    row = rows(cli, "float8_e4m3fnuz", "--value=-0.0009765625")[0]
    assert row["above"] == 0 and str(row["above"]) != "-0.0"
    assert value(np.float32(-0.0).astype(TYPES["float8_e4m3fnuz"])) == 0
    assert rows(cli, "float8_e4m3fnuz", "--value=-0")[0]["note"] == "no -0: 0"


def test_saturating_is_what_torch_does_to_e4m3fn(cli: Cli) -> None:
    """torch 2.13 casts all above 448 to 448 on a CPU, an infinity too; ml_dtypes gives NaN."""
    words = ["464", "465", "-465", "1e6", "inf", "-inf"]
    found = rows(cli, "fp8", "--value", ",".join(words))
    theirs = torch.tensor([float(w) for w in words]).to(torch.float8_e4m3fn).float().tolist()
    assert [r["saturating"] for r in found] == theirs
    assert [r["hex"] for r in found] == ["0x7e", "0x7f", "0xff", "0x7f", "0x7f", "0xff"]


@pytest.mark.parametrize(
    ("name", "code"), [("fp8", "0xff"), ("bf16", "0x7fc1"), ("e5m2", "0xfd"), ("e3m4", "0xf1")]
)
def test_a_code_that_is_asked_for_is_the_code_that_is_shown(cli: Cli, name: str, code: str) -> None:
    """A NaN's sign and payload are not lost on the way through a number."""
    row = rows(cli, name, "--bits", code)[0]
    assert (row["hex"], row["stored"]) == (code, "nan")


def test_a_longer_code_is_said_to_be_a_float32(cli: Cli) -> None:
    ran = cli("dtype", "fp8", "--bits", "0x3f800000", "--json")
    found = json.loads(ran.out)
    assert found["rows"][0]["hex"] == "0x38" and "read as float32" in found["notes"][0]
    assert json.loads(cli("dtype", "fp8", "--bits", "0x38", "--json").out)["notes"] == []


def test_names_of_formats_that_no_file_holds(cli: Cli) -> None:
    """ml_dtypes' limits of the three; they have bytes, and torch has no dtype for them."""
    for name in ("float8_e4m3_ieee", "float8_e3m4", "float8_e4m3b11fnuz"):
        top = float(ml_dtypes.finfo(TYPES[name]).max)  # type: ignore[no-untyped-call]
        assert rows(cli, name)[0]["max"] == top
        assert rows(cli, name.removeprefix("float8_"))[0]["max"] == top
        assert rows(cli, name, "--params", 10)[0]["bytes"] == 10
        refused = cli("dtype", name, "--live")
        assert refused.code == 2 and f"torch casts to no {name}" in refused.err
    assert rows(cli, "tf32", "--params", 10)[0]["bytes"] == 40
    assert rows(cli, "uint4", "--params", 3)[0]["bytes"] == 2


def test_a_scale_has_no_sign_and_no_mantissa(cli: Cli) -> None:
    facts = json.loads(cli("dtype", "e8m0", "--json").out)["facts"]
    assert facts == {"layout": "eeeeeeee", "value": "2^(e - 127)"}
    notes = [r["note"] for r in rows(cli, "e8m0", "--value", "3,1e-60,1e39,0,-0")]
    assert notes == [
        "halfway between two powers: the larger",
        "the smallest: less is not there",
        "overflow",
        "not in the format",
        "no -0: NaN",
    ]
