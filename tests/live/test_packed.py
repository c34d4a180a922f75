"""Quantised checkpoints read back: packed here number by number, as the formats' own pages describe
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from llmcalc.live.files import Files  # noqa: E402
from llmcalc.live.packed import mxfp4, unpack  # noqa: E402
from llmcalc.sources.safetensors import read  # noqa: E402

OUT, INN, GROUP = 16, 64, 32


def saved(folder: Path, tensors: dict[str, Any]) -> Files:
    safetensors.save_file(
        {k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors"
    )
    return Files(read(folder / "model.safetensors"), folder)


@pytest.fixture
def numbers() -> tuple[Any, Any, Any]:
    """Codes (in, out), zeros (groups, out) and scales (groups, out)."""
    g = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (INN, OUT), generator=g)
    zeros = torch.randint(1, 16, (INN // GROUP, OUT), generator=g)
    return codes, zeros, torch.rand(INN // GROUP, OUT, generator=g).half()


def wanted(codes: Any, zeros: Any, scales: Any) -> Any:
    rows = [(codes[i] - zeros[i // GROUP]).float() * scales[i // GROUP].float() for i in range(INN)]
    return torch.stack(rows).t()


def int32(words: list[int]) -> list[int]:
    return [w - 2**32 if w >= 2**31 else w for w in words]


def packed(rows: list[list[int]], order: tuple[int, ...]) -> Any:
    """Each row's numbers eight to an int32, number ``order[i]`` of the eight in bits 4i to 4i+3."""
    out = []
    for row in rows:
        eights = [row[i : i + 8] for i in range(0, len(row), 8)]
        out.append(int32([sum(e[order[i]] << (4 * i) for i in range(8)) for e in eights]))
    return torch.tensor(out, dtype=torch.int32)


PLAIN, AWQ = tuple(range(8)), (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq(tmp_path: Path, numbers: tuple[Any, Any, Any], form: str) -> None:
    """AutoGPTQ: packed along the input; zeros stored less one, and as they are in the second
    version.
    """
    codes, zeros, scales = numbers
    less = 1 if form == "gptq" else 0
    files = saved(
        tmp_path,
        {
            "q.qweight": packed(codes.t().tolist(), PLAIN).t(),
            "q.qzeros": packed((zeros - less).tolist(), PLAIN),
            "q.scales": scales,
            "q.g_idx": torch.arange(INN, dtype=torch.int32) // GROUP,
        },
    )
    found = unpack(
        files, "q.weight", {"quant_method": "gptq", "bits": 4, "checkpoint_format": form}
    )
    assert torch.equal(found, wanted(codes, zeros, scales))


def test_gptq_in_the_order_of_activations(tmp_path: Path, numbers: tuple[Any, Any, Any]) -> None:
    codes, zeros, scales = numbers
    order = torch.randperm(INN, generator=torch.Generator().manual_seed(1))
    group = torch.empty(INN, dtype=torch.int32)
    group[order] = torch.arange(INN, dtype=torch.int32) // GROUP
    files = saved(
        tmp_path,
        {
            "q.qweight": packed(codes.t().tolist(), PLAIN).t(),
            "q.qzeros": packed((zeros - 1).tolist(), PLAIN),
            "q.scales": scales,
            "q.g_idx": group,
        },
    )
    rows = [(codes[i] - zeros[group[i]]).float() * scales[group[i]].float() for i in range(INN)]
    assert torch.equal(unpack(files, "q.weight", {"quant_method": "gptq"}), torch.stack(rows).t())


def test_awq(tmp_path: Path, numbers: tuple[Any, Any, Any]) -> None:
    """llm-awq's GEMM layout: packed along the output, in the order 0 2 4 6 1 3 5 7, zeros as they
    are.
    """
    codes, zeros, scales = numbers
    files = saved(
        tmp_path,
        {
            "q.qweight": packed(codes.tolist(), AWQ),
            "q.qzeros": packed(zeros.tolist(), AWQ),
            "q.scales": scales,
        },
    )
    assert torch.equal(
        unpack(files, "q.weight", {"quant_method": "awq"}), wanted(codes, zeros, scales)
    )


def test_fp8_by_block_and_by_tensor(tmp_path: Path) -> None:
    weight = torch.randn(200, 130).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2)
    files = saved(
        tmp_path, {"q.weight": weight, "q.weight_scale_inv": scale, "r.weight": weight.clone()}
    )
    found = unpack(files, "q.weight", {"weight_block_size": [128, 128]})
    for i, j in ((0, 0), (127, 129), (128, 5), (199, 128)):
        assert found[i, j] == weight[i, j].float() * scale[i // 128, j // 128]
    assert torch.equal(unpack(files, "r.weight", {}), weight.float())


def test_mxfp4() -> None:
    """OCP MX 1.0: e2m1 codes, the low half of a byte first, times two to the scale less 127."""
    blocks = torch.zeros(1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0] = 0x7A  # codes 10 and 7: -1 and 6
    blocks[0, 0, 15] = 0x10  # codes 0 and 1: 0 and 0.5
    found = mxfp4(blocks, torch.tensor([[129]], dtype=torch.uint8))
    assert found.shape == (1, 32)
    assert found[0, :2].tolist() == [-4.0, 24.0]
    assert found[0, 30:].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("double", [False, True])
def test_bitsandbytes(tmp_path: Path, double: bool) -> None:
    """Two codes per byte, the first in the high half; scales of blocks, quantised once more where
    doubled.
    """
    table = torch.linspace(-1, 1, 16)
    codes = torch.randint(0, 16, (4 * 64,), generator=torch.Generator().manual_seed(2))
    scales = torch.tensor([0.5, 1.5, 2.0, 4.0])
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "float16",
        "shape": [4, 64],
    }
    tensors: dict[str, Any] = {"w.weight.quant_map": table, "w.weight.absmax": scales}
    tensors["w.weight"] = (codes[0::2] * 16 + codes[1::2]).to(torch.uint8).unsqueeze(-1)
    if double:
        state |= {"nested_blocksize": 2, "nested_offset": 1.0}
        nested = torch.linspace(-1, 1, 256)
        tensors |= {
            "w.weight.absmax": torch.tensor([0, 255, 10, 20], dtype=torch.uint8),
            "w.weight.nested_absmax": torch.tensor([2.0, 3.0]),
            "w.weight.nested_quant_map": nested,
        }
        scales = torch.stack(
            [nested[0] * 2 + 1, nested[255] * 2 + 1, nested[10] * 3 + 1, nested[20] * 3 + 1]
        )
    tensors["w.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    found = unpack(saved(tmp_path, tensors), "w.weight", {"quant_method": "bitsandbytes"})
    assert torch.allclose(found, (table[codes] * scales.repeat_interleave(64)).view(4, 64))
