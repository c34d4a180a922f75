"""The plain arithmetic: every token that a query can see, nothing rounded; and what transformers holds of it."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, least, most, total
from llmcalc.engines.cache import (
    Cache,
    Load,
    Row,
    gathered,
    in_bytes,
    kind_of,
    shared_heads,
    state_size,
    token_bytes,
)
from llmcalc.errors import InputError

FORMULA = "no engine: tokens that a query can see, nothing rounded"
TRANSFORMERS = (
    "transformers 5.24 (cache_utils.py): latent attention compressed, windows keep W - 1 tokens"
)
TRANSFORMERS_4 = (
    "transformers 4.x and early 5.x: latent attention expanded to keys and values per head"
)


def formula(anatomy: Anatomy, load: Load) -> Cache:
    """The cache as papers count it."""
    local = [replace(m, window=m.window or m.sight) for m in _local(anatomy, load)]
    rows = [_row(m, load, _seen(m, load)) for m in local]
    return gathered("formula", FORMULA, rows, load.context)


def _local(anatomy: Anatomy, load: Load) -> list[Mixer]:
    return [shared_heads(m, load.tp) for m in anatomy.mixers if m.kind != "none"]


def _seen(mixer: Mixer, load: Load) -> Dim | None:
    """Tokens that one query sees; the tokens of the other sequence for cross-attention."""
    if mixer.kind == "cross":
        return _source(mixer, load)
    if not mixer.per_token:
        return None
    return _with_extra(mixer, least(load.context, mixer.window) if mixer.window else load.context)


def _source(mixer: Mixer, load: Load) -> Dim:
    if mixer.max_source is not None:
        return mixer.max_source
    return load.source if load.source is not None else load.context


def _with_extra(mixer: Mixer, tokens: Dim) -> Dim:
    tokens = least(tokens, mixer.max_source) if mixer.max_source is not None else tokens
    return tokens + mixer.extra_tokens if mixer.extra_tokens else tokens


def _row(mixer: Mixer, load: Load, tokens: Dim | None, per_token: Dim | None = None) -> Row:
    """One mixer's row: what it holds at that many tokens, and what one more adds."""
    state = mixer.layers.count * load.batch * state_size(mixer, load)
    if mixer.compress_rate is not None:
        return _compressed(mixer, load)
    if tokens is None:
        return Row(kind_of(mixer), mixer.layers, None, Dim(0), state)
    each = token_bytes(mixer, load) if per_token is None else per_token
    grows = mixer.kind != "cross" and (mixer.window is None or load.context < mixer.window)
    grows = grows and not (mixer.max_source is not None and load.context >= mixer.max_source)
    kv = mixer.layers.count * each * tokens * load.batch
    return Row(
        kind_of(mixer),
        mixer.layers,
        tokens,
        kv,
        state,
        mixer.layers.count * each if grows else Dim(0),
    )


def _compressed(mixer: Mixer, load: Load) -> Row:
    """DeepSeek-V4: a window of single keys, one entry per group of tokens before it, the group that is not full yet.

    The reference's CSA layers keep overlapping groups too, their gates in float32, and the same for the indexer.
    """
    rate, d_h, index = mixer.compress_rate or Dim(1), mixer.d_qk, mixer.index_keys
    window = least(load.context, (mixer.window or load.context) - 1)
    done, left = load.context // rate, Dim(int(load.context) % int(rate), "tokens_left")
    wide = 2 if index else 1
    parts = [window * d_h, done * d_h, 2 * left * wide * d_h]
    gates = Dim(0)
    if index:
        parts += [done * index, 2 * left * wide * index]
        if load.context >= rate:
            parts += [rate * d_h + rate * index]
            gates = (rate * d_h + rate * index) * 4
    each = in_bytes(total(parts), load.key_dtype) + gates
    per_token = in_bytes(d_h + index, load.key_dtype) // rate
    return Row(
        "compressed",
        mixer.layers,
        window,
        mixer.layers.count * load.batch * each,
        Dim(0),
        mixer.layers.count * per_token,
    )


def transformers(anatomy: Anatomy, load: Load) -> Cache:
    """What ``DynamicCache`` holds after that many tokens, or ``StaticCache`` allocates for them."""
    for kind in (load.key_dtype, load.value_dtype):
        if kind.name not in ("float32", "float16", "bfloat16", "float64"):
            raise InputError(
                f"transformers caches keys and values in the model's dtype, not in {kind.name}",
                hint="the rule of its quantised caches is not known",
            )
    rows = [_row(m, load, _held(m, load), _expanded_heads(m, load)) for m in _local(anatomy, load)]
    return gathered("transformers", TRANSFORMERS, rows, load.context)


def transformers_4(anatomy: Anatomy, load: Load) -> Cache:
    """The same before latent attention was cached compressed."""
    wide = [_wide(m) for m in anatomy.mixers]
    rows = [
        _row(m, load, _held(m, load), _expanded_heads(m, load))
        for m in _local(replace(anatomy, parts=tuple(wide)), load)
    ]
    return gathered("transformers", TRANSFORMERS_4, rows, load.context)


def _wide(mixer: Mixer) -> Mixer:
    if mixer.kind != "latent":
        return mixer
    return replace(
        mixer, kind="kv", keys=mixer.n_heads * mixer.d_qk, values=mixer.n_heads * mixer.d_v
    )


def _held(mixer: Mixer, load: Load) -> Dim | None:
    if mixer.window is None or not mixer.per_token or mixer.kind == "cross":
        return _seen(mixer, load)
    if load.static:
        return least(mixer.window, load.context)
    return least(load.context, most(mixer.window - 1, 0))


def _expanded_heads(mixer: Mixer, load: Load) -> Dim | None:
    """Falcon's newer models repeat keys and values to all heads before they are cached."""
    if mixer.cached_heads is None:
        return None
    heads = mixer.cached_heads
    return token_bytes(mixer, load, heads * mixer.d_qk, heads * mixer.d_v)
