"""Quantised weights turned back into numbers, by how they lie in a file.

GPTQ and AWQ pack eight 4-bit numbers into an int32 beside a scale and a zero per group; fp8
checkpoints keep one scale per tensor or per 128 x 128 block; gpt-oss's experts are MXFP4 (OCP MX
1.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llmcalc.errors import InputError, UnavailableError
from llmcalc.live.files import Files

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs lies in each place of an int32, lowest bits first (AutoAWQ)."""
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""e2m1: what each code of four bits stands for."""


def unpack(files: Files, name: str, settings: Mapping[str, Any]) -> Tensor | None:
    """The weight of that name from the tensors that stand for it; None if it is not packed.

    float32 and (out, in). ``settings`` is the config's ``quantization_config``.
    """
    base = name.removesuffix(".weight")
    if f"{base}.qweight" in files:
        awq = str(settings.get("quant_method", "")).lower() == "awq"
        return _awq(files, base, settings) if awq else _gptq(files, base, settings)
    if f"{name}_blocks" in files:
        return mxfp4(files.tensor(f"{name}_blocks"), files.tensor(f"{name}_scales"))
    if name in files and files.header.tensors[name].dtype.startswith("float8"):
        weight = files.tensor(name).float()  # (out, in)
        for scale in (f"{name}_scale_inv", f"{name}_scale"):
            if scale in files:
                return _scaled(weight, files.tensor(scale).float(), settings)
        return weight
    if f"{name}.absmax" in files:
        return _bitsandbytes(files, name)
    if f"{base}.SCB" in files:
        # LLM.int8: the largest magnitude of every row, which 127 stands for
        most = files.tensor(f"{base}.SCB").float()  # (out)
        return files.tensor(name).float() * (most / 127).unsqueeze(-1)
    return None


def _bitsandbytes(files: Files, name: str) -> Tensor:
    """NF4 or FP4 (QLoRA, arXiv 2305.14314): two codes per byte, one scale per block.

    The first code is in the high half. The state beside it is JSON in bytes: block size, shape,
    and the offset of scales that are quantised once more.
    """
    keys = [f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
    key = next((key for key in keys if key in files), "")
    try:
        state = json.loads(bytes(files.tensor(key).tolist()))
        block = int(state["blocksize"])
        shape = [int(s) for s in state["shape"]]
    except (KeyError, ValueError, TypeError):
        raise InputError(f"{name} has no readable bitsandbytes state beside it") from None
    packed = files.tensor(name).flatten()  # (elements/2)
    codes = torch.stack((packed >> 4, packed & 15), -1).flatten()  # (elements)
    scales = files.tensor(f"{name}.absmax")  # (blocks)
    if f"{name}.nested_absmax" in files:
        outer = files.tensor(f"{name}.nested_absmax").float()
        inner = outer.repeat_interleave(int(state["nested_blocksize"]))[: scales.numel()]
        table = files.tensor(f"{name}.nested_quant_map").float()  # (256)
        scales = table[scales.long()] * inner + float(state["nested_offset"])
    levels = files.tensor(f"{name}.quant_map").float()  # (16)
    numbers = levels[codes.long()]
    each = scales.float().repeat_interleave(block)[: numbers.numel()]  # (elements)
    return (numbers * each).view(shape)


def _bits(settings: Mapping[str, Any]) -> int:
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits not in (2, 4, 8):
        raise UnavailableError(
            f"weights packed in {bits} bits are not read back", hint="2, 4 and 8 bits are"
        )
    return int(bits)


def _nibbles(packed: Tensor, bits: int) -> Tensor:
    """Every number of each int32, lowest bits first, as a new last axis of 32/bits."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    found: Tensor = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return found


def _gptq(files: Files, base: str, settings: Mapping[str, Any]) -> Tensor:
    """(out, in) of numbers that are packed along the inputs, by AutoGPTQ and GPTQModel."""
    bits = _bits(settings)
    scales = files.tensor(f"{base}.scales").float()  # (groups, out)
    numbers = _nibbles(files.tensor(f"{base}.qweight"), bits)  # (in·bits/32, out, 32/bits)
    numbers = numbers.permute(0, 2, 1).flatten(0, 1)  # (in, out)
    zeros = _nibbles(files.tensor(f"{base}.qzeros"), bits).flatten(1)
    zeros = zeros[:, : scales.shape[1]]  # (groups, out)
    if settings.get("checkpoint_format", "gptq") == "gptq":
        # the first format stores zeros less one; gptq_v2 stores them as they are
        zeros = (zeros + 1) & (2**bits - 1)
    if f"{base}.g_idx" in files:
        group = files.tensor(f"{base}.g_idx").long()  # (in)
    else:
        group = _groups(len(numbers), len(scales))
    return ((numbers - zeros[group]).float() * scales[group]).t()


def _awq(files: Files, base: str, settings: Mapping[str, Any]) -> Tensor:
    """(out, in) of numbers that are packed along the outputs, eight of them out of order."""
    bits = _bits(settings)
    if bits != 4:
        raise UnavailableError(f"AWQ weights in {bits} bits are not read back", hint="4 bits are")
    scales = files.tensor(f"{base}.scales").float()  # (groups, out)
    order = torch.tensor(_AWQ_ORDER).argsort()
    numbers = _nibbles(files.tensor(f"{base}.qweight"), bits)  # (in, out/8, 8)
    numbers = numbers[..., order].flatten(1)  # (in, out)
    zeros = _nibbles(files.tensor(f"{base}.qzeros"), bits)[..., order].flatten(1)  # (groups, out)
    group = _groups(len(numbers), len(scales))
    out = scales.shape[1]
    return ((numbers[:, :out] - zeros[group, :out]).float() * scales[group]).t()


def _groups(inputs: int, n_groups: int) -> Tensor:
    """The group of every input, (in), where groups are of one size and in order."""
    size = -(-inputs // n_groups)
    return torch.arange(inputs) // size


def _scaled(weight: Tensor, scale: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """An fp8 weight (out, in) times its scale: one number, one per row, or one per block."""
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if scale.ndim == 1 or (scale.ndim == weight.ndim and scale.shape[-1] == 1):
        return weight * scale.reshape(-1, 1)
    rows, columns = settings.get("weight_block_size") or [128, 128]
    tall = scale.repeat_interleave(int(rows), -2)
    wide = tall.repeat_interleave(int(columns), -1)  # at least (out, in)
    return weight * wide[..., : weight.shape[-2], : weight.shape[-1]]


def mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Blocks of 32 four-bit floats with a power of two each, (..., blocks · 32).

    ``blocks`` is (..., blocks, 16) bytes, ``scales`` (..., blocks) exponents.
    """
    table = torch.tensor(_FP4)
    pairs = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)  # (..., blocks, 32)
    # exponents are e8m0, whose bias is 127: OCP MX 1.0
    powers = torch.exp2(scales.float() - 127).unsqueeze(-1)  # (..., blocks, 1)
    numbers = table[pairs.long()] * powers
    return numbers.flatten(-2)
