"""What quantisation schemes store of every tensor: packed codes, scales, zeros, indices and tables, each counted.

Sources: the writers themselves (GPTQModel, AutoAWQ, bitsandbytes 0.50, compressed-tensors 0.20, HQQ 0.2.8, MLX) and
their file layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import product
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype, find_dtype
from llmcalc.formats.file_type import BASES, Typed, mix
from llmcalc.formats.stored import quantisable
from llmcalc.questions.flops import in_text

Pieces = Callable[[int, int], Mapping[str, int]]
"""Inputs and outputs of one matrix to the bytes of what is stored for it, by name."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to store matrices: the bytes of its pieces, what it leaves in 16 bits, and its formula."""

    pieces: Pieces
    formula: str
    embeddings: bool = False
    """Whether embeddings and the head are packed too (MLX)."""
    experts_first: bool = False
    """Whether it packs the experts alone in a model that has some (gpt-oss)."""


def up(n: int, by: int) -> int:
    """n / by, rounded up."""
    return -(-n // by)


def _gptq(i: int, o: int) -> Mapping[str, int]:
    groups = up(i, 128)
    return {
        "qweight": up(4 * i, 32) * o * 4,
        "qzeros": groups * up(4 * o, 32) * 4,
        "scales": groups * o * 2,
        "g_idx": i * 4,
    }


def _awq(i: int, o: int) -> Mapping[str, int]:
    groups, words = up(i, 128), up(4 * o, 32)
    return {"qweight": i * words * 4, "qzeros": groups * words * 4, "scales": groups * o * 2}


def _nf4(i: int, o: int) -> Mapping[str, int]:
    return {"weight": up(i * o, 2), "absmax": 4 * up(i * o, 64), "quant_map": 64}


def _nf4_double(i: int, o: int) -> Mapping[str, int]:
    blocks = up(i * o, 64)
    nested = 4 * up(blocks, 256)
    return {
        "weight": up(i * o, 2),
        "absmax": blocks,
        "nested_absmax": nested,
        "quant_map": 64,
        "nested_quant_map": 1024,
    }


def _micro(bits: int) -> Pieces:
    return lambda i, o: {"weight": up(i * o * bits, 8), "scale": o * up(i, 32)}


def _grouped(bits: int, group: int, per_group: int, extra: int = 0) -> Pieces:
    return lambda i, o: {
        "weight": up(i * o * bits, 8),
        "scales": o * up(i, group) * per_group + extra,
    }


SCHEMES: Mapping[str, Scheme] = {
    "gptq": Scheme(_gptq, "4 + 20/128 + 32/out: codes, scales and zeros per 128, g_idx"),
    "awq": Scheme(_awq, "4 + 20/128: codes, scales and zeros per 128"),
    "nf4": Scheme(
        _nf4, "4 + 32/64: codes, float32 absmax per 64 (bitsandbytes; its JSON state apart)"
    ),
    "nf4_double": Scheme(_nf4_double, "4 + 8/64 + 32/(64·256): absmax itself in 8 bits"),
    "llm_int8": Scheme(
        lambda i, o: {"weight": i * o, "SCB": 4 * o}, "8 + 32/in: float32 scale per output"
    ),
    "w8a8": Scheme(
        lambda i, o: {"weight": i * o, "scale": 2 * o}, "8 + 16/in: int8, bf16 scale per output"
    ),
    "w4a16": Scheme(
        _grouped(4, 128, 2, 16), "4 + 16/128: codes and bf16 scales per 128 (compressed-tensors)"
    ),
    "fp8": Scheme(
        lambda i, o: {"weight": i * o, "scale": 2 * o}, "8 + 16/in: e4m3fn, bf16 scale per output"
    ),
    "fp8_block": Scheme(
        lambda i, o: {"weight": i * o, "weight_scale_inv": 4 * up(i, 128) * up(o, 128)},
        "8 + 32/128²: e4m3fn, float32 scale per 128 x 128 (DeepSeek)",
    ),
    "mxfp8": Scheme(_micro(8), "8 + 8/32: e8m0 scale per 32"),
    "mxfp6": Scheme(_micro(6), "6 + 8/32: e8m0 scale per 32"),
    "mxfp4": Scheme(
        _micro(4),
        "4 + 8/32: e8m0 scale per 32; of a model with experts those alone",
        experts_first=True,
    ),
    "nvfp4": Scheme(_grouped(4, 16, 1, 4), "4 + 8/16: e4m3 scale per 16, one float32 per tensor"),
    "hqq4": Scheme(_grouped(4, 64, 4), "4 + 32/64: 16-bit scale and zero per 64"),
    "mlx4": Scheme(
        _grouped(4, 64, 4), "4 + 32/64: 16-bit scale and bias per 64; embeddings and head too", True
    ),
    "mlx8": Scheme(
        _grouped(8, 64, 4), "8 + 32/64: 16-bit scale and bias per 64; embeddings and head too", True
    ),
}
"""Scheme to what it stores, group and block sizes the writers' defaults."""


def tensors(anatomy: Anatomy, name: str, wide: str = "bfloat16") -> list[Typed]:
    """Every tensor of the text model as a scheme, a GGUF file type or one dtype stores it.

    A matrix of a quantised layer has its scheme as format, everything else ``wide``. An unknown name is an InputError.
    """
    key = name.lower().replace("-", "_")
    found = find_dtype(key)
    if key in SCHEMES:
        own = _own(anatomy)
        alone = SCHEMES[key].experts_first and any(w.experts > 1 for w in own)
        return [t for w in own for t in _packed(w, key, wide, alone)]
    if (
        found is not None and found.block <= 4
    ):  # the floats of 4 and 6 bits are packed, without scales
        return [_plain(w, layer, found.name) for w in _own(anatomy) for layer in w.layers.indices]
    if name.upper() in BASES:
        return mix(anatomy, name)
    if found is not None:
        raise InputError(
            f"{found.name} is a format of tensors; no file has one alone",
            hint=f"schemes: {', '.join(SCHEMES)}; GGUF file types: {', '.join(BASES)}",
        )
    dtype(name)
    raise InputError(f"no format of models is called {name!r}")


def _own(anatomy: Anatomy) -> list[Weight]:
    return [w for w in anatomy.weights if not w.tied_to and in_text(w)]


def _elements(w: Weight) -> int:
    return int(product(list(w.shape))) * int(w.experts) if w.shape else int(w.experts)


def _plain(w: Weight, layer: int, form: str) -> Typed:
    return Typed(w, w.role, layer, form, _elements(w), dtype(form).bytes_for(_elements(w)))


def _packed(w: Weight, name: str, wide: str, experts_alone: bool) -> list[Typed]:
    scheme = SCHEMES[name]
    inside = quantisable(w) or (
        scheme.embeddings and w.role in ("embed.token", "head") and len(w.shape) >= 2
    )
    if not inside or (experts_alone and w.experts == 1):
        return [_plain(w, layer, wide) for layer in w.layers.indices]
    sizes = [int(n) for n in w.shape]
    i, o = (sizes[-2], sizes[-1]) if w.transposed else (sizes[-1], sizes[-2])
    matrices = _elements(w) // (i * o) if i * o else 0
    n_bytes = matrices * sum(scheme.pieces(i, o).values())
    return [Typed(w, w.role, layer, name, _elements(w), n_bytes) for layer in w.layers.indices]


def by_role(found: list[Typed]) -> dict[str, tuple[int, int]]:
    """Bytes and elements of every role of the model's own weights, whatever pieces a file has them in."""
    sums: dict[str, tuple[int, int]] = {}
    for t in found:
        n_bytes, elements = sums.get(t.weight.role, (0, 0))
        sums[t.weight.role] = (n_bytes + t.n_bytes, elements + t.elements)
    return sums
