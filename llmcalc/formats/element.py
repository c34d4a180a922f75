"""Number formats as (block, bytes): one form for bf16 and Q4_K, with the spellings of safetensors,
torch and GGUF.
"""

from __future__ import annotations

from typing import NamedTuple

from llmcalc.errors import InputError


class DType(NamedTuple):
    """A storage format: ``block`` elements take ``size`` bytes."""

    name: str
    block: int
    size: int

    @property
    def bits(self) -> float:
        """Exact bits per element, scales included."""
        return 8 * self.size / self.block

    def bytes_for(self, elements: int) -> int:
        """Bytes of that many elements, the last block filled up.

        >>> dtype("q4_0").bytes_for(64)
        36
        """
        return -(-elements // self.block) * self.size


_PLAIN = {
    "float64": (1, 8, "f64 fp64 double"),
    "float32": (1, 4, "f32 fp32 float"),
    "float16": (1, 2, "f16 fp16 half"),
    "bfloat16": (1, 2, "bf16"),
    "float8_e4m3fn": (1, 1, "f8_e4m3 fp8 fp8_e4m3 e4m3 float8_e4m3 fp8_e4m3fn"),
    "float8_e4m3fnuz": (1, 1, "f8_e4m3fnuz fp8_e4m3fnuz"),
    "float8_e5m2": (1, 1, "f8_e5m2 fp8_e5m2 e5m2"),
    "float8_e5m2fnuz": (1, 1, "f8_e5m2fnuz fp8_e5m2fnuz"),
    "float8_e8m0fnu": (1, 1, "f8_e8m0 e8m0 float8_e8m0"),
    "float6_e2m3": (4, 3, "f6_e2m3 e2m3"),
    "float6_e3m2": (4, 3, "f6_e3m2 e3m2"),
    "float4_e2m1": (2, 1, "f4 fp4 e2m1 float4_e2m1fn_x2"),
    "complex64": (1, 8, "c64"),
    "int64": (1, 8, "i64"),
    "int32": (1, 4, "i32"),
    "int16": (1, 2, "i16"),
    "int8": (1, 1, "i8"),
    "uint64": (1, 8, "u64"),
    "uint32": (1, 4, "u32"),
    "uint16": (1, 2, "u16"),
    "uint8": (1, 1, "u8"),
    "int4": (2, 1, "i4"),
    "bool": (1, 1, "boolean"),
}
"""Element formats; block 2 and 4 are bit-packed ones (safetensors counts their bytes by bits)."""

GGUF_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""ggml's type numbers: name, elements per block, bytes per block (ggml-common.h; Q8_1 is two fp16
and 32 int8).
"""

DTYPES: dict[str, DType] = {
    name: DType(name, block, size) for name, (block, size, _) in _PLAIN.items()
}
GGUF_DTYPES: dict[int, DType] = {
    number: (
        DTYPES.get(
            {"F": "float", "I": "int", "B": "bfloat"}.get(name[0], "") + name[-2:].lstrip("FI"),
            DType(name.lower(), block, size),
        )
        if block == 1
        else DType(name.lower(), block, size)
    )
    for number, (name, block, size) in GGUF_TYPES.items()
}
DTYPES |= {d.name: d for d in GGUF_DTYPES.values()}
ALIASES = {alias: name for name, (_, _, aliases) in _PLAIN.items() for alias in aliases.split()}


CACHE_DTYPES = {"fp8_ds_mla": DType("fp8_ds_mla", 576, 656)}
"""Formats of caches alone: a latent of 512 in fp8 with four float32 scales, and 64 rotary elements
in bfloat16.
"""


def find_dtype(name: str) -> DType | None:
    """The format of that name in any known spelling, or None."""
    key = name.lower().removeprefix("torch.").replace("-", "_")
    return DTYPES.get(ALIASES.get(key, key))


def dtype(name: str) -> DType:
    """The format of that name; an unknown one is an InputError with the closest names.

    >>> dtype("torch.bfloat16").name, dtype("Q4_K").bits
    ('bfloat16', 4.5)
    """
    found = find_dtype(name)
    if found is None:
        import difflib

        close = difflib.get_close_matches(name.lower(), [*DTYPES, *ALIASES], 3, 0.7)
        raise InputError(
            f"no dtype is called {name!r}",
            hint=(f"close: {', '.join(close)}; " if close else "")
            + "`llmcalc list dtypes` shows all",
        )
    return found
