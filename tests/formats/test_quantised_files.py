"""Checkpoints that the real writers made of tiny models: their bytes from the config alone, and the
check of their headers.

``quantised_files.json.gz``: for each its config, every tensor's dtype and shape, and the sum of
their bytes, written by the library that ``writer`` names (``how`` is ``run``) or put together after
its source (``read``). The models: Llama of width 256, 2 layers, 4 heads and 2 of keys and values,
inner width 512 (544 where odd), vocabulary 512, and a Qwen3-MoE of 4 experts beside it.
"""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.formats.element import dtype
from llmcalc.formats.stored import stored_bytes
from llmcalc.questions.params import parameters
from llmcalc.questions.weights import compared, format_of
from llmcalc.sources.header import Header, Stored
from llmcalc.sources.model import Model

FILES: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "quantised_files.json.gz").read_bytes())
)
KINDS = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
}
UNKNOWN = {"gptqmodel-vptq": "vptq"}
"""Methods whose layout is not described."""
NOT_IN_THE_CONFIG = {
    "mlx-nvfp4-globalscale-moe": "a scale of each stack of experts, which its config does not name",
    "mlx-predicate-skip-and-modes": "a predicate left the head alone, which is not written down",
    "modelopt-INT4_BLOCKWISE_WEIGHT_ONLY": "named like AWQ, and without AWQ's scales",
    "modelopt-INT8": "named like SmoothQuant, and without its scales",
}
"""Files that differ from another one of the very same config."""


def model(file: dict[str, Any], header: bool) -> Model:
    """The model as a directory with these files holds it."""
    raw = dict(file["config"])
    if "quanto_qmap.json" in file["more"]:
        modules = file["more"]["quanto_qmap.json"]
        raw["quantization_config"] = {"quant_method": "quanto", "modules": modules}
    if "hf_quant_config.json" in file["more"]:
        inside = file["more"]["hf_quant_config.json"]["quantization"]
        raw["quantization_config"] = {**inside, **raw["quantization_config"]}
    held = {
        name: Stored(KINDS[kind], tuple(shape), prod(shape) * int(dtype(KINDS[kind]).size))
        for name, (kind, shape) in file["tensors"].items()
    }
    return Model(file["name"], "test", raw, Header("safetensors", held) if header else None)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f["name"])
def test_bytes_from_the_config_alone(file: dict[str, Any]) -> None:
    found = model(file, header=False)
    if file["name"] in UNKNOWN:
        with pytest.raises(InputError, match=UNKNOWN[file["name"]]):
            format_of(found)
        return
    counted = int(stored_bytes(found.anatomy, format_of(found)))
    # what bitsandbytes keeps of a matrix in JSON has no fixed length, and is said not to be counted
    state = sum(prod(s) for n, (_, s) in file["tensors"].items() if "quant_state" in n)
    if file["name"] in NOT_IN_THE_CONFIG:
        assert counted + state != file["bytes"]
    else:
        assert counted + state == file["bytes"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f["name"])
def test_a_sound_file_is_as_its_config_promises(file: dict[str, Any]) -> None:
    found = model(file, header=True)
    assert found.header is not None
    result = compared(found, found.header)
    if file["name"] in UNKNOWN:
        assert result.unknown is not None
        return
    assert not result.differences
    assert int(stored_bytes(found.anatomy, format_of(found))) == file["bytes"]
    assert set(result.owners) <= set(file["tensors"])


@pytest.mark.parametrize("file", FILES, ids=lambda f: f["name"])
def test_a_missing_matrix_is_found(file: dict[str, Any]) -> None:
    """The largest tensor of one projection taken away: that is no sound file any more."""
    inside = [n for n in file["tensors"] if "layers.1." in n and "down_proj" in n]
    inside = inside or [n for n in file["tensors"] if "layers.1." in n and "o_proj" in n]
    largest = max(inside, key=lambda n: prod(file["tensors"][n][1]))
    rest = {n: t for n, t in file["tensors"].items() if n != largest}
    found = model({**file, "tensors": rest}, header=True)
    assert found.header is not None
    assert compared(found, found.header).differences


def test_parameters_are_those_of_the_unpacked_model() -> None:
    plain = next(f for f in FILES if f["name"] == "base-llama")
    n = sum(prod(shape) for _, shape in plain["tensors"].values())
    for name in ("ct-W4A16", "gptq-4bit-g128", "mlx-affine-4bit-g64", "modelopt-NVFP4"):
        found = model(next(f for f in FILES if f["name"] == name), header=True)
        assert int(parameters(found.anatomy)) == n
