"""The cache of a model under one engine, and the other way round: what fits into some memory."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim, total
from llmcalc.engines.cache import Cache, Load
from llmcalc.engines.llama_cpp import llama_cpp, ollama, ollama_older
from llmcalc.engines.plain import formula, transformers, transformers_4
from llmcalc.engines.pools import sglang, tensorrt_llm
from llmcalc.engines.vllm import OLDER, vllm
from llmcalc.errors import InputError

Engine = Callable[[Anatomy, Load], Cache]

ENGINES: Mapping[str, Engine] = {
    "formula": formula,
    "transformers": transformers,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "ollama": ollama,
}
"""Every engine under its newest known rules."""

_OLDER: Mapping[str, tuple[tuple[int, int], Engine]] = {
    "ollama": ((0, 12), ollama_older),
    "transformers": ((5, 20), transformers_4),
    "vllm": ((0, 16), lambda anatomy, load: vllm(anatomy, load, OLDER)),
}
"""Engines with another set of rules below a version."""

_KNOWN_FROM = {"vllm": (0, 9)}
_NEWEST = {"vllm": (0, 33), "transformers": (5, 24)}


def known_rules() -> list[tuple[str, str]]:
    """Every set of rules by the name that asks for it."""
    from llmcalc.engines import llama_cpp as llamacpp
    from llmcalc.engines import plain, pools
    from llmcalc.engines.vllm import NEWEST

    return [
        ("formula", plain.FORMULA),
        ("transformers", plain.TRANSFORMERS),
        ("transformers@4", plain.TRANSFORMERS_4),
        ("vllm", NEWEST.name),
        ("vllm@0.10", OLDER.name),
        ("llama.cpp", llamacpp.RULES),
        ("ollama", "Ollama of 2026: starts " + llamacpp.RULES),
        ("ollama@0.11", llamacpp.OLLAMA_OLDER),
        ("sglang", pools.SGLANG),
        ("tensorrt-llm", pools.TENSORRT),
    ]


LARGEST_CONTEXT = 2**40

GGML = ("llama.cpp", "ollama")
"""Engines on llama.cpp's memory: they divide a model by layers, and read GGUF."""

_OTHER_NAMES = {
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "trtllm": "tensorrt-llm",
    "tensorrt": "tensorrt-llm",
    "hf": "transformers",
}


def base_of(name: str) -> str:
    """The engine without its version: ``vllm`` for ``vllm@0.10``; a typo gets the closest names."""
    base = name.lower().partition("@")[0]
    base = _OTHER_NAMES.get(base, base)
    if base not in ENGINES:
        close = difflib.get_close_matches(base, list(ENGINES), 2)
        raise InputError(
            f"no engine is called {base!r}",
            hint=f"{'close: ' + ', '.join(close) + '; ' if close else ''}known: {', '.join(ENGINES)}",
        )
    return base


def version_of(name: str) -> tuple[int, int] | None:
    """The version in ``vllm@0.10``, None where the newest known rules are asked for."""
    text = name.lower().partition("@")[2]
    if not text:
        return None
    parts = text.removeprefix("v").split(".")
    if not all(p.isdigit() for p in parts[:2]) or not parts[0]:
        raise InputError(f"--engine {name!r}: {text!r} is not a version such as 0.10")
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0


def engine_for(name: str) -> tuple[Engine, str | None]:
    """The function for ``vllm`` or ``vllm@0.10``, and a note where that version's rules are not known for sure."""
    base, number = base_of(name), version_of(name)
    if number is None:
        return ENGINES[base], None
    if base in _KNOWN_FROM and number < _KNOWN_FROM[base]:
        raise InputError(
            f"the rules of {base} before {'.'.join(map(str, _KNOWN_FROM[base]))} are not known"
        )
    if base in _OLDER:
        below, engine = _OLDER[base]
        if number < below:
            return engine, None
        if number <= _NEWEST.get(base, number):
            return ENGINES[base], None
    said = ".".join(map(str, number))
    return ENGINES[
        base
    ], f"the rules of {base} {said} were not read: the newest known ones are used"


def scale_bytes(anatomy: Anatomy, load: Load) -> int:
    """Bytes of an fp8 cache's scales: a float32 for keys and one for values in every layer that keeps any.

    Source: vLLM's ``k_scale`` and ``v_scale`` (model_executor/layers/attention), parameters of the layer.
    """
    sides = sum(4 for kind in (load.key_dtype, load.value_dtype) if kind.name.startswith("float8"))
    return sides * sum(
        len(m.layers.indices) for m in anatomy.mixers if m.per_token and m.kind in ("kv", "latent")
    )


def mha_bytes(anatomy: Anatomy, load: Load) -> Dim:
    """What plain multi-head attention would keep at the same context, without windows or sharing."""
    each = (
        Dim(load.key_dtype.size, "element_bytes")
        if load.key_dtype.block == 1
        else Dim(load.key_dtype.size)
    )
    bytes_each = [
        m.layers.count * m.n_heads * (m.d_qk + m.d_v) * load.context * load.batch * each
        for m in anatomy.mixers
        if m.kind in ("kv", "latent", "shared") and m.n_heads
    ]
    return (
        total(bytes_each) // load.key_dtype.block if load.key_dtype.block > 1 else total(bytes_each)
    )


def largest_context(anatomy: Anatomy, engine: Engine, load: Load, memory: int) -> int | None:
    """The longest context whose cache fits into ``memory`` bytes; None where every length fits."""
    at = lambda n: engine(anatomy, replace(load, context=Dim(n, "context")))  # noqa: E731
    return _largest_within(at, memory)


def largest_batch(anatomy: Anatomy, engine: Engine, load: Load, memory: int) -> int | None:
    """The most sequences whose caches fit into ``memory`` bytes at this context."""
    at = lambda n: engine(anatomy, replace(load, batch=Dim(n, "batch")))  # noqa: E731
    return _largest_within(at, memory)


def _largest_within(at: Callable[[int], Cache], memory: int) -> int | None:
    return largest(lambda n: at(n).kv_bytes <= memory, LARGEST_CONTEXT)


def largest(fits: Callable[[int], bool], limit: int) -> int | None:
    """The largest n that fits, by doubling and halving; 0 where 1 does not, None where ``limit`` (2^k) does.

    >>> largest(lambda n: n <= 1000, 2**20), largest(lambda n: True, 2**20)
    (1000, None)
    """
    if not fits(1):
        return 0
    low = 1
    while fits(2 * low):
        low *= 2
        if low >= limit:
            return None
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
