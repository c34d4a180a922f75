"""How weights lie in a quantised file: which tensors stand for one weight, and with which shapes.

One function per method, chosen by the config's ``quant_method``; a method that is not here is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...] | None]
"""Tensor names that stand for one weight, with their shapes; None where the shape may vary."""

Layout = Callable[[str, tuple[int, ...], Mapping[str, Any]], Shapes]


def gptq(name: str, shape: tuple[int, ...], settings: Mapping[str, Any]) -> Shapes:
    """GPTQ: rows packed along the input, zeros along the output, one group index per input (AutoGPTQ's layout)."""
    out, inn = shape
    per = 32 // int(settings.get("bits", 4))
    groups = _groups(inn, settings)
    base = name.removesuffix(".weight")
    return {
        f"{base}.qweight": (-(-inn // per), out),
        f"{base}.qzeros": (groups, -(-out // per)),
        f"{base}.scales": (groups, out),
        f"{base}.g_idx": (inn,),
    }


def awq(name: str, shape: tuple[int, ...], settings: Mapping[str, Any]) -> Shapes:
    """AWQ: columns packed along the output (llm-awq's GEMM layout)."""
    out, inn = shape
    per = 32 // int(settings.get("bits", settings.get("w_bit", 4)))
    groups = _groups(inn, settings)
    base = name.removesuffix(".weight")
    return {
        f"{base}.qweight": (inn, -(-out // per)),
        f"{base}.qzeros": (groups, -(-out // per)),
        f"{base}.scales": (groups, out),
    }


def _groups(inn: int, settings: Mapping[str, Any]) -> int:
    size = int(settings.get("group_size", settings.get("q_group_size", 128)))
    return 1 if size <= 0 else -(-inn // size)


def bitsandbytes(name: str, shape: tuple[int, ...], settings: Mapping[str, Any]) -> Shapes:
    """bitsandbytes 4-bit: two weights per byte in one column, scales and a state beside it; 8-bit: the shape itself."""
    if settings.get("load_in_8bit"):
        return {name: shape, f"{name.removesuffix('.weight')}.SCB": (shape[0],)}
    elements = shape[0] * shape[1]
    kind = str(settings.get("bnb_4bit_quant_type", "nf4"))
    return {
        name: (-(-elements // 2), 1),
        f"{name}.absmax": None,
        f"{name}.quant_map": (16,),
        f"{name}.quant_state.bitsandbytes__{kind}": None,
        f"{name}.nested_absmax": None,
        f"{name}.nested_quant_map": None,
    }


def fp8(name: str, shape: tuple[int, ...], settings: Mapping[str, Any]) -> Shapes:
    """fp8 with one scale per block or per tensor (DeepSeek-V3's layout)."""
    block = settings.get("weight_block_size")
    scale = tuple(-(-s // b) for s, b in zip(shape, block, strict=False)) if block else None
    return {
        name: shape,
        f"{name}_scale_inv": scale,
        f"{name}_scale": None,
        f"{name.removesuffix('.weight')}.input_scale": None,
    }


def mxfp4(name: str, shape: tuple[int, ...], settings: Mapping[str, Any]) -> Shapes:
    """gpt-oss: experts as blocks of 32 values in 16 bytes and one scale byte each, output before input."""
    experts, inn, out = shape
    return {
        f"{name}_blocks": (experts, out, inn // 32, 16),
        f"{name}_scales": (experts, out, inn // 32),
    }


LAYOUTS: Mapping[str, Layout] = {
    "gptq": gptq,
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
    "mxfp4": mxfp4,
}
