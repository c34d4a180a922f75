"""llmcalc beside other calculators on the same eight models: what each answers, its seconds, and what it reads.

Run it with ``python -m benchmarks.peers`` from the checkout, and name the others' environment in ``PEERS``:
``PEERS=/path/to/venv/bin``; a calculator that is not there is skipped with a line. The hub is the tests' own, on
loopback. Its models are configs with the published sizes and shards with true headers over holes: no weights.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from llmcalc.calc.check import promised
from llmcalc.calc.layout import LAYOUTS
from llmcalc.families import anatomy, config_for
from llmcalc.sources import presets
from tests.sources.fake_hub import Hub, serving

RUNS, CONTEXT = 3, 8192
SHARD_BYTES = 5_000_000_000
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name to dtype and shape."""


@dataclass(frozen=True)
class Published:
    """A model of the hub: what its config states beside the preset's sizes, and the bytes of its tensors there."""

    hub_id: str
    preset: str
    n_bytes: int
    config: Mapping[str, Any]


ALTERNATING = ["sliding_attention", "full_attention"]
MODELS = (
    Published("openai-community/gpt2", "gpt2", 548_090_880, {"architectures": ["GPT2LMHeadModel"]}),
    Published(
        "meta-llama/Meta-Llama-3-8B", "llama-3-8b", 16_060_522_496, {"architectures": ["LlamaForCausalLM"]}
    ),
    Published(
        "mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1", 14_483_464_192, {"architectures": ["MistralForCausalLM"]}
    ),
    Published(
        "mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b", 93_405_585_408, {"architectures": ["MixtralForCausalLM"]}
    ),
    Published("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", 61_064_245_248, {"architectures": ["Qwen3MoeForCausalLM"]}),
    Published(
        "google/gemma-3-27b-it",
        "gemma-3-27b",
        54_864_813_280,
        {"architectures": ["Gemma3ForConditionalGeneration"]},
    ),
    Published(
        "openai/gpt-oss-20b",
        "gpt-oss-20b",
        13_761_264_768,
        {"architectures": ["GptOssForCausalLM"], "layer_types": ALTERNATING * 12},
    ),
    Published(
        "deepseek-ai/DeepSeek-V3",
        "deepseek-v3",
        688_574_839_360,
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "auto_map": {
                "AutoConfig": "configuration_deepseek.DeepseekV3Config",
                "AutoModel": "modeling_deepseek.DeepseekV3Model",
                "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
            },
            "quantization_config": {
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
            },
        },
    ),
)


def config_of(model: Published) -> dict[str, Any]:
    """The preset's sizes, and what the published config states beside them."""
    return {k: v for k, v in presets.load(model.preset).items() if not k.startswith("_")} | dict(model.config)


def tensors_of(model: Published) -> Tensors:
    """The tensors of the published files: quantised ones as they lie there, buffers and prediction layers too."""
    raw, found = config_of(model), Tensors()
    quantised = raw.get("quantization_config") or {}
    method = quantised.get("quant_method", "")
    plain = "F32" if model.preset == "gpt2" else "BF16"
    for name, want in promised(anatomy(config_for(raw))).items():
        if want.weight.tied_to:
            continue
        if (method == "fp8" and "_proj" in name) or (method == "mxfp4" and name.endswith(("up_proj", "down_proj"))):
            dtypes = ("F8_E4M3", "F32") if method == "fp8" else ("U8", "U8")
            parts = [(n, s) for n, s in LAYOUTS[method](name, want.shape, quantised).items() if s]
            found |= {n: (dtype, shape) for dtype, (n, shape) in zip(dtypes, parts, strict=True)}
        else:
            found[name] = ("F32" if want.weight.buffer else plain, want.shape)
    if model.preset == "gpt2":  # its masks are in the file
        found |= {f"h.{i}.attn.bias": ("F32", (1, 1, 1024, 1024)) for i in range(12)}
    if model.preset == "deepseek-v3":  # a layer more, which predicts the token after the next
        last, d = raw["num_hidden_layers"], raw["hidden_size"]
        own, more = f"model.layers.{last - 1}.", f"model.layers.{last}."
        found |= {more + n.removeprefix(own): t for n, t in found.items() if n.startswith(own)}
        shapes = {"enorm": (d,), "hnorm": (d,), "eh_proj": (d, 2 * d), "shared_head.norm": (d,)}
        shapes |= dict.fromkeys(("embed_tokens", "shared_head.head"), (raw["vocab_size"], d))
        found |= {f"{more}{n}.weight": ("BF16", shape) for n, shape in shapes.items()}
    return found


def fill(folder: Path, model: Published) -> None:
    """A repository: the config, and shards of at most 5 GB whose data are holes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=2))
    shards, room = list[Tensors](), 0
    for name, (dtype, shape) in sorted(tensors_of(model).items(), key=lambda item: _place(item[0])):
        n_bytes = BYTES[dtype] * prod(shape)
        if n_bytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = (dtype, shape)
        room -= n_bytes
    places = dict[str, str]()
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        write(folder / file, shard)
        places |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": model.n_bytes}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _place(name: str) -> tuple[int, str]:
    """Layer by layer, as published shards are cut; what is outside the layers first."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else -1, name


def write(path: Path, tensors: Tensors) -> None:
    """A safetensors file: its true header, and a hole for its data."""
    header, end = dict[str, object](), 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + BYTES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
