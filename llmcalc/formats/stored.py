"""Bytes of a model's weights on one rank, in one dtype or quantised: which tensors stay wide is a rule by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import Dim, total
from llmcalc.errors import InputError
from llmcalc.formats.element import DType
from llmcalc.parallel import rank_elements

QUANTISED: Mapping[str, tuple[int, int, str]] = {
    "fp8_block": (4097, 4096, "one byte, and one float32 scale per 128 x 128"),
    "fp8": (1, 1, "one byte, scales per output channel not counted"),
    "int8": (1, 1, "one byte, scales per output channel not counted"),
    "int4": (66, 128, "half a byte and one 16-bit scale per 128"),
    "awq": (133, 256, "half a byte, one 16-bit scale and one 4-bit zero per 128"),
    "gptq": (133, 256, "half a byte, one 16-bit scale and one 4-bit zero per 128"),
    "nf4": (9, 16, "half a byte and one float32 scale per 64 (bitsandbytes)"),
    "mxfp4": (17, 32, "half a byte and one 8-bit scale per 32"),
}
"""Format to bytes per elements, and what that counts; of the matrices inside layers, routers apart."""


def native(settings: Mapping[str, Any] | None) -> str | None:
    """The format that a config says its weights are stored in, None where it says nothing; others are an InputError."""
    if not settings:
        return None
    method = str(settings.get("quant_method", "")).lower()
    four = settings.get("bits", 4) == 4
    if method == "fp8":
        return "fp8_block" if settings.get("weight_block_size") == [128, 128] else "fp8"
    if method == "mxfp4" or (
        method in ("awq", "gptq") and four and settings.get("group_size", 128) == 128
    ):
        return method
    if method == "bitsandbytes":
        return "nf4" if settings.get("load_in_4bit") else "int8"
    if method == "modelopt" and settings.get("quant_algo") == "FP8":
        return "fp8"
    raise InputError(
        f"which tensors {method or 'this quantisation'} packs, and how, is not known without the checkpoint",
        hint=f"name the checkpoint itself, or give --weights: a dtype or {', '.join(QUANTISED)}",
    )


_WIDE = ("router", "norm", "embed", "head", "projector", "vision", "audio")


def quantisable(weight: Weight) -> bool:
    """Whether quantisers touch a weight: matrices inside the layers, and not the router's."""
    inside = "{layer}" in weight.name and weight.op == "matmul" and len(weight.shape) >= 2
    return inside and not weight.role.startswith(_WIDE)


def rank_bytes(
    anatomy: Anatomy,
    wide: DType,
    quant: str | None = None,
    tp: int = 1,
    n_kv_heads: int | None = None,
) -> Dim:
    """Bytes of the weights on the fullest rank of ``tp``; quantised where ``quant`` says so, else all in ``wide``."""
    if quant is not None and quant not in QUANTISED:
        raise InputError(
            f"no weight format is called {quant!r}",
            hint=f"known: {', '.join(QUANTISED)}, or a dtype",
        )
    sizes = []
    for w in anatomy.weights:
        if w.tied_to or w.extra:
            continue
        elements = rank_elements(w, tp, n_kv_heads)
        if quant is not None and quantisable(w) and not (quant == "mxfp4" and not w.experts > 1):
            n_bytes, per, _ = QUANTISED[quant]
            sizes.append(elements * n_bytes // per if per > 1 else elements * n_bytes)
        else:
            sizes.append(
                elements * wide.size // wide.block if wide.block > 1 else elements * wide.size
            )
    return total(sizes)


def stored_bytes(
    anatomy: Anatomy,
    stored: Mapping[str, tuple[int, int]],
    tp: int = 1,
    n_kv_heads: int | None = None,
) -> int:
    """Bytes on the fullest rank of a checkpoint as it is: each role's bytes, cut as its elements are.

    ``stored`` is role to (bytes in the file, elements in the whole model); the role "" is on every rank.
    """
    n = 0
    for role, (n_bytes, elements) in stored.items():
        here = sum(
            int(rank_elements(w, tp, n_kv_heads))
            for w in anatomy.weights
            if w.role == role and not w.tied_to
        )
        n += n_bytes if not role or not elements else -(-n_bytes * here // elements)
    return n
