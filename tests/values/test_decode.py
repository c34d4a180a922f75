"""Bytes and codes back to numbers: against ml_dtypes, the gguf package and the writers' layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmcalc.formats.block import BLOCKS, INTEGERS
from llmcalc.formats.codecs.block import NF4, quantiser
from llmcalc.formats.codecs.decode import block, integers, nibbles, word
from llmcalc.formats.codecs.scalar import KINDS
from llmcalc.formats.codecs.unpack import unpack
from tests.conftest import Ran

Cli = Callable[..., Ran]
RNG = np.random.default_rng(7)


def said(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("dtype", *words, "--json")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp4": ml_dtypes.float4_e2m1fn,
}


def test_mxint8_is_an_int8_in_64ths(cli: Cli) -> None:
    """OCP MX v1.0, 5.3.4: an implied scale of 2^-6."""
    body = np.arange(-128, 128, 8, dtype=np.int8)
    found = said(cli, "mxint8", "--bits", "0x80" + body.tobytes().hex())
    assert [r["stored"] for r in found["rows"]] == (body / 64 * 2).tolist()


@pytest.mark.parametrize("name", ELEMENTS)
def test_microscaling_blocks_are_codes_times_a_power_of_two(name: str) -> None:
    """A code's number is ml_dtypes' own; the scale byte 130 is 2^3."""
    width = 1 if name == "mxfp4" else 2
    body = RNG.integers(0, 256, 16 * width, dtype=np.uint8).tobytes()
    codes = np.array(nibbles(body) if name == "mxfp4" else list(body), np.uint8)
    kind = ELEMENTS[name]
    if name == "mxfp4":
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # OCP MX v1.0, table of e2m1
        want = np.where(codes > 7, -1, 1) * table[codes & 7] * 8
    else:
        want = codes.view(kind).astype(np.float64) * 8
    found = [e.value for e in block(name, bytes([130]) + body).elements]
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["mxfp6_e2m3", "mxfp6_e3m2"])
def test_six_bits_are_packed_four_in_three(name: str) -> None:
    kind = ml_dtypes.float6_e2m3fn if name == "mxfp6_e2m3" else ml_dtypes.float6_e3m2fn
    codes = RNG.integers(0, 64, 32, dtype=np.uint8)
    whole = sum(int(c) << 6 * i for i, c in enumerate(codes))
    found = block(name, bytes([127]) + whole.to_bytes(24, "little"))
    np.testing.assert_array_equal(
        [e.value for e in found.elements], codes.view(kind).astype(np.float64)
    )


GGML = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl")
GRIDS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")


def random_block(name: str) -> NDArray[np.uint8]:
    kind = gguf.GGMLQuantizationType[name.upper()]
    return RNG.integers(0, 256, gguf.GGML_QUANT_SIZES[kind][1], dtype=np.uint8)


def read_by_gguf(name: str, data: NDArray[np.uint8]) -> Any:
    kind = gguf.GGMLQuantizationType[name.upper()]
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data[None], kind)[0]


@pytest.mark.parametrize("name", [*GGML, *GRIDS, "iq4_xs", "tq1_0", "tq2_0"])
def test_blocks_of_ggml_are_what_gguf_reads(cli: Cli, name: str) -> None:
    data = random_block(name) % np.uint8(60)  # no float16 that is infinite
    want = read_by_gguf(name, data)
    found = said(cli, name, "--bits", "0x" + data.tobytes().hex())
    np.testing.assert_array_equal([r["stored"] for r in found["rows"]], want.astype(np.float64))
    assert "little-endian" in found["notes"][0] and BLOCKS[name].layout in found["notes"][0]
    assert all((r["code"] is None) == (name in GRIDS) for r in found["rows"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [*GGML, "iq4_xs", "tq1_0", "tq2_0", "nvfp4"])
def test_codes_and_scales_of_ggml_make_what_gguf_reads(name: str) -> None:
    """The formula of the format, in float32, by codes and scales out of blocks of any bits."""
    numbers = getattr(gguf.quants, "IQ4_NL" if name.startswith("iq4") else "NVFP4").kvalues
    less = {"q4_0": 8, "q5_0": 16, "q3_k": 4, "q6_k": 32}.get(name, 0)
    for _ in range(30):
        data = random_block(name)
        want = read_by_gguf(name, data)
        found = unpack(name, data.tobytes())
        assert found is not None and len(found.codes) == len(want)
        codes = np.array(found.codes, np.float32) - np.float32(less)
        if name.startswith("iq4"):
            codes = np.array(numbers, np.float32)[found.codes]
        elif name == "nvfp4":
            codes = np.array(numbers, np.float32)[found.codes] / np.float32(2)  # doubled there
        scales = np.array(found.scales, np.float32)
        got = np.repeat(scales, len(want) // len(scales)) * codes
        if found.offsets is not None:
            offsets = np.array(found.offsets, np.float32)
            more = np.repeat(offsets, len(want) // len(offsets))
            got = got + more if name in ("q4_1", "q5_1") else got - more
        np.testing.assert_array_equal(got, want)


def test_a_block_of_ggml_is_taken_apart(cli: Cli) -> None:
    """ggml-common.h's q4_1: d = 1 (0x3c00), m = -2 (0xc000), then nibbles, the low halves first."""
    data = bytes([0x00, 0x3C, 0x00, 0xC0, 0x7E, *[0] * 15])
    found = said(cli, "q4_1", "--bits", "0x" + data.hex())
    rows = found["rows"]
    assert [(rows[i]["code"], rows[i]["scale"], rows[i]["stored"]) for i in (0, 1, 16)] == [
        (14, 1, 12),
        (0, 1, -2),
        (7, 1, 5),
    ]
    assert "m: -2" in found["notes"]
    assert any("low halves are the first 16 elements" in note for note in found["notes"])


def test_nvfp4_of_ggml_has_four_scales(cli: Cli) -> None:
    """ggml's block is 64 numbers in 36 bytes; the bytes of 9 are one of four scales."""
    data = random_block("nvfp4") & np.uint8(0x77)
    want = read_by_gguf("nvfp4", data)
    found = said(cli, "nvfp4", "--bits", "0x" + data.tobytes().hex())
    assert [r["stored"] for r in found["rows"]] == want.astype(float).tolist()
    assert "one per 16" in found["notes"][0]
    assert any("first 8 elements" in note for note in found["notes"])


def test_a_format_that_gguf_does_not_read_is_named(cli: Cli) -> None:
    ran = cli("dtype", "q8_1", "--bits", "0x" + "00" * 36)
    assert ran.code == 3 and "q8_1, which the gguf package does not read back" in ran.err
    assert "tensor" not in ran.err


def test_a_scale_that_is_nan_is_said_to_be(cli: Cli) -> None:
    """OCP MX v1.0: the whole block is NaN; ggml_e8m0_to_fp32_half goes on to 2^128."""
    data = bytes([255]) + RNG.integers(0, 256, 16, dtype=np.uint8).tobytes()
    want = read_by_gguf("mxfp4", np.frombuffer(data, np.uint8)).astype(float)
    found = said(cli, "mxfp4", "--bits", "0x" + data.hex())
    assert {r["stored"] for r in found["rows"]} == {"nan"}
    assert [float(r["ggml"]) for r in found["rows"]] == want.tolist()
    assert "0xff is NaN" in found["notes"][-1]
    fine = said(cli, "mxfp4", "--bits", "0x7e" + "21" * 16)
    assert not any("NaN" in note for note in fine["notes"])


def test_mxfp4_lies_in_two_orders(cli: Cli) -> None:
    """ggml puts elements 0 to 15 into the low halves of the bytes: the gguf package says so."""
    data = bytes([126]) + RNG.integers(0, 256, 16, dtype=np.uint8).tobytes()
    kind = gguf.GGMLQuantizationType.MXFP4
    want = gguf.quants.dequantize(np.frombuffer(data, np.uint8)[None], kind)[0]
    found = said(cli, "mxfp4", "--bits", "0x" + data.hex())
    assert [r["ggml"] for r in found["rows"]] == want.astype(float).tolist()
    assert [r["code"] for r in found["rows"]] == nibbles(data[1:])
    assert "neighbours" in " ".join(found["notes"]) and "ggml" in " ".join(found["notes"])


def test_nvfp4_is_a_scale_of_e4m3_and_sixteen_codes() -> None:
    """0x38 is 1 in e4m3; 0x7e is 6 (code 14 is -4, code 7 is 6)."""
    found = block("nvfp4", bytes([0x38, 0x7E]) + bytes(7))
    assert [e.value for e in found.elements[:3]] == [-4.0, 6.0, 0.0]


def test_nf4_has_its_first_code_in_the_high_half() -> None:
    """bitsandbytes packs two codes as (first << 4) | second."""
    data = np.float32(2.0).tobytes() + bytes([0xF0]) + bytes([0x77] * 31)
    values = [e.value for e in block("nf4", data).elements]
    assert values[:3] == [2.0 * NF4[15], 2.0 * NF4[0], 0.0]
    fp4 = [e.value for e in block("bnb_fp4", data).elements]
    assert fp4[0] == pytest.approx(-0.5) and fp4[1] == 0.0  # codes 15 and 0: bitsandbytes' kernels


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=32, max_size=32))
def test_what_is_stored_comes_back(numbers: list[float]) -> None:
    """A block written by the quantiser and packed by hand is decoded to the quantiser's values."""
    array = np.array(numbers)
    quantise = quantiser("mxfp8_e4m3")
    assert quantise is not None
    coded = quantise(array)
    exponent = int(np.log2(coded.scales[0])) + 127
    codes = coded.codes.astype(KINDS["float8_e4m3fn"]).view(np.uint8)
    found = block("mxfp8_e4m3", bytes([exponent]) + codes.tobytes())
    np.testing.assert_array_equal([e.value for e in found.elements], coded.values)


def test_integers_of_bytes(cli: Cli) -> None:
    want = np.arange(256, dtype=np.uint8).view(np.int8).astype(int).tolist()
    assert integers(INTEGERS["int8"], bytes(range(256))) == want
    assert [r["stored"] for r in said(cli, "int4", "--bits", "0x7e")["rows"]] == [-2, 7]
    assert [r["stored"] for r in said(cli, "uint4", "--bits", "0x7e")["rows"]] == [14, 7]
    assert [r["stored"] for r in said(cli, "uint8", "--bits", "0xff01")["rows"]] == [255, 1]


def test_words_of_gptq_and_awq(cli: Cli) -> None:
    """AutoGPTQ shifts element i by 4·i; AutoAWQ's order map is 0, 2, 4, 6, 1, 3, 5, 7."""
    codes = [3, 15, 0, 7, 9, 1, 12, 5]
    gptq = sum(c << 4 * i for i, c in enumerate(codes))
    awq = sum(codes[e] << 4 * i for i, e in enumerate([0, 2, 4, 6, 1, 3, 5, 7]))
    assert word("gptq", gptq) == word("awq", awq) == codes
    rows = said(cli, "awq", "--bits", hex(awq), "--scale", 0.5, "--zero", 8)["rows"]
    assert [r["stored"] for r in rows] == [(c - 8) / 2 for c in codes]
    for scheme, order in (
        ("gptq", "in order, the lowest first"),
        ("awq", "0, 2, 4, 6, 1, 3, 5, 7"),
    ):
        notes = said(cli, scheme.upper(), "--bits", "0x76543210")["notes"]
        assert order in notes[0] and "lowest byte lies first in memory" in notes[1]


def test_the_two_checkpoint_formats_of_gptq(cli: Cli) -> None:
    """GPTQModel: v1 stores the zero less one, v2 as it is (its convert_gptq_v1_to_v2 adds it)."""
    rows = said(cli, "gptq", "--codes", "3,15,0", "--scale", 0.25, "--zero", 7)["rows"]
    by = {
        rule: [r["stored"] for r in rows if r["rule"] == rule] for rule in {r["rule"] for r in rows}
    }
    assert by["v1: (q - (z + 1))·s"] == [-1.25, 1.75, -2.0]
    assert by["v2: (q - z)·s"] == [-1.0, 2.0, -1.75]


def test_affine_with_and_without_widening(cli: Cli) -> None:
    """torch's observers widen to hold 0: [0.1, 2] has scale 2/255; alone it would be 1.9/255."""
    rows = said(cli, "uint8", "--value", "0.1,2")["rows"]
    scales = {r["rule"]: r["scale"] for r in rows}
    assert scales["affine"] == pytest.approx(2 / 255)
    assert scales["affine, range not widened"] == pytest.approx(1.9 / 255)
    assert all(0 <= r["zero_point"] <= 255 and 0 <= r["code"] <= 255 for r in rows)
    signed = said(cli, "int8", "--affine", "--value", "2,3")
    assert {r["zero_point"] for r in signed["rows"]} == {-128}
    assert not any("symmetric" in note for note in signed["notes"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mxfp4", "--bits", "0x7"), "hexadecimal digit"),
        (("mxfp4", "--bits", "0x7f"), "a block of mxfp4 has 17"),
        (("q4_k", "--bits", "0xzz"), "hexadecimal"),
        (("nf4_double", "--bits", "0x00"), "several tensors"),
        (("gptq", "--bits", "0x1ffffffff"), "more bits than an int32"),
        (("gptq", "--codes", "16", "--scale", 1), "from 0 to 15"),
        (("q4_0", "--codes", "1", "--scale", 1), "no codes"),
        (("gptq", "--codes", "1"), "--scale"),
        (("int8", "--scale", 1), "go with --codes"),
        (("uint8", "--symmetric", "--value", "1"), "nothing lies around it"),
        (("int8", "--bits", "0x" + "0" * 100_000), "at most"),
    ],
)
def test_wrong_questions_are_one_line(cli: Cli, words: tuple[object, ...], says: str) -> None:
    ran = cli("dtype", *words)
    assert ran.code == 2 and says in ran.err and ran.err.startswith("error: ")
