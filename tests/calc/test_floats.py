"""Scalar floats against ml_dtypes and numpy: every code, the limits, thousands of roundings; public
bug reports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmcalc.formats.floats import FLOATS, Value
from tests.conftest import Ran

Cli = Callable[..., Ran]
TYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float6_e2m3": ml_dtypes.float6_e2m3fn,
    "float6_e3m2": ml_dtypes.float6_e3m2fn,
    "float4_e2m1": ml_dtypes.float4_e2m1fn,
}


def value(x: Any) -> Value:
    number = float(x)
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return "-0" if number == 0 and math.copysign(1, number) < 0 else Fraction(number)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_code_and_the_limits(name: str) -> None:
    f, kind = FLOATS[name], TYPES[name]
    codes = np.arange(1 << f.bits, dtype=np.uint16 if f.bits > 8 else np.uint8)
    assert [f.decode(int(c)) for c in codes] == [value(x) for x in codes.view(kind)]
    limits = np.finfo(kind) if name == "float16" else ml_dtypes.finfo(kind)
    assert (f.largest, f.epsilon) == (Fraction(float(limits.max)), Fraction(float(limits.eps)))
    assert f.smallest_normal == Fraction(float(limits.smallest_normal))


@pytest.mark.parametrize("name", sorted(TYPES))
def test_rounding(name: str) -> None:
    f, rng = FLOATS[name], np.random.default_rng(0)
    numbers = np.concatenate(
        [rng.normal(0, 1, 1500), rng.normal(0, 1, 1500) * 10.0 ** rng.integers(-8, 8, 1500)]
    )
    numbers = np.concatenate([numbers, [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    with np.errstate(all="ignore"):
        stored = numbers.astype(TYPES[name])
    assert [f.decode(f.encode(value(x))) for x in numbers] == [value(x) for x in stored]


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_formats_agree_with_numpy(name: str) -> None:
    f, kind = FLOATS[name], np.dtype(name)
    limits = np.finfo(kind)
    assert (f.largest, f.smallest_normal) == (
        Fraction(float(limits.max)),
        Fraction(float(limits.tiny)),
    )
    unsigned = np.uint32 if name == "float32" else np.uint64
    for x in (0.1, -3.5, 1e-40, 1e38, 5e-324):
        assert f.encode(Fraction(x)) == int(np.array(x, dtype=kind).view(unsigned))


def rows(cli: Cli, *args: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("dtype", *args, "--json").out)["rows"]
    return found


def test_public_reports(cli: Cli) -> None:
    """The upper edge of e5m2, nearest even in bfloat16, a NaN payload in the low bits, both ends of
    float16.
    """
    edge = rows(cli, "float8_e5m2", "--value", "57344,61439,61440,65536,inf")
    assert [r["stored"] for r in edge] == [57344, 57344, "inf", "inf", "inf"]
    assert [r["saturating"] for r in edge] == [57344] * 5
    narrow = rows(cli, "bfloat16", "--value", "0.2691408770292272,3.14,1e-08")
    assert [r["stored"] for r in narrow] == [0.26953125, 3.140625, 1.0011717677116394e-08]
    assert narrow[0]["hex"] == "0x3e8a"
    assert rows(cli, "bfloat16", "--bits", "0x7F800001")[0]["hex"] == "0x7fc0"
    ends = rows(
        cli,
        "float16",
        "--value",
        "65504,65519,65520,5.960464477539063e-08,2.9802322387695312e-08,6e-08,1e-08",
    )
    tiny = 5.960464477539063e-08
    assert [r["stored"] for r in ends] == [65504, 65504, "inf", tiny, 0, tiny, 0]


def test_70_billion_in_four_formats(cli: Cli) -> None:
    found = {r["dtype"]: r["bytes"] for r in rows(cli, "--params", "70e9")}
    wanted = {"float32": 280, "bfloat16": 140, "float8_e4m3fn": 70, "int4": 35}
    assert {k: found[k] // 10**9 for k in wanted} == wanted


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("foo",), "foo"),
        (("complex64", "--value", 1), "no scalar float"),
        (("bf16", "--value", "x"), "'x'"),
        (("bf16", "--value", "1e999999"), "range"),
        (("bf16", "--bits", "zz"), "--bits"),
        (("bf16", "--bits", "0x1ffffffff"), "more bits"),
        (("--params", 0), "--params"),
        (("bf16", "--value", 1, "--params", 2), "different questions"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, args: tuple[object, ...], word: str) -> None:
    ran = cli("dtype", *args)
    assert ran.code == 2 and ran.err.startswith("error: ") and word in ran.err.splitlines()[0]


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_boundary_and_a_million_floats(name: str) -> None:
    """Rounding is monotonic, so the halfway points and their float32 neighbours decide it; then
    10^6 floats by them.
    """
    if name == "float8_e8m0fnu":
        pytest.skip("no zero and no sign: its roundings are above")
    f, kind = FLOATS[name], TYPES[name]
    codes = [c for c in range(1 << (f.exponent + f.mantissa)) if isinstance(f.decode(c), Fraction)]
    values = np.array([float(f.decode(c)) for c in codes])  # type: ignore[arg-type]
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    assert np.array_equal(middles.astype(np.float64), (values[1:] + values[:-1]) / 2)
    for x in (
        middles,
        np.nextafter(middles, np.float32(0)),
        np.nextafter(middles, np.float32(np.inf)),
    ):
        ours = [f.encode(Fraction(float(v))) for v in x]
        assert np.array_equal([float(f.decode(c)) for c in ours], x.astype(kind).astype(np.float64))  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)
    numbers = np.concatenate(
        [numbers, rng.normal(0, float(values[-1]) / 8, 1_000_000).astype(np.float32)]
    )
    numbers = numbers[np.abs(numbers) <= values[-1]]
    size = np.abs(numbers.astype(np.float64))
    index = np.searchsorted(middles.astype(np.float64), size, side="left")
    tie = (index < len(middles)) & (size == middles[np.minimum(index, len(middles) - 1)])
    index += tie & (np.array(codes)[index] % 2 == 1)
    with np.errstate(all="ignore"):
        theirs = np.abs(numbers.astype(kind).astype(np.float64))
    assert np.array_equal(values[index], theirs)
    for special in ("nan", "inf", "-inf"):
        if f.kind != "finite":
            assert f.decode(f.encode(special)) == value(np.float32(special).astype(kind))  # type: ignore[arg-type]


def test_where_the_libraries_are_wrong_or_differ() -> None:
    """torch 2.13: finfo(e5m2fnuz).eps is 0.125, where the code after 1 is 1.25; its cast to e4m3fn
    saturates.
    """
    import torch

    f = FLOATS["float8_e5m2fnuz"]
    one = f.encode(Fraction(1))
    assert f.decode(one + 1) == Fraction(5, 4) and f.epsilon == Fraction(1, 4)
    assert (
        torch.finfo(torch.float8_e5m2fnuz).eps == 0.125
        and ml_dtypes.finfo(ml_dtypes.float8_e5m2fnuz).eps == 0.25
    )
    e4m3 = FLOATS["float8_e4m3fn"]
    large = torch.tensor([465.0, 1e6, float("inf")])
    assert large.to(torch.float8_e4m3fn).float().tolist() == [448.0] * 3
    assert [e4m3.decode(e4m3.encode(Fraction(x), saturate=True)) for x in (465, 10**6)] == [
        448,
        448,
    ]
    assert [e4m3.decode(e4m3.encode(x)) for x in (Fraction(465), Fraction(10**6), "inf")] == [
        "nan"
    ] * 3
    assert np.isnan(
        np.array([465.0, 1e6, np.inf]).astype(ml_dtypes.float8_e4m3fn).astype(float)
    ).all()
