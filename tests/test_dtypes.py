"""The table of formats against the packages that define them."""

from __future__ import annotations

import pytest

from llmcalc.errors import InputError
from llmcalc.formats.element import GGUF_DTYPES, dtype, find_dtype


def test_every_ggml_type_has_the_block_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        mine = GGUF_DTYPES[int(kind)]
        # the package's Q8_1 counts two float32; ggml-common.h has two float16
        assert (mine.block, mine.size) == ((32, 36) if kind.name == "Q8_1" else (block, size)), kind


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("BF16", "bfloat16"),
        ("torch.float16", "float16"),
        ("half", "float16"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("Q4_K", "q4_k"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert dtype(spelling).name == name


@pytest.mark.parametrize(
    ("name", "bits"),
    [("q4_0", 4.5), ("q8_0", 8.5), ("q6_k", 6.5625), ("mxfp4", 4.25), ("bf16", 16.0)],
)
def test_bits_per_element(name: str, bits: float) -> None:
    assert dtype(name).bits == bits


def test_an_unknown_format_names_the_closest() -> None:
    assert find_dtype("bfloat17") is None
    with pytest.raises(InputError) as error:
        dtype("bfloat17")
    assert "bfloat16" in str(error.value.hint)
