"""The cache of a model under one engine, and the other way round: what fits into some memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim, total
from llmcalc.engines import choose
from llmcalc.engines.base import CacheRule, Engine
from llmcalc.engines.cache import Cache, Load
from llmcalc.engines.formula import formula
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype

LARGEST_CONTEXT = 2**40


def kvcache(anatomy: Anatomy, *, load: Load, engine: str = "formula") -> Cache:
    """What the engine keeps between tokens; a model that keeps nothing is an InputError."""
    chosen = choose(engine)
    keeps_something(anatomy, chosen.engine)
    answer = chosen.rules.cache(anatomy, load)
    return replace(answer, notes=(*answer.notes, chosen.note)) if chosen.note else answer


def keeps_something(anatomy: Anatomy, engine: Engine) -> None:
    """A model whose layers keep nothing between tokens is an InputError that says so.

    Unless the engine runs such models too.
    """
    known(anatomy)
    if not engine.runs_encoders and all(mixer.kind == "none" for mixer in anatomy.mixers):
        raise InputError(
            f"{anatomy.family} keeps nothing between tokens: it is an encoder, or its "
            "implementation computes every step anew"
        )


def known(anatomy: Anatomy) -> None:
    """A model of which tensors are only counted has no cache that is known: an InputError."""
    if not anatomy.cache_known:
        raise InputError(
            f"what the layers of {anatomy.family} keep between tokens is not known: no family"
            " describes it, and its tensors are only counted",
            hint="count it as another family with `--as llama`, or give sizes without a name:"
            " `--layers 32 --kv-heads 8 --head-dim 128`",
        )


def scale_bytes(anatomy: Anatomy, load: Load) -> int:
    """Bytes of an fp8 cache's scales: a float32 for keys and one for values in every layer that
    keeps any.

    Source: vLLM's ``k_scale`` and ``v_scale`` (model_executor/layers/attention), parameters of the
    layer.
    """
    sides = sum(4 for kind in (load.key_dtype, load.value_dtype) if kind.name.startswith("float8"))
    return sides * sum(
        len(m.layers.indices) for m in anatomy.mixers if m.per_token and m.kind in ("kv", "latent")
    )


def mha_bytes(anatomy: Anatomy, load: Load) -> Dim:
    """What plain multi-head attention would keep at the same context, without windows or
    sharing.
    """
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


def largest_context(anatomy: Anatomy, rule: CacheRule, load: Load, memory: int) -> int | None:
    """The longest context whose cache fits into ``memory`` bytes; None where every length fits."""

    def fits(n: int) -> bool:
        asked = replace(load, context=Dim(n, "context"))
        return rule(anatomy, asked).kv_bytes <= memory

    return largest(fits, LARGEST_CONTEXT)


def largest_batch(anatomy: Anatomy, rule: CacheRule, load: Load, memory: int) -> int | None:
    """The most sequences whose caches fit into ``memory`` bytes at this context."""

    def fits(n: int) -> bool:
        asked = replace(load, batch=Dim(n, "batch"))
        return rule(anatomy, asked).kv_bytes <= memory

    return largest(fits, LARGEST_CONTEXT)


def largest(fits: Callable[[int], bool], limit: int) -> int | None:
    """The largest n that fits, by doubling and halving.

    0 where 1 does not fit, None where ``limit`` (2^k) does.

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


def cache_bytes(anatomy: Anatomy, context: int, batch: int, element_bytes: int) -> int:
    """Bytes of a cache by the plain formula, in a float of so many bytes."""
    kind = dtype({2: "float16", 4: "float32", 8: "float64"}[element_bytes])
    load = Load(
        context=Dim(context),
        batch=Dim(batch),
        key_dtype=kind,
        value_dtype=kind,
        state_dtype=kind,
    )
    return int(formula(anatomy, load).kv_bytes)
