"""Bytes of a model's weights on one rank, in one dtype or quantised: which tensors stay wide is a rule by role."""

from __future__ import annotations

from collections.abc import Mapping

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.calc.parallel import rank_elements
from llmcalc.dims import Dim, total
from llmcalc.dtypes import DType
from llmcalc.errors import InputError

QUANTISED: Mapping[str, tuple[int, int, str]] = {
    "fp8": (1, 1, "one byte, scales per output channel not counted"),
    "int8": (1, 1, "one byte, scales per output channel not counted"),
    "int4": (66, 128, "half a byte and one 16-bit scale per 128"),
    "awq": (133, 256, "half a byte, one 16-bit scale and one 4-bit zero per 128"),
    "gptq": (133, 256, "half a byte, one 16-bit scale and one 4-bit zero per 128"),
    "nf4": (9, 16, "half a byte and one float32 scale per 64 (bitsandbytes)"),
    "mxfp4": (17, 32, "half a byte and one 8-bit scale per 32"),
}
"""Format to bytes per elements, and what that counts; of the matrices inside layers, routers apart."""

_WIDE = ("router", "norm", "embed", "head", "projector", "vision", "audio")


def quantisable(weight: Weight) -> bool:
    """Whether quantisers touch a weight: matrices inside the layers, and not the router's."""
    inside = "{layer}" in weight.name and weight.op == "matmul" and len(weight.shape) >= 2
    return inside and not weight.role.startswith(_WIDE)


def rank_bytes(
    anatomy: Anatomy, wide: DType, quant: str | None = None, tp: int = 1, n_kv_heads: int | None = None
) -> Dim:
    """Bytes of the weights on the fullest rank of ``tp``; quantised where ``quant`` says so, else all in ``wide``."""
    if quant is not None and quant not in QUANTISED:
        raise InputError(f"no weight format is called {quant!r}", hint=f"known: {', '.join(QUANTISED)}, or a dtype")
    sizes = []
    for w in anatomy.weights:
        if w.tied_to or w.extra:
            continue
        elements = rank_elements(w, tp, n_kv_heads)
        if quant is not None and quantisable(w) and not (quant == "mxfp4" and not w.experts > 1):
            n_bytes, per, _ = QUANTISED[quant]
            sizes.append(elements * n_bytes // per if per > 1 else elements * n_bytes)
        else:
            sizes.append(elements * wide.size // wide.block if wide.block > 1 else elements * wide.size)
    return total(sizes)
