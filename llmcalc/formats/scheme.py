"""Schemes that pack matrices: which weights, into which pieces, each with its name, shape and
dtype.

Sources: the writers themselves (GPTQModel, AutoAWQ, bitsandbytes 0.50, compressed-tensors 0.20, HQQ
0.2.8, MLX, gpt-oss' and DeepSeek's checkpoints) and their file layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import Dim, ceil_div, dim, product, total
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One tensor that stands for a part of a packed matrix."""

    shape: tuple[Dim, ...]
    dtype: str

    @property
    def n_bytes(self) -> Dim:
        """Its bytes in a file."""
        kind = dtype(self.dtype)
        return product(self.shape) * kind.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What a scheme leaves open: bits of a code, codes along the inputs that share a scale.

    ``group`` is None where all inputs of an output share one; ``block`` is the square that shares a
    scale in fp8 by block.
    """

    bits: int = 4
    group: int | None = 128
    block: tuple[int, int] = (128, 128)

    def groups(self, inputs: int) -> Dim:
        """How many groups lie along the inputs."""
        return Dim(1) if self.group is None else ceil_div(inputs, self.group)


Pieces = Mapping[str, Piece]
"""The pieces of one matrix under the endings of their names."""

_WIDE = ("router", "norm", "embed", "head", "projector", "vision", "audio")
"""How the roles begin that quantisers leave alone."""


def quantisable(weight: Weight) -> bool:
    """Whether quantisers touch a weight: matrices inside the layers, and not the router's."""
    return weight.in_stack and weight.is_matrix and not weight.role.startswith(_WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A way to store matrices.

    ``pieces`` tells what is stored of a matrix with so many inputs and outputs. ``experts_first``:
    of a model that routes, the experts alone are packed; ``embeddings``: the table and the head are
    packed too. ``beside`` are tensors that files may hold and whose size varies: they are known,
    and not counted. ``methods`` are the words for it in a config's ``quant_method``.
    """

    name: str
    pieces: Callable[[Dim, Dim, Packing], Pieces]
    formula: str
    packing: Packing = Packing()
    aliases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    embeddings: bool = False
    experts_first: bool = False
    beside: tuple[str, ...] = ()

    def applies(self, weight: Weight, anatomy: Anatomy) -> bool:
        """Whether the scheme packs this weight of the model; everything else stays wide."""
        if self.embeddings and weight.role in ("embed.token", "head"):
            return len(weight.shape) >= 2
        if self.experts_first and anatomy.n_experts and not weight.routed:
            return False
        return quantisable(weight)

    def n_bytes(self, inputs: int, outputs: int, packing: Packing | None = None) -> Dim:
        """Bytes of one matrix, all pieces.

        >>> int(SCHEMES["gptq"].n_bytes(4096, 4096)) * 8 / 4096**2
        4.1640625
        """
        found = self.pieces(dim(inputs), dim(outputs), packing or self.packing)
        return total(piece.n_bytes for piece in found.values())

    def tensors(self, weight: Weight, name: str, packing: Packing) -> dict[str, tuple[int, ...]]:
        """The names and shapes that stand for one tensor of the weight, as a checkpoint holds them.

        Stacked experts stay stacked: each piece has them as its first axis.
        """
        stack = (int(weight.experts),) if weight.stacked else ()
        pieces = self.pieces(weight.inputs, weight.outputs, packing)
        return {
            full_name(name, ending): (*stack, *(int(n) for n in piece.shape))
            for ending, piece in pieces.items()
        }


def full_name(name: str, ending: str) -> str:
    """The name of a piece of the tensor called ``name``.

    >>> full_name("mlp.up_proj.weight", "qweight"), full_name("experts.down_proj", "_blocks")
    ('mlp.up_proj.qweight', 'experts.down_proj_blocks')
    """
    stem = name.removesuffix(".weight")
    if ending.startswith("_"):
        return stem + ending
    if stem == name and ending.startswith("weight"):  # a parameter that is no module's weight
        return name + ending.removeprefix("weight")
    return f"{stem}.{ending}"


def _piece(kind: str, *shape: int) -> Piece:
    return Piece(shape=tuple(dim(n) for n in shape), dtype=kind)


def _words(codes: Dim, bits: int) -> Dim:
    """32-bit words that hold so many codes."""
    return ceil_div(codes * bits, 32)


def _gptq(i: Dim, o: Dim, p: Packing) -> Pieces:
    """Codes packed along the inputs, zeros along the outputs, the group of every input."""
    groups = p.groups(i)
    return {
        "qweight": _piece("int32", _words(i, p.bits), o),
        "qzeros": _piece("int32", groups, _words(o, p.bits)),
        "scales": _piece("float16", groups, o),
        "g_idx": _piece("int32", i),
    }


def _awq(i: Dim, o: Dim, p: Packing) -> Pieces:
    """Codes and zeros packed along the outputs (llm-awq's GEMM layout)."""
    groups = p.groups(i)
    return {
        "qweight": _piece("int32", i, _words(o, p.bits)),
        "qzeros": _piece("int32", groups, _words(o, p.bits)),
        "scales": _piece("float16", groups, o),
    }


def _nf4(i: Dim, o: Dim, p: Packing) -> Pieces:
    """Two codes per byte in one column; blocks of 64 run over the whole matrix."""
    return {
        "weight": _piece("uint8", ceil_div(i * o, 2), 1),
        "weight.absmax": _piece("float32", ceil_div(i * o, 64)),
        "weight.quant_map": _piece("float32", 16),
    }


def _nf4_double(i: Dim, o: Dim, p: Packing) -> Pieces:
    """NF4 whose largest magnitudes are in 8 bits themselves, with a float32 per 256 of them."""
    blocks = ceil_div(i * o, 64)
    return {
        "weight": _piece("uint8", ceil_div(i * o, 2), 1),
        "weight.absmax": _piece("uint8", blocks),
        "weight.nested_absmax": _piece("float32", ceil_div(blocks, 256)),
        "weight.quant_map": _piece("float32", 16),
        "weight.nested_quant_map": _piece("float32", 256),
    }


def _llm_int8(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {"weight": _piece("int8", o, i), "SCB": _piece("float32", o)}


def _w8a8(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {"weight": _piece("int8", o, i), "weight_scale": _piece("bfloat16", o, 1)}


def _w4a16(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {
        "weight_packed": _piece("int32", o, _words(i, p.bits)),
        "weight_scale": _piece("bfloat16", o, p.groups(i)),
        "weight_shape": _piece("int64", 2),
    }


def _fp8(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {"weight": _piece("float8_e4m3fn", o, i), "weight_scale": _piece("bfloat16", o, 1)}


def _fp8_block(i: Dim, o: Dim, p: Packing) -> Pieces:
    rows, columns = p.block
    return {
        "weight": _piece("float8_e4m3fn", o, i),
        "weight_scale_inv": _piece("float32", ceil_div(o, rows), ceil_div(i, columns)),
    }


def _mxfp8(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {
        "weight": _piece("float8_e4m3fn", o, i),
        "weight_scale": _piece("uint8", o, ceil_div(i, 32)),
    }


def _mxfp6(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {
        "weight_packed": _piece("uint8", o, ceil_div(i * 6, 8)),
        "weight_scale": _piece("uint8", o, ceil_div(i, 32)),
    }


def _mxfp4(i: Dim, o: Dim, p: Packing) -> Pieces:
    """gpt-oss: blocks of 32 codes in 16 bytes, one scale byte each, outputs before inputs."""
    blocks = ceil_div(i, 32)
    return {"_blocks": _piece("uint8", o, blocks, 16), "_scales": _piece("uint8", o, blocks)}


def _nvfp4(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {
        "weight_packed": _piece("uint8", o, ceil_div(i, 2)),
        "weight_scale": _piece("float8_e4m3fn", o, ceil_div(i, 16)),
        "weight_global_scale": _piece("float32", 1),
    }


def _hqq(i: Dim, o: Dim, p: Packing) -> Pieces:
    groups = p.groups(i)
    return {
        "W_q": _piece("uint8", ceil_div(i * o * p.bits, 8)),
        "scale": _piece("float16", o, groups),
        "zero": _piece("float16", o, groups),
    }


def _mlx(i: Dim, o: Dim, p: Packing) -> Pieces:
    groups = p.groups(i)
    return {
        "weight": _piece("uint32", o, _words(i, p.bits)),
        "scales": _piece("bfloat16", o, groups),
        "biases": _piece("bfloat16", o, groups),
    }


_BNB_BESIDE = (
    *("weight.nested_absmax", "weight.nested_quant_map"),
    *("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
)
_ALL = (
    Scheme(
        name="gptq",
        pieces=_gptq,
        formula="4 + 20/128 + 32/out: codes, scales and zeros per 128, g_idx",
        methods=("gptq",),
    ),
    Scheme(
        name="awq",
        pieces=_awq,
        formula="4 + 20/128: codes, scales and zeros per 128",
        methods=("awq",),
    ),
    Scheme(
        name="nf4",
        pieces=_nf4,
        formula="4 + 32/64: codes, float32 absmax per 64 (bitsandbytes; its JSON state apart)",
        beside=_BNB_BESIDE,
    ),
    Scheme(
        name="nf4_double",
        pieces=_nf4_double,
        formula="4 + 8/64 + 32/(64·256): absmax itself in 8 bits",
        beside=_BNB_BESIDE,
    ),
    Scheme(
        name="llm_int8",
        pieces=_llm_int8,
        formula="8 + 32/in: float32 scale per output (bitsandbytes)",
    ),
    Scheme(
        name="w8a8",
        pieces=_w8a8,
        formula="8 + 16/in: int8, bf16 scale per output (compressed-tensors)",
        aliases=("int8",),
    ),
    Scheme(
        name="w4a16",
        pieces=_w4a16,
        formula="4 + 16/128: codes and bf16 scales per 128 (compressed-tensors)",
        aliases=("int4",),
    ),
    Scheme(
        name="fp8",
        pieces=_fp8,
        formula="8 + 16/in: e4m3fn, bf16 scale per output",
        methods=("fp8",),
        beside=("weight_scale", "weight_scale_inv", "input_scale"),
    ),
    Scheme(
        name="fp8_block",
        pieces=_fp8_block,
        formula="8 + 32/128²: e4m3fn, float32 scale per 128 x 128 (DeepSeek)",
        beside=("input_scale",),
    ),
    Scheme(name="mxfp8", pieces=_mxfp8, formula="8 + 8/32: e8m0 scale per 32"),
    Scheme(name="mxfp6", pieces=_mxfp6, formula="6 + 8/32: e8m0 scale per 32"),
    Scheme(
        name="mxfp4",
        pieces=_mxfp4,
        formula="4 + 8/32: e8m0 scale per 32; of a model with experts those alone",
        methods=("mxfp4",),
        experts_first=True,
    ),
    Scheme(
        name="nvfp4",
        pieces=_nvfp4,
        formula="4 + 8/16: e4m3 scale per 16, one float32 per tensor",
    ),
    Scheme(
        name="hqq4",
        pieces=_hqq,
        formula="4 + 32/64: 16-bit scale and zero per 64",
        packing=Packing(group=64),
    ),
    Scheme(
        name="mlx4",
        pieces=_mlx,
        formula="4 + 32/64: 16-bit scale and bias per 64; embeddings and head too",
        packing=Packing(group=64),
        embeddings=True,
    ),
    Scheme(
        name="mlx8",
        pieces=_mlx,
        formula="8 + 32/64: 16-bit scale and bias per 64; embeddings and head too",
        packing=Packing(bits=8, group=64),
        embeddings=True,
    ),
)
SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in _ALL}
"""Every scheme, group and block sizes the writers' defaults."""
ALIASES: Mapping[str, str] = {alias: s.name for s in _ALL for alias in s.aliases}


def find_scheme(name: str) -> Scheme | None:
    """The scheme of that name in any spelling, or None.

    >>> find_scheme("INT4").name
    'w4a16'
    """
    key = name.lower().replace("-", "_")
    return SCHEMES.get(ALIASES.get(key, key))


def published(settings: Mapping[str, Any] | None) -> tuple[Scheme, Packing] | None:
    """The scheme that a config's ``quantization_config`` names, with its settings.

    None without one.

    A method whose layout is not described here is an InputError.
    """
    if not settings:
        return None
    found = _published(settings)
    if found is not None:
        return found
    method = str(settings.get("quant_method", "")).lower()
    known = f"name the checkpoint itself, or give --weights: a dtype or {', '.join(SCHEMES)}"
    raise InputError(
        f"which tensors {method or 'this quantisation'} packs, and how, is not known without "
        "the checkpoint",
        hint=known,
    )


def layout(settings: Mapping[str, Any] | None) -> tuple[Scheme, Packing] | None:
    """The same for a checkpoint that is there to be compared: None where the layout is
    not known.
    """
    return _published(settings) if settings else None


def _published(settings: Mapping[str, Any]) -> tuple[Scheme, Packing] | None:
    method = str(settings.get("quant_method", "")).lower()
    if method == "bitsandbytes":
        return _bitsandbytes(settings)
    if method == "modelopt" and settings.get("quant_algo") == "FP8":
        return SCHEMES["fp8"], SCHEMES["fp8"].packing
    if method == "fp8" and settings.get("weight_block_size"):
        scheme = SCHEMES["fp8_block"]
        return scheme, replace(scheme.packing, block=_square(settings["weight_block_size"]))
    for scheme in _ALL:
        if method in scheme.methods:
            return scheme, _grouped(settings, scheme.packing)
    return None


def _bitsandbytes(settings: Mapping[str, Any]) -> tuple[Scheme, Packing]:
    if not settings.get("load_in_4bit"):
        scheme = SCHEMES["llm_int8"]
    elif settings.get("bnb_4bit_use_double_quant"):
        scheme = SCHEMES["nf4_double"]
    else:
        scheme = SCHEMES["nf4"]
    return scheme, scheme.packing


def _grouped(settings: Mapping[str, Any], usual: Packing) -> Packing:
    """Bits and group as AutoGPTQ and AutoAWQ spell them; a group of -1 is the whole row."""
    bits = settings.get("bits", settings.get("w_bit", usual.bits))
    group = settings.get("group_size", settings.get("q_group_size", usual.group))
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise InputError(f"quantization_config: bits is {str(bits)[:40]}")
    if group is not None and not isinstance(group, int):
        raise InputError(f"quantization_config: group_size is {str(group)[:40]}")
    return Packing(bits=bits, group=group if group is not None and group > 0 else None)


def _square(block: Any) -> tuple[int, int]:
    sizes = block if isinstance(block, list | tuple) else ()
    if len(sizes) == 2 and all(isinstance(n, int) and n > 0 for n in sizes):
        return sizes[0], sizes[1]
    raise InputError(f"quantization_config: weight_block_size is {str(block)[:40]}")
