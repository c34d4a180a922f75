"""GGUF file types against llama-quantize's own dry run: bytes and the number of tensors of every
format.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from llmcalc.api import load
from llmcalc.errors import InputError
from llmcalc.formats.file_type import mix

DATA = Path(__file__).parent / "data"
PRESETS = {
    "Llama-3-8B": "llama-3-8b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.2-1B": "llama-3.2-1b",
    "Llama-2-7B": "llama-2-7b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Gemma-3-27B": "gemma-3-27b",
    "Qwen2.5-0.5B": "qwen2.5-0.5b",
    "DeepSeek-V3": "deepseek-v3",
    "DSV3": "deepseek-v3",
    "Qwen3-Next-80B-A3B": "qwen3-next-80b-a3b",
    "gpt-oss-20b": "gpt-oss-20b",
}
FILES = [
    p
    for p in (DATA / "gguf_mix.json", Path(os.environ.get("LLMCALC_GGUF_MIX") or "/nonexistent"))
    if p.exists()
]
CASES = [
    (model, kind, facts)
    for path in FILES
    for model, kinds in json.loads(path.read_text())["models"].items()
    for kind, facts in kinds.items()
]


def test_there_are_cases() -> None:
    assert len(CASES) >= 34 * 5


@pytest.mark.parametrize(("model", "kind", "facts"), CASES, ids=[f"{m}-{k}" for m, k, _ in CASES])
def test_dry_run(model: str, kind: str, facts: dict[str, object]) -> None:
    name = model.split(" (")[0]
    known = load(PRESETS.get(name, name.lower())).anatomy
    if "error" in facts:  # llama-quantize stops: 2880 is no multiple of 128
        with pytest.raises(InputError, match="2880"):
            mix(known, kind)
        return
    tensors = mix(known, kind)
    assert sum(t.n_bytes for t in tensors) == facts["tensor_bytes"]
    counts = Counter(t.form.lower() for t in tensors)
    assert dict(counts) == facts["types"]


SIZES = """
Llama-3.1-70B 134573.03 71494.28 55198.94 47628.36 40543.11 38470.61 38110.61 36489.30 32672.53 25145.77 18205.19
Llama-2-7B 12853.02 6828.64 5272.34 4560.87 3891.24 3677.37 3647.87 3477.84 3144.52 2414.82 1768.31
Qwen2.5-0.5B 942.43 500.79 476.64 394.95 373.71 361.94 330.17 329.49 333.33 317.25 300.98
DSV3 1280086.27 680237.97 525395.35 453398.93 385750.62 362453.97 360546.72 342902.46 304471.07 232832.88 166491.29
Qwen3-Next-80B-A3B 152065.68 80877.56 62487.29 54115.95 46237.05 43377.94 42987.06 41196.21 36499.08 27908.02 20210.16
"""
KINDS = [
    "F16",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "IQ4_XS",
    "Q3_K_M",
    "Q2_K",
    "IQ2_XXS",
]


@pytest.mark.parametrize("line", SIZES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_printed_sizes(line: str) -> None:
    """MiB as llama-quantize --dry-run prints them (llama-cpp-python 0.3.36); latent, linear, shared
    experts too.
    """
    model, *sizes = line.split()
    for kind, mib in zip(KINDS, sizes, strict=True):
        n_bytes = sum(t.n_bytes for t in mix(load(PRESETS[model]).anatomy, kind))
        assert f"{n_bytes / 2**20:.2f}" == mib, kind


def test_unknown_type_and_unknown_layers() -> None:
    with pytest.raises(InputError, match="Q4_K_X"):
        mix(load("llama-2-7b").anatomy, "Q4_K_X")
    with pytest.raises(InputError, match="not described"):
        mix(load("deepseek-v3.2").anatomy, "Q4_K_M")


def test_smollm2_file() -> None:
    """SmolLM2-135M-Instruct-Q4_1.gguf by its own tensor table: 96,576,768 bytes, 5.744 bits per
    weight.
    """
    tensors = mix(load("smollm2-135m").anatomy, "Q4_1")
    n_bytes = sum(t.n_bytes for t in tensors)
    assert n_bytes == 96_576_768
    assert round(8 * n_bytes / sum(t.elements for t in tensors), 3) == 5.744
