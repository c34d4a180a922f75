"""Quantised weights turned back into numbers, by the rules of how they lie in a file
(``calc.layout``).

GPTQ and AWQ pack eight 4-bit numbers into an int32 beside a scale and a zero per group; fp8
checkpoints keep one scale per tensor or per 128 x 128 block; gpt-oss's experts are MXFP4 (OCP MX
1.0). GGUF's types are the ``gguf`` package's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmcalc.errors import InputError, UnavailableError
from llmcalc.sources.header import Stored

if TYPE_CHECKING:
    from llmcalc.live.files import Files

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpack(files: Files, name: str, settings: Mapping[str, Any]) -> Tensor | None:
    """The weight of that name from the tensors that stand for it, float32 and (out, in), or None if
    it is not packed.

    ``settings`` is the config's ``quantization_config``.
    """
    base = name.removesuffix(".weight")
    if f"{base}.qweight" in files:
        awq = str(settings.get("quant_method", "")).lower() == "awq"
        return _awq(files, base, settings) if awq else _gptq(files, base, settings)
    if f"{name}_blocks" in files:
        return mxfp4(files.tensor(f"{name}_blocks"), files.tensor(f"{name}_scales"))
    if name in files and files.header.tensors[name].dtype.startswith("float8"):
        for ending in ("_scale_inv", "_scale"):
            if f"{name}{ending}" in files:
                return _scaled(
                    files.tensor(name).float(), files.tensor(f"{name}{ending}").float(), settings
                )
        return files.tensor(name).float()
    if f"{name}.absmax" in files:
        return _bitsandbytes(files, name)
    if f"{base}.SCB" in files:
        return files.tensor(name).float() * (files.tensor(f"{base}.SCB").float() / 127).unsqueeze(
            -1
        )
    return None


def _bitsandbytes(files: Files, name: str) -> Tensor:
    """NF4 or FP4 (QLoRA, arXiv 2305.14314): two codes per byte, the first in the high half, one
    scale per block.

    The state beside it is JSON in bytes: block size, shape, and the offset of scales that are
    quantised once more.
    """
    key = next(
        (
            k
            for k in (f"{name}.quant_state.bitsandbytes__{t}" for t in ("nf4", "fp4"))
            if k in files
        ),
        None,
    )
    try:
        state = json.loads(bytes(files.tensor(key or "").tolist()))
        block, shape = int(state["blocksize"]), [int(s) for s in state["shape"]]
    except (KeyError, ValueError, TypeError):
        raise InputError(f"{name} has no readable bitsandbytes state beside it") from None
    packed = files.tensor(name).flatten()
    codes = torch.stack((packed >> 4, packed & 15), -1).flatten()
    scales = files.tensor(f"{name}.absmax")
    if f"{name}.nested_absmax" in files:
        inner = (
            files.tensor(f"{name}.nested_absmax")
            .float()
            .repeat_interleave(int(state["nested_blocksize"]))
        )
        table = files.tensor(f"{name}.nested_quant_map").float()
        scales = table[scales.long()] * inner[: scales.numel()] + float(state["nested_offset"])
    numbers = files.tensor(f"{name}.quant_map").float()[codes.long()]
    return (numbers * scales.float().repeat_interleave(block)[: numbers.numel()]).view(shape)


def _bits(settings: Mapping[str, Any]) -> int:
    bits = settings.get("bits", settings.get("w_bit", 4))
    if bits not in (2, 4, 8):
        raise UnavailableError(
            f"weights packed in {bits} bits are not read back", hint="2, 4 and 8 bits are"
        )
    return int(bits)


def _nibbles(packed: Tensor, bits: int) -> Tensor:
    """Every number of each int32, lowest bits first, as a new last axis."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    found: Tensor = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return found


def _gptq(files: Files, base: str, settings: Mapping[str, Any]) -> Tensor:
    bits = _bits(settings)
    scales = files.tensor(f"{base}.scales").float()
    numbers = _nibbles(files.tensor(f"{base}.qweight"), bits).permute(0, 2, 1).flatten(0, 1)
    zeros = _nibbles(files.tensor(f"{base}.qzeros"), bits).flatten(1)[:, : scales.shape[1]]
    stored_less_one = settings.get("checkpoint_format", "gptq") == "gptq"
    zeros = (zeros + 1) & (2**bits - 1) if stored_less_one else zeros
    inn = numbers.shape[0]
    group = (
        files.tensor(f"{base}.g_idx").long()
        if f"{base}.g_idx" in files
        else _groups(inn, len(scales))
    )
    return ((numbers - zeros[group]).float() * scales[group]).t()


def _awq(files: Files, base: str, settings: Mapping[str, Any]) -> Tensor:
    bits = _bits(settings)
    if bits != 4:
        raise UnavailableError(f"AWQ weights in {bits} bits are not read back", hint="4 bits are")
    scales = files.tensor(f"{base}.scales").float()
    order = torch.tensor(_AWQ_ORDER).argsort()
    numbers = _nibbles(files.tensor(f"{base}.qweight"), bits)[..., order].flatten(1)
    zeros = _nibbles(files.tensor(f"{base}.qzeros"), bits)[..., order].flatten(1)
    group = _groups(numbers.shape[0], len(scales))
    out = scales.shape[1]
    return ((numbers[:, :out] - zeros[group, :out]).float() * scales[group]).t()


def _groups(inn: int, n_groups: int) -> Tensor:
    return torch.arange(inn) // -(-inn // n_groups)


def _scaled(weight: Tensor, scale: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """An fp8 weight times its scale: one number, one per row, or one per block."""
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if scale.ndim == 1 or (scale.ndim == weight.ndim and scale.shape[-1] == 1):
        return weight * scale.reshape(-1, 1)
    block = settings.get("weight_block_size") or [128, 128]
    wide = scale.repeat_interleave(int(block[0]), -2).repeat_interleave(int(block[1]), -1)
    return weight * wide[..., : weight.shape[-2], : weight.shape[-1]]


def mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Blocks of 32 four-bit floats with a power of two each: (..., blocks, 16) bytes to (...,
    blocks · 32) numbers.
    """
    table = torch.tensor(_FP4)
    pairs = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    numbers = table[pairs.long()] * torch.exp2(scales.float() - 127).unsqueeze(-1)
    return numbers.flatten(-2)


def ggml(rows: Tensor, stored: Stored, name: str) -> Tensor:
    """Rows of ggml blocks to float32, by the ``gguf`` package."""
    from llmcalc.formats.codecs.ggml import dequantise

    return torch.from_numpy(dequantise(rows.numpy(), stored.dtype, name)).view(stored.shape)
