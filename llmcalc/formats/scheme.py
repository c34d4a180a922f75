"""Schemes that pack matrices: which weights, into which pieces, each with its name, shape and
dtype.

Sources: the writers themselves (GPTQModel, AutoAWQ, bitsandbytes 0.50, compressed-tensors 0.20, HQQ
0.2.8, MLX, gpt-oss' and DeepSeek's checkpoints) and their file layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import Dim, ceil_div, dim, total
from llmcalc.formats import layouts
from llmcalc.formats.layouts import CHANNEL, Pieces, piece


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
    and not counted.
    """

    name: str
    pieces: Callable[[Dim, Dim, Packing], Pieces]
    formula: str
    packing: Packing = Packing()
    aliases: tuple[str, ...] = ()
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
    if ending.startswith(("_", ".")):
        return stem + ending
    if stem == name and ending.startswith("weight"):  # a parameter that is no module's weight
        return name + ending.removeprefix("weight")
    return f"{stem}.{ending}"


def _group(p: Packing) -> int:
    return CHANNEL if p.group is None else p.group


def _mxfp6(i: Dim, o: Dim, p: Packing) -> Pieces:
    return {
        "weight_packed": piece("uint8", o, ceil_div(i * 6, 8)),
        "weight_scale": piece("uint8", o, ceil_div(i, 32)),
    }


def _hqq(i: Dim, o: Dim, p: Packing) -> Pieces:
    """HQQ's numbers alone, as engines hold them; its file has small settings beside them."""
    whole = layouts.hqq(i, o, bits=p.bits, group=p.group, axis=1, wide="float16")
    return {name: whole[name] for name in ("W_q", "scale", "zero")}


def _nf4(i: Dim, o: Dim, p: Packing) -> Pieces:
    return layouts.bits4(i, o, kind="nf4", double=False, storage="uint8")


def _nf4_double(i: Dim, o: Dim, p: Packing) -> Pieces:
    return layouts.bits4(i, o, kind="nf4", double=True, storage="uint8")


def _rows(kind: str) -> Callable[[Dim, Dim, Packing], Pieces]:
    return lambda i, o, p: layouts.scaled(i, o, kind=kind, group=CHANNEL, wide="bfloat16")


def _w4a16(i: Dim, o: Dim, p: Packing) -> Pieces:
    return layouts.packed_integers(
        i, o, bits=p.bits, group=_group(p), zeros=False, order=False, wide="bfloat16"
    )


def _mlx(i: Dim, o: Dim, p: Packing) -> Pieces:
    return layouts.mlx(i, o, bits=p.bits, group=_group(p), mode="affine", wide="bfloat16")


def _llm_int8(i: Dim, o: Dim, p: Packing) -> Pieces:
    """LLM.int8() without the byte that says how rows lie."""
    return {k: v for k, v in layouts.bits8(i, o).items() if k != "weight_format"}


_BNB_BESIDE = (
    *("weight.nested_absmax", "weight.nested_quant_map"),
    *("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
)
_ALL = (
    Scheme(
        name="gptq",
        pieces=lambda i, o, p: layouts.gptq(i, o, bits=p.bits, group=_group(p)),
        formula="4 + 20/128 + 32/out: codes, scales and zeros per 128, g_idx",
    ),
    Scheme(
        name="awq",
        pieces=lambda i, o, p: layouts.awq(i, o, bits=p.bits, group=_group(p)),
        formula="4 + 20/128: codes, scales and zeros per 128",
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
        pieces=_rows("int8"),
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
        pieces=_rows("float8_e4m3fn"),
        formula="8 + 16/in: e4m3fn, bf16 scale per output",
        beside=("weight_scale", "weight_scale_inv", "input_scale"),
    ),
    Scheme(
        name="fp8_block",
        pieces=lambda i, o, p: layouts.fp8_block(i, o, block=p.block),
        formula="8 + 32/128²: e4m3fn, float32 scale per 128 x 128 (DeepSeek)",
        beside=("input_scale",),
    ),
    Scheme(
        name="mxfp8",
        pieces=lambda i, o, p: layouts.mxfp8(i, o),
        formula="8 + 8/32: e8m0 scale per 32",
    ),
    Scheme(name="mxfp6", pieces=_mxfp6, formula="6 + 8/32: e8m0 scale per 32"),
    Scheme(
        name="mxfp4",
        pieces=lambda i, o, p: layouts.gpt_oss(i, o),
        formula="4 + 8/32: e8m0 scale per 32; of a model with experts those alone",
        experts_first=True,
    ),
    Scheme(
        name="nvfp4",
        pieces=lambda i, o, p: layouts.nvfp4(i, o, inputs=False),
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
