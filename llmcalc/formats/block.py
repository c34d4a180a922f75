"""Formats that are not single floats: integers, and blocks of codes that share a scale.

What each stores.

Sources: OCP Microscaling Formats v1.0; ggml-common.h (llama.cpp, 2026); bitsandbytes 0.50; NVIDIA's
NVFP4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmcalc.formats.element import GGUF_DTYPES, find_dtype


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer code: its bits and its range."""

    name: str
    bits: int
    lowest: int
    highest: int


def _both(bits: int) -> tuple[Integer, Integer]:
    """The signed and the unsigned integer of so many bits."""
    half = 2 ** (bits - 1)
    return (
        Integer(name=f"int{bits}", bits=bits, lowest=-half, highest=half - 1),
        Integer(name=f"uint{bits}", bits=bits, lowest=0, highest=2 * half - 1),
    )


INTEGERS: Mapping[str, Integer] = {i.name: i for bits in (8, 4, 2) for i in _both(bits)} | {
    "ternary": Integer(name="ternary", bits=2, lowest=-1, highest=1)
}
"""Integers that weights are stored in; ternary is -1, 0, 1 in two bits (1.58 bits of information).
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of codes: elements and bytes of one block, and how the bytes are used."""

    name: str
    block: int
    size: int
    layout: str
    meaning: str
    per_tensor: int = 0
    """Bytes more for a whole tensor."""

    @property
    def bits(self) -> float:
        """Exact bits per weight, scales included, what a tensor has once apart."""
        return 8 * self.size / self.block


def _micro(name: str, element: str, bits: int, largest: str) -> Block:
    """A Microscaling format: a power of two for 32 codes."""
    return Block(
        name=name,
        block=32,
        size=1 + 4 * bits,
        layout=f"1 B e8m0 scale; 32 codes of {element} in {4 * bits} B",
        meaning=f"x = 2^(e - 127)·{element}; largest {largest}·2^127",
    )


_GGML: Mapping[str, tuple[str, str]] = {
    "q4_0": ("fp16 d; 16 B of 4-bit codes", "x = d·(q - 8)"),
    "q4_1": ("fp16 d, m; 16 B of 4-bit codes", "x = d·q + m"),
    "q5_0": ("fp16 d; 4 B of high bits; 16 B of low four", "x = d·(q - 16)"),
    "q5_1": ("fp16 d, m; 4 B of high bits; 16 B of low four", "x = d·q + m"),
    "q8_0": ("fp16 d; 32 int8", "x = d·q"),
    "q8_1": ("fp16 d, s = d·Σq; 32 int8", "x = d·q; activations alone, never in a file"),
    "q2_k": (
        "16 B of 4-bit scales and mins; 64 B of 2-bit codes; fp16 d, dmin",
        "x = d·sc·q - dmin·m, per 16",
    ),
    "q3_k": (
        "32 B of high bits; 64 B of low two; 12 B of 6-bit scales; fp16 d",
        "x = d·(sc - 32)·(q - 4), per 16",
    ),
    "q4_k": (
        "fp16 d, dmin; 12 B of 6-bit scales and mins; 128 B of 4-bit codes",
        "x = d·sc·q - dmin·m, per 32",
    ),
    "q5_k": (
        "fp16 d, dmin; 12 B of 6-bit scales and mins; 32 B of high bits; 128 B of low four",
        "x = d·sc·q - dmin·m, per 32",
    ),
    "q6_k": (
        "128 B of low four; 64 B of high two; 16 int8 scales; fp16 d",
        "x = d·sc·(q - 32), per 16",
    ),
    "q8_k": ("fp32 d; 256 int8; 16 int16 sums", "x = d·q; activations alone, never in a file"),
    "iq1_s": ("fp16 d; 32 B; 16 B", "8 weights from a grid of 2,048 ternary patterns"),
    "iq1_m": (
        "32 B; 16 B; 8 B, the scale in spare bits",
        "8 weights from a grid of ternary patterns, scale per 16",
    ),
    "iq2_xxs": ("fp16 d; 64 B", "8 weights from a grid of 256, signs apart"),
    "iq2_xs": ("fp16 d; 64 B; 8 B of scales", "8 weights from a grid of 512, signs apart"),
    "iq2_s": ("fp16 d; 64 B; 8 B of high bits; 8 B of scales", "8 weights from a grid of 1,024"),
    "iq3_xxs": ("fp16 d; 96 B", "4 weights from a grid of 256, signs apart"),
    "iq3_s": ("fp16 d; 64 B; 8 B; 32 B of signs; 4 B of scales", "4 weights from a grid of 512"),
    "iq4_nl": ("fp16 d; 16 B of 4-bit codes", "x = d·t[q], t a table of 16 uneven levels"),
    "iq4_xs": ("fp16 d; 2 B + 4 B of 6-bit scales; 128 B of codes", "x = d·(sc - 32)·t[q], per 32"),
    "tq1_0": ("48 B of 5 trits each; 4 B; fp16 d", "x = d·q, q one of -1, 0, 1"),
    "tq2_0": ("64 B of 2-bit codes; fp16 d", "x = d·q, q one of -1, 0, 1"),
    "q1_0": ("fp16 d; 16 B of signs", "x = ±d"),
    "q2_0": ("fp16 d; 16 B of 2-bit codes", "d times one of four levels"),
}

_OWN = (
    _micro("mxfp8_e4m3", "e4m3", 8, "448"),
    _micro("mxfp8_e5m2", "e5m2", 8, "57344"),
    _micro("mxfp6_e2m3", "e2m3", 6, "7.5"),
    _micro("mxfp6_e3m2", "e3m2", 6, "28"),
    _micro("mxfp4", "e2m1", 4, "6"),
    _micro("mxint8", "int8/64", 8, "127/64"),
    Block(
        name="nvfp4",
        block=16,
        size=9,
        layout="1 B e4m3 scale; 8 B of e2m1 codes",
        meaning="x = t·s·e2m1; t a float32 of the tensor",
        per_tensor=4,
    ),
    Block(
        name="nf4",
        block=64,
        size=36,
        layout="fp32 absmax; 32 B of 4-bit codes",
        meaning="x = absmax·t[q], t quantiles of a normal distribution",
        per_tensor=64,
    ),
    Block(
        name="nf4_double",
        block=16384,
        size=8452,
        layout="8-bit absmax per 64, fp32 per 256 of those",
        meaning="as nf4, absmax in 8 bits",
        per_tensor=1088,
    ),
    Block(
        name="bnb_fp4",
        block=64,
        size=36,
        layout="fp32 absmax; 32 B of 4-bit codes",
        meaning="x = absmax·t[q]; bitsandbytes, and not e2m1",
        per_tensor=64,
    ),
)
BLOCKS: Mapping[str, Block] = {b.name: b for b in _OWN} | {
    d.name: Block(
        name=d.name,
        block=d.block,
        size=d.size,
        layout=_GGML[d.name][0],
        meaning=_GGML[d.name][1],
    )
    for d in GGUF_DTYPES.values()
    if d.name in _GGML
}
"""Every block format: Microscaling, NVFP4, bitsandbytes' and ggml's."""

_ALIASES = {
    "mxfp8": "mxfp8_e4m3",
    "mxfp6": "mxfp6_e2m3",
    "nf4_dq": "nf4_double",
    "int1.58": "ternary",
}


def find(name: str) -> Integer | Block | None:
    """The integer or block format of that name, or None."""
    key = name.lower().replace("-", "_")
    known = find_dtype(key)
    key = _ALIASES.get(key, known.name if known is not None else key)
    return INTEGERS.get(key) or BLOCKS.get(key)
