"""Block formats against the gguf package, torch, the published tables, and public bug reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llmcalc.errors import UnavailableError
from llmcalc.formats.block import BLOCKS, INTEGERS
from llmcalc.formats.codecs.block import BNB_FP4, NF4, RULES, micro, nvfp4, quantiser, table
from llmcalc.formats.codecs.ggml import round_trip
from llmcalc.formats.codecs.integer import quantise, ways
from llmcalc.formats.element import GGUF_TYPES, dtype
from tests.conftest import Ran

Cli = Callable[..., Ran]
NUMBERS = np.random.default_rng(0).normal(0, 1, 64_000) * 10.0 ** np.random.default_rng(1).integers(
    -6, 3, 64_000
)


def said(cli: Cli, *words: str) -> dict[str, Any]:
    ran = cli("dtype", *words, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_mxfp4_is_what_gguf_writes() -> None:
    kind = gguf.GGMLQuantizationType.MXFP4
    rows = NUMBERS.astype(np.float32).reshape(-1, 32)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind).reshape(-1)
    assert np.array_equal(
        micro(NUMBERS.astype(np.float32).astype(np.float64), "mxfp4").values, theirs
    )


def test_sizes_are_gguf_own_but_for_two() -> None:
    """gguf 0.19 says 40 bytes for Q8_1, where ggml-common.h has two fp16 and 32 int8; Q2_0 it does
    not know.
    """
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        name, ours, n_bytes = GGUF_TYPES[int(kind)]
        assert name == kind.name
        assert (ours, n_bytes) == ((block, 36) if name == "Q8_1" else (block, size)), name
    assert [GGUF_TYPES[42]] == [("Q2_0", 64, 18)]


def test_bits_per_weight() -> None:
    """OCP Microscaling v1.0; NVIDIA's NVFP4; bitsandbytes 0.50.2; every block of ggml as dtypes has
    it.
    """
    want = {
        "mxfp8_e4m3": 8.25,
        "mxfp8_e5m2": 8.25,
        "mxfp6_e2m3": 6.25,
        "mxfp6_e3m2": 6.25,
        "mxfp4": 4.25,
    }
    want |= {"mxint8": 8.25, "nvfp4": 4.5, "nf4": 4.5, "nf4_double": 4.126953125}
    assert {name: BLOCKS[name].bits for name in want} == want
    assert all(
        BLOCKS[n.lower()].bits == dtype(n).bits for n, block, _ in GGUF_TYPES.values() if block > 1
    )


def test_nf4_levels() -> None:
    """bitsandbytes 0.50.2's own tables, to seven digits; its FP4 codes 0 to 7 and their
    negatives.
    """
    want = (
        "-1 -.6961928 -.5250731 -.3949175 -.2844414 -.1847734 -.09105 0 .0795803 .1609302 .2461123"
        " .3379152"
    )
    want += " .4407098 .562617 .7229568 1"
    assert [round(x, 7) for x in NF4] == [float(x) for x in want.split()]
    halves = [0, 0.0052083335, 0.6666667, 1, 0.3333333, 0.5, 0.1666667, 0.25]
    assert sorted(BNB_FP4) == pytest.approx(sorted({0.0, *halves, *(-x for x in halves)}), abs=1e-7)


@given(arrays(np.float64, st.integers(1, 100), elements=st.floats(-1e4, 1e4, width=32)))
def test_every_code_is_the_nearest(x: Any) -> None:
    """A block's numbers come back within half a step of the widest spacing, and 0 as 0; again
    changes nothing.
    """
    for name, most in (
        ("mxfp8_e4m3", 1 / 8),
        ("mxfp4", 1 / 3),
        ("mxint8", 1 / 64),
        ("nvfp4", 0.26),
        ("nf4", 0.16),
    ):
        known = quantiser(name)
        assert known is not None
        coded = known(x)
        assert coded.values.shape == x.shape
        assert np.abs(coded.values - x).max() <= most * np.abs(x).max() + 1e-9
    ceil = micro(x, "mxfp4", "ceil")
    assert ceil.clipped == 0
    assert np.array_equal(micro(ceil.values, "mxfp4", "ceil").values, ceil.values)


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxint8", "nvfp4", "nf4", "bnb_fp4"]
)
def test_zeros_and_signs(name: str) -> None:
    known = quantiser(name)
    assert known is not None
    assert not known(np.zeros(70)).values.any()
    assert np.array_equal(known(-NUMBERS).values, -known(NUMBERS).values) or name == "nf4"


def test_nvfp4_uses_its_range() -> None:
    """The largest number becomes 448·6 times the tensor's scale, so it comes back; a block far
    below may vanish.
    """
    x = np.concatenate([np.full(16, 2688.0), np.full(16, 1.0), np.full(16, 1e-6)])
    back = nvfp4(x)
    assert (
        back.values[0] == 2688
        and back.values[16] == pytest.approx(1.0, abs=0.1)
        and back.values[40] == 0
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_affine_is_torchs(bits: int) -> None:
    x = NUMBERS[:4096] / np.abs(NUMBERS[:4096]).max()
    way = ways(bits)[2]
    ours = quantise(x, way)
    scale, zero = float(ours.scales[0]), int(ours.zeros[0]) if ours.zeros is not None else 0
    theirs = torch.fake_quantize_per_tensor_affine(
        torch.tensor(x, dtype=torch.float64).float(), scale, zero, way.lowest, way.highest
    )
    assert np.abs(theirs.double().numpy() - ours.values).max() < 1e-6
    observer = torch.ao.quantization.MinMaxObserver(
        torch.qint8, quant_min=way.lowest, quant_max=way.highest
    )
    observer(torch.tensor(x).float())
    their_scale, their_zero = observer.calculate_qparams()
    assert float(their_scale) == pytest.approx(scale, rel=1e-6) and int(their_zero) == zero


def test_error_inside_the_range_is_at_most_half_a_step() -> None:
    for bits in (8, 4, 2):
        for way in ways(bits):
            coded = quantise(NUMBERS, way)
            top = way.highest * coded.scales[0]
            inside = (np.abs(NUMBERS) <= top) if way.symmetric else coded.codes < way.highest
            assert np.abs(coded.values - NUMBERS)[inside].max() <= coded.scales[0] * 0.5001


def test_levels() -> None:
    assert {n: i.highest - i.lowest + 1 for n, i in INTEGERS.items()}["int8"] == 256
    assert {n: i.highest - i.lowest + 1 for n, i in INTEGERS.items()}["int4"] == 16


def test_gguf_quantisers() -> None:
    form = dtype("q8_0")
    coded = round_trip(NUMBERS, form)
    rows = NUMBERS.astype(np.float32).reshape(-1, 32)
    kind = gguf.GGMLQuantizationType.Q8_0
    assert np.array_equal(
        coded.values, gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind).reshape(-1)
    )
    with pytest.raises(UnavailableError, match="q4_k"):
        round_trip(NUMBERS, dtype("q4_k"))


def test_one_block_of_one_number() -> None:
    for rule in RULES:
        assert micro(np.array([0.0]), "mxfp4", rule).values.tolist() == [0.0]
    assert table(np.array([5.0]), NF4).values.tolist() == [5.0]


def test_shared_exponent_clips(cli: Cli) -> None:
    """microsoft/microxcaling#4: 957 beside 960 becomes 896, by clipping."""
    row = said(cli, "mxfp8_e4m3", "--values", "960,957")["rows"][1]
    assert (row["rule"], row["scale"], row["scaled"], row["code"], row["stored"]) == (
        "floor",
        2,
        478.5,
        448,
        896,
    )
    assert "clipped" in row["note"]


@pytest.mark.parametrize(
    ("value", "floor", "ceil"), [("7.9", (1, 6), (2, 8)), ("6.1", (1, 6), (2, 6))]
)
def test_two_scale_rules(
    cli: Cli, value: str, floor: tuple[int, int], ceil: tuple[int, int]
) -> None:
    """ROCm/aiter#3212: floor of the exponent, or rounded up."""
    rows = said(cli, "mxfp4", "--value", value)["rows"]
    assert {r["rule"]: (r["scale"], r["stored"]) for r in rows} == {"floor": floor, "ceil": ceil}


def test_symmetric_ranges(cli: Cli) -> None:
    """microsoft/onnxruntime#10170: -127..127 or -128..127, each with its own scale."""
    rows = said(cli, "int8", "--symmetric", "--values=-1,-0.5,0.3,0.75")["rows"]
    found = {
        r: (
            [x["code"] for x in rows if x["rule"] == r],
            next(x["scale"] for x in rows if x["rule"] == r),
        )
        for r in dict.fromkeys(x["rule"] for x in rows)
    }
    assert found == {
        "symmetric, restricted": (
            [-127, -64, 38, 95],
            pytest.approx(0.007874015748031496, rel=1e-12),
        ),
        "symmetric, full": ([-128, -64, 38, 96], pytest.approx(0.00784313725490196, rel=1e-12)),
    }
    assert {x["zero_point"] for x in rows} == {0}


def test_nf4_memory(cli: Cli) -> None:
    """bitsandbytes#1203: a 4096 x 4096 weight, plain and with double quantisation."""
    facts = said(cli, "nf4", "--elements", "16777216")["facts"]
    assert (facts["weight_bytes"], facts["absmax_bytes"], facts["bits_per_weight"]) == (
        8388608,
        1048576,
        4.5,
    )
    double = facts["double_quant"]
    assert (double["absmax_bytes"], double["nested_absmax_bytes"]) == (262144, 4096)
    assert double["bits_per_weight"] == 4.126953125


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("nf4", "--value", "1,nan"), "nan"),
        (("q4_k", "--value", "1"), "q4_k"),
        (("bf16", "--symmetric", "--value", "1"), "integers"),
        (("mxfp4", "--affine", "--value", "1"), "mxfp4"),
        (("ternary", "--value", "1"), "ternary"),
        (("nf4_double", "--value", "1"), "nf4"),
        (("int8", "--value", "1e300"), "1e300"),
        (("--symmetric",), "--value"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, words: tuple[str, ...], names: str) -> None:
    ran = cli("dtype", *words)
    assert ran.code == 2 or (ran.code == 3 and "quantiser" in ran.err)
    assert names in ran.err and "Traceback" not in ran.err
    assert len([line for line in ran.err.splitlines() if line and not line.startswith("hint")]) == 1


def test_models(cli: Cli) -> None:
    found = said(cli, "q4_k_m", "--model", "llama-3-8b")["facts"]
    assert found["types"] == {"q4_k": 193, "f32": 65, "q6_k": 33}
    everything = {
        (r["kind"], r["format"]): r["bytes"] for r in said(cli, "--model", "gpt-oss-20b")["rows"]
    }
    assert everything["GGUF file type", "Q1_0"] is None and everything["GGUF file type", "Q8_0"] > 0
    assert len(everything) > 50


def test_schemes_of_matrices(cli: Cli) -> None:
    found = said(cli, "gptq")
    assert found["rows"][0]["bits"] == 4.1640625 and found["facts"]["g_idx_bytes"] == 4 * 4096
    assert {"gptq", "awq", "llm_int8", "hqq4", "mlx4", "fp8_block"} <= {
        r["dtype"] for r in said(cli)["rows"]
    }


def test_the_table_names_every_format(cli: Cli) -> None:
    rows = {r["dtype"]: r for r in said(cli)["rows"]}
    for name in (
        "tf32",
        "bfloat16",
        "float8_e4m3fnuz",
        "float8_e8m0fnu",
        "float6_e3m2",
        "mxfp8_e5m2",
        "mxint8",
        "nvfp4",
    ):
        assert name in rows
    assert {
        "int8",
        "int4",
        "int2",
        "ternary",
        "nf4",
        "nf4_double",
        "iq2_xxs",
        "tq1_0",
        "q4_k",
    } <= set(rows)
    assert (rows["q4_k"]["block"], rows["q4_k"]["block_bytes"]) == (256, 144)


def test_on_a_device(cli: Cli) -> None:
    found = said(cli, "--live", "--device", "cpu")
    assert {r["dtype"] for r in found["rows"]} >= {
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2fnuz",
    }
    assert all(r["bytes"] == r["bytes_predicted"] and r["bits_differ"] == 0 for r in found["rows"])
    assert cli("dtype", "q4_0", "--live").code == 2
    assert cli("dtype", "--device", "cpu").code == 2
    if not torch.cuda.is_available():
        assert cli("dtype", "bf16", "--live", "--device", "cuda").code == 3
