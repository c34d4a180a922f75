"""How writers lay a packed matrix out: endings of names to shapes and dtypes, of ``o`` outputs and
``i`` inputs.

Every rule was read off files that the writers themselves made (tests/formats/quantised_files.json
has them): compressed-tensors 0.10 and 0.19, ModelOpt 0.47, GPTQModel 7.7, AutoAWQ 0.2.9, auto-round
0.16, bitsandbytes 0.50, HQQ 0.2.8, torchao 0.18, quanto 0.2.7, mlx-lm 0.32, transformers 5.24;
EXL3 off exllamav3 1.6.5's source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from llmcalc.dims import Dim, ceil_div, dim, product
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


Pieces = Mapping[str, Piece]
"""The pieces of one matrix under the endings of their names."""

Layout = Callable[[Dim, Dim], Pieces]
"""Inputs and outputs to the tensors that stand for the matrix."""

CHANNEL, TENSOR = -1, 0
"""Groups that are no number of inputs: one for each output, one for all."""


def piece(kind: str, *shape: int) -> Piece:
    """A tensor of that dtype."""
    return Piece(shape=tuple(dim(n) for n in shape), dtype=kind)


def groups(i: Dim, group: int) -> Dim:
    """How many groups lie along the inputs; the last may be short."""
    return Dim(1) if group <= 0 else ceil_div(i, group)


def words(n: Dim, bits: int, width: int = 32) -> Dim:
    """Words that hold so many codes, packed densely."""
    return ceil_div(n * bits, width)


def gptq(i: Dim, o: Dim, *, bits: int, group: int, order: bool = True) -> Pieces:
    """GPTQ, both versions; ``order``: the group of every input is written too."""
    found = {
        "qweight": piece("int32", words(i, bits), o),
        "qzeros": piece("int32", groups(i, group), words(o, bits)),
        "scales": piece("float16", groups(i, group), o),
    }
    return found | ({"g_idx": piece("int32", i)} if order else {})


def awq(i: Dim, o: Dim, *, bits: int, group: int, scales: str = "float16") -> Pieces:
    """AWQ's GEMM layout."""
    return {
        "qweight": piece("int32", i, words(o, bits)),
        "qzeros": piece("int32", groups(i, group), words(o, bits)),
        "scales": piece(scales, groups(i, group), o),
    }


def _awq_words(i: Dim, group: int) -> Dim:
    """Words of zeros that GEMV pads to whole loads of a warp."""
    each = 1 if group >= 128 else 2 if group == 64 else 4
    return ceil_div(ceil_div(i // group, 8), each) * each


def awq_gemv(i: Dim, o: Dim, *, group: int) -> Pieces:
    """AWQ's GEMV layout: zeros and scales padded."""
    padded = _awq_words(i, group)
    return {
        "qweight": piece("int32", o, ceil_div(i, 8)),
        "qzeros": piece("int32", o, padded),
        "scales": piece("float16", o, 8 * padded),
    }


def awq_gemv_fast(i: Dim, o: Dim, *, group: int) -> Pieces:
    """AWQ's fast GEMV layout."""
    padded = 8 * _awq_words(i, group)
    return {
        "qweight": piece("int16", ceil_div(o, 4), i),
        "qzeros": piece("float16", padded, o),
        "scales": piece("float16", padded, o),
    }


def marlin(i: Dim, o: Dim, *, group: int) -> Pieces:
    """Marlin's tiles, without zeros."""
    return {
        "qweight": piece("int32", ceil_div(i, 16), 2 * o),
        "scales": piece("float16", groups(i, group), o),
    }


def qqq(i: Dim, o: Dim, *, group: int) -> Pieces:
    """QQQ (GPTQModel)."""
    return {
        "B": piece("int32", ceil_div(i, 16), 2 * o),
        "s_channel": piece("float32", 1, o),
        "s_group": piece("float16", groups(i, group), o),
    }


def _scale(i: Dim, o: Dim, group: int, kind: str) -> Piece:
    """Scales of compressed-tensors: one for all, for each output, or for each group."""
    return piece(kind, 1) if group == TENSOR else piece(kind, o, groups(i, group))


def packed_integers(
    i: Dim, o: Dim, *, bits: int, group: int, zeros: bool, order: bool, wide: str
) -> Pieces:
    """compressed-tensors' pack-quantized."""
    found = {
        "weight_packed": piece("int32", o, words(i, bits)),
        "weight_scale": _scale(i, o, group, wide),
        "weight_shape": piece("int64", 2),
    }
    if zeros:
        found["weight_zero_point"] = piece("int32", words(o, bits), groups(i, group))
    return found | ({"weight_g_idx": piece("int32", i)} if order else {})


def scaled(
    i: Dim,
    o: Dim,
    *,
    kind: str,
    group: int,
    wide: str,
    block: tuple[int, int] | None = None,
    more: tuple[tuple[str, str], ...] = (),
) -> Pieces:
    """One byte for each weight beside its scales; ``more`` are scalars: ending and dtype."""
    rows, columns = block or (1, 1)
    scale = _scale(i, o, group, wide)
    if block is not None:
        scale = piece(wide, ceil_div(o, rows), ceil_div(i, columns))
    found = {"weight": piece(kind, o, i), "weight_scale": scale}
    for ending, dtype_of in more:
        shape = (o, 1) if ending == "weight_zero_point" else (1,)
        found[ending] = piece(dtype_of, *shape)
    return found


def fp8_by_output(i: Dim, o: Dim, *, wide: str, more: tuple[tuple[str, str], ...]) -> Pieces:
    """FP8 with a vector of scales, as auto-round's own format has it."""
    found = scaled(i, o, kind="float8_e4m3fn", group=CHANNEL, wide=wide, more=more)
    return {**found, "weight_scale": piece(wide, o)}


def nvfp4(i: Dim, o: Dim, *, inputs: bool) -> Pieces:
    """NVFP4 as compressed-tensors writes it; ``inputs``: activations are quantised too."""
    found = {
        "weight_packed": piece("uint8", o, ceil_div(i, 2)),
        "weight_scale": piece("float8_e4m3fn", o, ceil_div(i, 16)),
        "weight_global_scale": piece("float32", 1),
    }
    return found | ({"input_global_scale": piece("float32", 1)} if inputs else {})


def mxfp4(i: Dim, o: Dim) -> Pieces:
    """MXFP4 as compressed-tensors writes it."""
    return {
        "weight_packed": piece("uint8", o, ceil_div(i, 2)),
        "weight_scale": piece("uint8", o, ceil_div(i, 32)),
    }


def mxfp8(i: Dim, o: Dim) -> Pieces:
    """MXFP8: e4m3 with a power of two for each 32."""
    return {
        "weight": piece("float8_e4m3fn", o, i),
        "weight_scale": piece("uint8", o, ceil_div(i, 32)),
    }


def sparse_24(i: Dim, o: Dim, *, kind: str, scales: Pieces) -> Pieces:
    """Two of four weights kept, with a bit for each."""
    kept = {
        "compressed": piece(kind, o, ceil_div(i, 2)),
        "bitmask": piece("uint8", o, ceil_div(i, 8)),
        "shape": piece("int64", 2, 1),
    }
    return kept | {k: v for k, v in scales.items() if k != "weight"}


def marlin_24(i: Dim, o: Dim, *, group: int) -> Pieces:
    """Two of four weights kept, in Marlin's tiles."""
    return {
        "weight_packed": piece("int32", ceil_div(i, 32), 2 * o),
        "meta": piece("int16", ceil_div(i, 32), 2 * o),
        "scale_packed": piece("float16", groups(i, group), o),
    }


def _scalars(*endings: str) -> Pieces:
    return {ending: piece("float32") for ending in endings}


def modelopt_fp8(i: Dim, o: Dim) -> Pieces:
    """ModelOpt's FP8: scales are scalars."""
    return {"weight": piece("float8_e4m3fn", o, i), **_scalars("weight_scale", "input_scale")}


def modelopt_nvfp4(i: Dim, o: Dim, *, group: int = 16, inputs: bool = True) -> Pieces:
    """ModelOpt's NVFP4: the packed tensor keeps the name of the weight."""
    return {
        "weight": piece("uint8", o, ceil_div(i, 2)),
        "weight_scale": piece("float8_e4m3fn", o, ceil_div(i, group)),
        **_scalars("weight_scale_2", *(("input_scale",) if inputs else ())),
    }


def modelopt_mxfp4(i: Dim, o: Dim) -> Pieces:
    """ModelOpt's MXFP4."""
    return {
        "weight": piece("uint8", o, ceil_div(i, 2)),
        "weight_scale": piece("uint8", o, ceil_div(i, 32)),
    }


def modelopt_awq(
    i: Dim, o: Dim, *, group: int = 128, wide: str, smoothed: bool, w4a8: bool = False
) -> Pieces:
    """ModelOpt's 4-bit integers: packed along the outputs."""
    found = {
        "weight": piece("uint8", ceil_div(o, 2), i),
        "weight_scale": piece("float32", o, ceil_div(i, group)),
    }
    if smoothed:
        found["pre_quant_scale"] = piece(wide, i)
    return {**found, **(_scalars("weight_scale_2", "input_scale") if w4a8 else {})}


def modelopt_rows(
    i: Dim, o: Dim, *, kind: str, wide: str = "", inputs: bool = False, smoothed: bool = False
) -> Pieces:
    """ModelOpt's one byte for each weight with a scale for each output."""
    found = {"weight": piece(kind, o, i), "weight_scale": piece("float32", o)}
    if smoothed:
        found["pre_quant_scale"] = piece(wide, i)
    return {**found, **(_scalars("input_scale") if inputs else {})}


def modelopt_fp8_block(i: Dim, o: Dim, *, block: int = 128) -> Pieces:
    """ModelOpt's FP8 by square blocks, whose scales have four axes."""
    scale = piece("float32", ceil_div(o, block), 1, ceil_div(i, block), 1)
    return {"weight": piece("float8_e4m3fn", o, i), "weight_scale": scale}


def fp8_block(
    i: Dim,
    o: Dim,
    *,
    block: tuple[int, int] | None,
    scale: str = "float32",
    static: bool = False,
    left: str = "",
) -> Pieces:
    """FP8 as DeepSeek and transformers write it; without blocks one scale for all.

    transformers 5 leaves a matrix that the block does not divide as it is (``left``), and writes
    its scales all the same.
    """
    rows, columns = block or (0, 0)
    shape = (ceil_div(o, rows), ceil_div(i, columns)) if block else (1, 1)
    odd = left and block and (int(o) % rows or int(i) % columns)
    kind = left if odd else "float8_e4m3fn"
    found = {"weight": piece(kind, o, i), "weight_scale_inv": piece(scale, *shape)}
    return {**found, **(_scalars("activation_scale") if static else {})}


def fp8_rows(i: Dim, o: Dim) -> Pieces:
    """GPTQModel's FP8 with a scale for each output."""
    return {"weight": piece("float8_e4m3fn", o, i), "weight_scale_inv": piece("float32", o)}


def bits4(i: Dim, o: Dim, *, kind: str, double: bool, storage: str) -> Pieces:
    """bitsandbytes' NF4 and FP4, blocks of 64 over the whole matrix; its state in JSON apart."""
    blocks = ceil_div(i * o, 64)
    each = 2 * {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}.get(storage, 1)
    found = {
        "weight": piece(storage, ceil_div(i * o, each), 1),
        "weight.absmax": piece("uint8" if double else "float32", blocks),
        "weight.quant_map": piece("float32", 16),
    }
    if double:
        found["weight.nested_absmax"] = piece("float32", ceil_div(blocks, 256))
        found["weight.nested_quant_map"] = piece("float32", 256)
    return found


def bits8(i: Dim, o: Dim) -> Pieces:
    """bitsandbytes' LLM.int8()."""
    return {
        "weight": piece("int8", o, i),
        "SCB": piece("float32", o),
        "weight_format": piece("uint8"),
    }


_HQQ_SCALARS = ("axis", "nbits", "group_size")
_HQQ_FLAGS = (
    *("channel_wise", "encoded_state_dict", "offload_meta", "optimize", "quant_scale"),
    *("quant_zero", "round_zero", "stores_quant_config", "view_as_float"),
)


def hqq(i: Dim, o: Dim, *, bits: int, group: int | None, axis: int, wide: str) -> Pieces:
    """HQQ: codes in rows of a group, 3 bits in words of ten; its settings as small tensors."""
    width = group or int(i)
    rows = ceil_div(i * o, width)
    if bits == 3:
        codes = piece("int32", ceil_div(rows, 10), width)
    elif axis == 1:
        codes = piece("uint8", ceil_div(rows * bits, 8), width)
    else:
        codes = piece("uint8", ceil_div(width * bits, 8), rows)
    each = (rows, 1) if axis == 1 else (1, rows)
    found = {"W_q": codes, "scale": piece(wide, *each), "zero": piece(wide, *each)}
    found |= {name: piece("int32") for name in _HQQ_SCALARS}
    found |= {name: piece("uint8") for name in _HQQ_FLAGS}
    # names of types, as bytes
    packing = len("4bit_u8") if bits != 3 else len("3bit_32")
    view = len("torch.uint8") if bits != 3 else len("torch.int32")
    return {
        **found,
        "packing": piece("uint8", packing),
        "compute_dtype": piece("uint8", len(f"torch.{wide}")),
        "unpack_view_dtype": piece("uint8", view),
        "shape": piece("int64", 2),
    }


def torchao(i: Dim, o: Dim, *, kind: str, group: int, wide: str, zeros: bool) -> Pieces:
    """torchao's tensors, whose names begin with the weight's own."""
    scale = "float32" if group == CHANNEL else wide
    found = {
        "._weight_qdata": piece(kind, o, i),
        "._weight_scale": piece(scale, o, groups(i, group)),
    }
    return found | ({"._weight_zero_point": piece("int8", o, groups(i, group))} if zeros else {})


def quanto(i: Dim, o: Dim, *, kind: str, wide: str) -> Pieces:
    """quanto: bytes by row, fewer bits in rows of a group of 128, or less where 128 does not
    divide.
    """
    around = {"input_scale": piece(wide), "output_scale": piece(wide)}
    if kind in ("int8", "float8_e4m3fn"):
        return {"weight._data": piece(kind, o, i), "weight._scale": piece(wide, o, 1), **around}
    bits, group = int(kind.removeprefix("int")), 128
    while int(i) % group and group > 32:
        group -= 32
    rows = (i * o) // group
    return {
        "weight._data._data": piece("uint8", (rows * bits) // 8, group),
        "weight._scale": piece(wide, rows, 1),
        "weight._shift": piece(wide, rows, 1),
        **around,
    }


def mlx(i: Dim, o: Dim, *, bits: int, group: int, mode: str, wide: str) -> Pieces:
    """MLX: codes in words; affine groups have a scale and a bias, the others a byte."""
    found = {"weight": piece("uint32", o, words(i, bits))}
    if mode != "affine":
        return {**found, "scales": piece("uint8", o, ceil_div(i, group))}
    each = piece(wide, o, ceil_div(i, group))
    return {**found, "scales": each, "biases": each}


def bitnet(i: Dim, o: Dim, *, wide: str) -> Pieces:
    """BitNet in transformers: four weights in a byte, along the outputs."""
    return {"weight": piece("uint8", ceil_div(o, 4), i), "weight_scale": piece(wide, 1)}


def exl3(i: Dim, o: Dim, *, bits: float, codebook: str) -> Pieces:
    """EXL3: a trellis over tiles of 16 x 16, padded to multiples of 128."""
    inputs, outputs = ceil_div(i, 128) * 128, ceil_div(o, 128) * 128
    found = {
        "trellis": piece("int16", inputs // 16, outputs // 16, round(16 * bits)),
        "suh": piece("float16", inputs),
        "svh": piece("float16", outputs),
    }
    return found | ({codebook: piece("int32")} if codebook in ("mul1", "mcg") else {})


def gpt_oss(i: Dim, o: Dim) -> Pieces:
    """gpt-oss's MXFP4 of stacked experts."""
    blocks = ceil_div(i, 32)
    return {"_blocks": piece("uint8", o, blocks, 16), "_scales": piece("uint8", o, blocks)}


def of(function: Callable[..., Pieces], **settings: object) -> Layout:
    """A layout with its settings filled in."""
    return partial(function, **settings)
