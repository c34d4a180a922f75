"""Stored bytes and codes back to numbers: one block at a time, and integers with scale and zero.

Sources: OCP Microscaling Formats v1.0; gpt-oss' checkpoints; ggml-quants.c by the gguf package;
bitsandbytes 0.50 (the first of two codes in the high half of a byte); AutoGPTQ and GPTQModel
(checkpoint formats v1 and v2); AutoAWQ's GEMM layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmcalc.errors import InputError
from llmcalc.formats.block import BLOCKS, Block, Integer
from llmcalc.formats.codecs.block import TABLES
from llmcalc.formats.codecs.ggml import dequantise
from llmcalc.formats.codecs.unpack import unpack
from llmcalc.formats.element import find_dtype
from llmcalc.formats.floats import FLOATS

_MICRO = {
    "mxfp8_e4m3": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp6_e2m3": "float6_e2m3",
    "mxfp6_e3m2": "float6_e3m2",
    "mxfp4": "float4_e2m1",
}
# bitsandbytes numbers its FP4 levels otherwise than by size: code to level (csrc/kernels.cu)
_BNB_FP4 = (0.0, 0.0052083335, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which element each nibble of a word holds, the lowest nibble first (AutoAWQ's GEMM layout)."""

IN_MEMORY = "bytes as they lie in memory"
"""In which order a block's bytes are written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One number that came back: its place, its code and scale where they are known, its value.

    ``ggml`` is its value where the same bytes are read in ggml's order of nibbles.
    """

    index: int
    value: float
    code: int | None = None
    scale: float | None = None
    ggml: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A block's numbers, and in which order codes and scales lie in it."""

    elements: tuple[Element, ...]
    order: tuple[str, ...]


def nibbles(data: bytes, bits: int = 4, *, high_first: bool = False) -> list[int]:
    """Codes of 1, 2 or 4 bits out of bytes, the lowest bits of a byte first unless told.

    >>> nibbles(bytes([0x7E])), nibbles(bytes([0x7E]), high_first=True)
    ([14, 7], [7, 14])
    """
    places = range(0, 8, bits)
    order = reversed(places) if high_first else places
    shifts = list(order)
    return [(byte >> shift) & ((1 << bits) - 1) for byte in data for shift in shifts]


def _six_bits(data: bytes) -> list[int]:
    """Codes of six bits, four in three bytes, the lowest bits first."""
    whole = int.from_bytes(data, "little")
    return [(whole >> 6 * i) & 63 for i in range(len(data) * 8 // 6)]


def block(name: str, data: bytes) -> Decoded:
    """One block's bytes, in the order in which they lie in memory, as numbers.

    >>> one = block("mxfp4", bytes([127, 0x21]) + bytes(15))
    >>> [e.value for e in one.elements[:3]]
    [0.5, 1.0, 0.0]
    """
    found = BLOCKS[name]
    if name in _MICRO or name == "mxint8":
        _must_hold(found, data, found.size)
        return _micro(name, data)
    if name == "nvfp4" and len(data) != 36:
        _must_hold(found, data, found.size, ", or 36 of ggml's: four scales, then 32")
        return _nvfp4(data)
    if name in TABLES:
        _must_hold(found, data, found.size)
        return _bitsandbytes(name, data)
    known = find_dtype(name)
    if known is None or known.block == 1 or name == "nf4_double":
        raise InputError(f"one block of {name} is spread over several tensors", hint="dtype nf4")
    _must_hold(found, data, known.size)
    return _ggml(found, data)


def _must_hold(found: Block, data: bytes, size: int, more: str = "") -> None:
    if len(data) != size:
        count = f"{len(data)} byte{'' if len(data) == 1 else 's'}"
        raise InputError(
            f"--bits has {count}; a block of {found.name} has {size}{more}",
            hint=f"one block, bytes as they lie in memory: {found.layout}",
        )


def _ggml(found: Block, data: bytes) -> Decoded:
    """Values by the gguf package; codes and scales beside them where they are no grid's."""
    values = dequantise(np.frombuffer(data, np.uint8)[None], found.name)[0]
    parts = unpack(found.name, data)
    layout = found.layout
    meaning = found.meaning
    if found.name == "nvfp4":
        layout = "4 B of e4m3 scales, one per 16; 32 B of e2m1 codes, ggml's block"
        meaning = "x = s·e2m1, before the tensor's own float32 scale; a scale's sign is not read"
    order = [
        f"{IN_MEMORY}, numbers of several bytes little-endian: {layout}",
        f"{meaning}; values by the gguf package",
    ]
    if parts is None:
        elements = tuple(Element(index=i, value=float(x)) for i, x in enumerate(values))
        return Decoded(elements=elements, order=tuple(order))
    run = len(values) // len(parts.scales)
    elements = tuple(
        Element(index=i, code=code, scale=parts.scales[i // run], value=float(x))
        for i, (code, x) in enumerate(zip(parts.codes, values, strict=True))
    )
    order.append(parts.order)
    for product in ("d·sc·", "d·(sc - 32)·"):
        if product in meaning:
            order.append(f"scale: {product[:-1]}")
    if parts.offsets is not None:
        per = len(values) // len(parts.offsets)
        label = "m" if len(parts.offsets) == 1 else f"dmin·m, per {per}"
        order.append(f"{label}: {', '.join(f'{x:.9g}' for x in parts.offsets)}")
    return Decoded(elements=elements, order=tuple(order))


def _micro(name: str, data: bytes) -> Decoded:
    """A scale, then 32 codes."""
    exponent, codes_at = data[0], data[1:]
    scale = float("nan") if exponent == 255 else 2.0 ** (exponent - 127)
    if name == "mxint8":
        codes = list(codes_at)
        numbers = [(c - 256 if c > 127 else c) / 64 for c in codes]
    else:
        form = FLOATS[_MICRO[name]]
        if form.bits == 4:
            codes = nibbles(codes_at)
        elif form.bits == 6:
            codes = _six_bits(codes_at)
        else:
            codes = list(codes_at)
        numbers = [_float(form.decode(c)) for c in codes]
    halves = _halves(exponent, numbers) if name == "mxfp4" else [None] * 32
    elements = tuple(
        Element(index=i, code=c, scale=scale, value=scale * x, ggml=halves[i])
        for i, (c, x) in enumerate(zip(codes, numbers, strict=True))
    )
    return Decoded(elements=elements, order=_micro_order(name, exponent))


def _halves(exponent: int, numbers: Sequence[float]) -> list[float | None]:
    """The same 16 bytes in ggml's order: the low halves are elements 0 to 15, the high 16 to 31.

    ggml has no NaN there: the last exponent is 2^128, in float32.
    """
    scale = 2.0 ** (exponent - 127)
    ordered = [*numbers[::2], *numbers[1::2]]
    with np.errstate(over="ignore"):
        return [float(np.float32(scale * x)) for x in ordered]


def _micro_order(name: str, exponent: int) -> tuple[str, ...]:
    """How scale and codes of a Microscaling block lie in memory."""
    order = [f"{IN_MEMORY}: first the scale, one byte of e8m0: 2^(byte - 127)"]
    if name == "mxfp4":
        order.append(
            "then 16 bytes, the low half of each first: neighbours, as OCP's packers and gpt-oss "
            "have them (there the scales are a tensor of their own)"
        )
        order.append("ggml's MXFP4 has elements 0 to 15 in the low halves, 16 to 31 in the high")
    elif name.startswith("mxfp6"):
        order.append("then 24 bytes, four codes in three, the lowest bits first")
    else:
        order.append("then 32 bytes, a code each")
    if name == "mxint8":
        order.append("a code is an int8 in 64ths")
    if exponent == 255:
        order.append("scale 0xff is NaN, and so is the whole block")
        if name == "mxfp4":
            order[-1] += "; ggml reads 2^128"
    return tuple(order)


def _nvfp4(data: bytes) -> Decoded:
    """A scale of e4m3, then 16 codes of e2m1; the tensor's own float32 scale comes on top."""
    scale = _float(FLOATS["float8_e4m3fn"].decode(data[0]))
    form = FLOATS["float4_e2m1"]
    elements = tuple(
        Element(index=i, code=c, scale=scale, value=scale * _float(form.decode(c)))
        for i, c in enumerate(nibbles(data[1:]))
    )
    order = (
        f"{IN_MEMORY}: first the scale, one byte of e4m3; then 8 bytes, the low half of each "
        "first (in safetensors the scales are a tensor of their own)",
        "values before the tensor's own float32 scale",
    )
    return Decoded(elements=elements, order=order)


def _bitsandbytes(name: str, data: bytes) -> Decoded:
    """The largest magnitude as float32, then 64 codes."""
    scale = float(np.frombuffer(data[:4], "<f4")[0])
    if name == "nf4":
        levels: Sequence[float] = TABLES["nf4"]
    else:
        levels = [*_BNB_FP4, *(-x for x in _BNB_FP4)]
    elements = tuple(
        Element(index=i, code=c, scale=scale, value=scale * levels[c])
        for i, c in enumerate(nibbles(data[4:], high_first=True))
    )
    order = (
        f"{IN_MEMORY}: first absmax, a little-endian float32; then 32 bytes, the high half of "
        "each first (bitsandbytes keeps absmax in a tensor of its own)",
        "a code is a place in the table of 16 levels",
    )
    return Decoded(elements=elements, order=order)


def integers(found: Integer, data: bytes) -> list[int]:
    """The integers in some bytes, the lowest bits of a byte first.

    >>> from llmcalc.formats.block import INTEGERS
    >>> integers(INTEGERS["int8"], bytes([0xFF])), integers(INTEGERS["int4"], bytes([0x7E]))
    ([-1], [-2, 7])
    """
    codes = list(data) if found.bits == 8 else nibbles(data, found.bits)
    if found.lowest == 0:
        return codes
    half = 1 << (found.bits - 1)
    return [c - 2 * half if c >= half else c for c in codes]


def word(scheme: str, packed: int) -> list[int]:
    """The eight 4-bit codes of one int32 of a GPTQ or AWQ checkpoint, in the order of the weights.

    >>> word("gptq", 0x76543210), word("awq", 0x75316420)
    ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])
    """
    stored = [(packed >> 4 * i) & 15 for i in range(8)]
    if scheme != "awq":
        return stored
    codes = [0] * 8
    for place, element in enumerate(AWQ_ORDER):
        codes[element] = stored[place]
    return codes


def affine(codes: Sequence[int], scale: float, zero: int) -> list[float]:
    """Codes as numbers: (q - z)·s."""
    return [(q - zero) * scale for q in codes]


def _float(value: object) -> float:
    """A format's value as a float: specials by their names."""
    return -0.0 if value == "-0" else float(value)  # type: ignore[arg-type]
