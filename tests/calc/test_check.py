"""A checkpoint's names and shapes against its config's promise, in the layouts of quantised
checkpoints.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from llmcalc.api import load
from llmcalc.formats import recipe
from llmcalc.formats.scheme import quantisable
from llmcalc.questions.check import compare
from llmcalc.sources.names import promised

FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
"""DeepSeek-V3's own ``quantization_config``: every matrix inside the layers has a
``weight_scale_inv`` beside it.
"""


def block_fp8(layers: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """What DeepSeek-V3 promises, and a checkpoint of it: weights in their own shape, and their
    scales.
    """
    wants = promised(load("deepseek-v3", n_layers=layers).anatomy)
    have = {name: want.shape for name, want in wants.items()}
    for name, want in wants.items():
        if quantisable(want.weight):
            have[f"{name}_scale_inv"] = tuple(-(-size // 128) for size in want.shape)
    return wants, have


def test_scales_of_block_fp8_belong_to_their_weights() -> None:
    wants, have = block_fp8(5)
    found = compare(wants, have, {}, recipe.read(FP8, "bfloat16"), 0)
    assert not found.differences and found.matched == len(wants)
    assert sum(name.endswith("_scale_inv") for name in found.roles) > 500


@pytest.mark.parametrize("wrong", ["shape", "orphan"])
def test_a_scale_that_does_not_fit_is_said(wrong: str) -> None:
    wants, have = block_fp8(5)
    scale = next(name for name in have if name.endswith("down_proj.weight_scale_inv"))
    if wrong == "shape":
        have[scale] = (1, 1)
    else:
        have["model.layers.1.nothing.weight_scale_inv"] = (1, 1)
    assert compare(wants, have, {}, recipe.read(FP8, "bfloat16"), 0).differences


def test_a_checkpoint_of_ninety_thousand_tensors_is_compared() -> None:
    """All 61 layers, their scales, and a layer of multi-token prediction behind them."""
    wants, have = block_fp8(61)
    have |= {
        name.replace("layers.60.", "layers.61."): shape
        for name, shape in have.items()
        if "layers.60." in name
    }
    begun = time.monotonic()
    found = compare(wants, have, {}, recipe.read(FP8, "bfloat16"), 1)
    assert not found.differences and time.monotonic() - begun < 60
    assert any("multi-token prediction" in note for note in found.notes)
