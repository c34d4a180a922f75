"""What engines call what the options here are for: accepted on the command line where it means the
same.

Sources: ``vllm serve --help`` (0.33), ``python -m sglang.launch_server --help`` (0.5),
``llama-server --help`` (b9000), Ollama's Modelfile.
"""

from __future__ import annotations

from collections.abc import Mapping

SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "--max-model-len": "--ctx",
        "--tensor-parallel-size": "--tp",
        "--pipeline-parallel-size": "--pp",
        "--gpu-memory-utilization": "--utilization",
        "--max-num-seqs": "--max-seqs",
        "--max-num-batched-tokens": "--batched-tokens",
        "--kv-cache-dtype": "--kv-dtype",
        "--quantization": "--weights",
        "--mamba-ssm-cache-dtype": "--ssm-dtype",
        "--no-enable-prefix-caching": "--no-prefix-caching",
        "--disable-hybrid-kv-cache-manager": "--no-hybrid",
    },
    "sglang": {
        "--context-length": "--ctx",
        "--tp-size": "--tp",
        "--pp-size": "--pp",
        "--mem-fraction-static": "--utilization",
        "--page-size": "--block-size",
    },
    "llama.cpp": {
        "-c": "--ctx",
        "--ctx-size": "--ctx",
        "-np": "--batch",
        "--parallel": "--batch",
        "-ub": "--ubatch",
        "--ubatch-size": "--ubatch",
        "-ngl": "--gpu-layers",
        "--n-gpu-layers": "--gpu-layers",
        "-ctk": "--kv-dtype",
        "--cache-type-k": "--kv-dtype",
        "-ctv": "--kv-dtype",
        "--cache-type-v": "--kv-dtype",
        "-kvu": "--unified",
        "--kv-unified": "--unified",
    },
    "ollama": {"--num-ctx": "--ctx", "num_ctx": "--ctx"},
}
"""Engine to its own words, each with the option that they mean here."""

FLAGS = ("--no-prefix-caching", "--no-hybrid", "--unified")
"""Options here that take no value."""
KEYS = ("-ctk", "--cache-type-k")
VALUES = ("-ctv", "--cache-type-v")
CELLS = ("-c", "--ctx-size")
SLOTS = ("-np", "--parallel")
UNIFIED = ("-kvu", "--kv-unified", "--unified")
"""llama.cpp's words of which two together are one option here."""

MEANS: Mapping[str, str] = {
    word: option for words in SPELLINGS.values() for word, option in words.items()
}
