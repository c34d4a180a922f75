"""Codes and scales of ggml's blocks, which the gguf package does not tell with the numbers.

Source: ggml-common.h and ggml-quants.c (llama.cpp, 2026). Blocks whose codes are places in a grid
of patterns (IQ1, IQ2, IQ3) are not taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmcalc.formats.floats import FLOATS

Bytes = NDArray[np.uint8]
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A block taken apart: codes as they are stored, a scale for each run of them, and the order.

    ``offsets`` is what is added to, or with a K-quant's mins subtracted from, scale times code.
    """

    codes: list[int]
    scales: list[float]
    order: str
    offsets: list[float] | None = None


def unpack(name: str, data: bytes) -> Unpacked | None:
    """A block's codes and scales; None for a format whose codes are places in a grid.

    >>> found = unpack("q4_0", bytes([0x00, 0x3C]) + bytes([0x7E]) * 16)
    >>> found.codes[0], found.codes[16], found.scales
    (14, 7, [1.0])
    """
    known = _BY_NAME.get(name)
    return known(np.frombuffer(data, np.uint8)) if known is not None else None


def spread(data: Bytes, width: int, bits: int) -> NDArray[np.int64]:
    """Narrow codes as ggml lays them: the lowest bits of ``width`` bytes first, then the next.

    >>> spread(np.array([0x7E, 0x21], np.uint8), width=2, bits=4).tolist()
    [14, 1, 7, 2]
    """
    rows = data.reshape(-1, 1, width).astype(np.int64)
    shifts = np.arange(0, 8, bits).reshape(1, -1, 1)
    return ((rows >> shifts) & ((1 << bits) - 1)).reshape(-1)


def _ordered(width: int, bits: int) -> str:
    """The same in words."""
    if bits == 4:
        return (
            f"in every {width} bytes the low halves are the first {width} elements, the high "
            f"halves the next {width}"
        )
    return (
        f"in every {width} bytes the lowest {bits} bits are the first {width} elements, the next "
        f"bits the next {width}"
    )


_HIGH_BITS = "; bit j of high byte i is of element 32·j + i"


def _half(data: Bytes) -> Singles:
    """A little-endian float16 as a float32, as ggml widens it."""
    return data.view("<f2").astype(np.float32)


def _floats(numbers: Singles) -> list[float]:
    """Numbers for a record."""
    return [float(x) for x in numbers]


def _legacy(data: Bytes, *, with_minimum: bool, with_high: bool) -> Unpacked:
    """Q4_0 to Q5_1 and IQ4_NL: d, perhaps m, perhaps a fifth bit of all 32, then nibbles."""
    start = 4 if with_minimum else 2
    codes = spread(data[-16:], 16, 4)
    order = _ordered(16, 4)
    if with_high:
        codes += 16 * np.unpackbits(data[start : start + 4], bitorder="little").astype(np.int64)
        order += "; bit i of the 4 bytes is the highest of element i"
    return Unpacked(
        codes=codes.tolist(),
        scales=_floats(_half(data[:2])),
        offsets=_floats(_half(data[2:4])) if with_minimum else None,
        order=order,
    )


def _q8_0(data: Bytes) -> Unpacked:
    return Unpacked(
        codes=data[2:].view(np.int8).tolist(),
        scales=_floats(_half(data[:2])),
        order="one byte an element",
    )


def _q2_k(data: Bytes) -> Unpacked:
    packed = data[:16]
    return Unpacked(
        codes=spread(data[16:80], 32, 2).tolist(),
        scales=_floats(_half(data[80:82]) * (packed & 15).astype(np.float32)),
        offsets=_floats(_half(data[82:84]) * (packed >> 4).astype(np.float32)),
        order=_ordered(32, 2) + "; the scale in the low half of its byte, the min in the high",
    )


def _q3_k(data: Bytes) -> Unpacked:
    low, high, d = data[96:104], data[104:108], _half(data[108:])
    # four low bits of 16 scales, as in Q4_0; two high bits of each in the last four bytes
    six = spread(low, 8, 4) | (spread(high, 4, 2) << 4)
    return Unpacked(
        codes=(spread(data[32:96], 32, 2) + 4 * spread(data[:32], 32, 1)).tolist(),
        scales=_floats(d * (six - 32).astype(np.float32)),
        order=_ordered(32, 2) + _HIGH_BITS,
    )


def _scales_and_mins(packed: Bytes) -> tuple[Singles, Singles]:
    """Eight 6-bit scales and eight 6-bit mins out of 12 bytes (get_scale_min_k4)."""
    scale, least, both = packed.reshape(3, 4)
    scales = np.concatenate([scale & 63, (both & 15) | ((scale >> 2) & 48)])
    mins = np.concatenate([least & 63, (both >> 4) | ((least >> 2) & 48)])
    return scales.astype(np.float32), mins.astype(np.float32)


def _q4_k(data: Bytes) -> Unpacked:
    scales, mins = _scales_and_mins(data[4:16])
    return Unpacked(
        codes=spread(data[16:], 32, 4).tolist(),
        scales=_floats(_half(data[:2]) * scales),
        offsets=_floats(_half(data[2:4]) * mins),
        order=_ordered(32, 4),
    )


def _q5_k(data: Bytes) -> Unpacked:
    scales, mins = _scales_and_mins(data[4:16])
    return Unpacked(
        codes=(spread(data[48:], 32, 4) + 16 * spread(data[16:48], 32, 1)).tolist(),
        scales=_floats(_half(data[:2]) * scales),
        offsets=_floats(_half(data[2:4]) * mins),
        order=_ordered(32, 4) + _HIGH_BITS,
    )


def _q6_k(data: Bytes) -> Unpacked:
    scales = data[192:208].view(np.int8).astype(np.float32)
    return Unpacked(
        codes=(spread(data[:128], 64, 4) + 16 * spread(data[128:192], 32, 2)).tolist(),
        scales=_floats(_half(data[208:]) * scales),
        order=f"{_ordered(64, 4)}; of the high bits {_ordered(32, 2)}",
    )


def _iq4_xs(data: Bytes) -> Unpacked:
    high = int.from_bytes(data[2:4].tobytes(), "little")
    low = [nibble for byte in data[4:8] for nibble in (int(byte) & 15, int(byte) >> 4)]
    six = np.array([x | (((high >> 2 * i) & 3) << 4) for i, x in enumerate(low)])
    return Unpacked(
        codes=spread(data[8:], 16, 4).tolist(),
        scales=_floats(_half(data[:2]) * (six - 32).astype(np.float32)),
        order=_ordered(16, 4),
    )


def _tq1_0(data: Bytes) -> Unpacked:
    """Five trits in a byte, as the digits of byte/256 in base 3; four in each of the last four."""
    trits = []
    for first, width, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        body = data[first : first + width].astype(np.int64)
        trits += [((body * 3**i % 256) * 3 >> 8) - 1 for i in range(digits)]
    return Unpacked(
        codes=np.concatenate(trits).tolist(),
        scales=_floats(_half(data[52:])),
        order="a byte's trits are the digits of byte/256 in base 3; the first of 32 bytes are "
        "elements 0 to 31, the second 32 to 63; so on with 16 bytes, and with 4 of four trits",
    )


def _tq2_0(data: Bytes) -> Unpacked:
    return Unpacked(
        codes=(spread(data[:64], 32, 2) - 1).tolist(),
        scales=_floats(_half(data[64:])),
        order=_ordered(32, 2) + "; stored one more than the code",
    )


def _ue4m3(byte: int) -> float:
    """ggml's scale of NVFP4: e4m3 whose sign is not read, 0x7f as 0 (ggml_ue4m3_to_fp32)."""
    if byte & 127 == 127:
        return 0.0 if byte == 127 else 480.0
    size = FLOATS["float8_e4m3fn"].decode(byte & 127)
    return 0.0 if isinstance(size, str) else float(size)


def _nvfp4(data: Bytes) -> Unpacked:
    return Unpacked(
        codes=spread(data[4:], 8, 4).tolist(),
        scales=[_ue4m3(int(byte)) for byte in data[:4]],
        order=_ordered(8, 4),
    )


_BY_NAME: Mapping[str, Callable[[Bytes], Unpacked]] = {
    "q4_0": lambda data: _legacy(data, with_minimum=False, with_high=False),
    "q4_1": lambda data: _legacy(data, with_minimum=True, with_high=False),
    "q5_0": lambda data: _legacy(data, with_minimum=False, with_high=True),
    "q5_1": lambda data: _legacy(data, with_minimum=True, with_high=True),
    "iq4_nl": lambda data: _legacy(data, with_minimum=False, with_high=False),
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
    "nvfp4": _nvfp4,
}
