"""transformers: what ``DynamicCache`` holds, or ``StaticCache`` allocates.

Source: cache_utils.py and generation/utils.py of transformers 5.24.0 and 4.57.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, least, most
from llmcalc.engines.base import Engine, Rules, Sampling
from llmcalc.engines.cache import Cache, Load, gathered, token_bytes
from llmcalc.engines.library import working
from llmcalc.engines.plain import local_mixers, plain_row, seen
from llmcalc.errors import InputError

NEWEST = (
    "transformers 5.24 (cache_utils.py): latent attention compressed, windows keep W - 1 tokens"
)
OLDER = "transformers 4.x and early 5.x: latent attention expanded to keys and values per head"
DTYPES = ("float32", "float16", "bfloat16", "float64")


def dynamic(anatomy: Anatomy, load: Load) -> Cache:
    """What ``DynamicCache`` holds after that many tokens, or ``StaticCache`` allocates for them."""
    for kind in (load.key_dtype, load.value_dtype):
        if kind.name not in DTYPES:
            raise InputError(
                f"transformers caches keys and values in the model's dtype, not in {kind.name}",
                hint="the rule of its quantised caches is not known",
            )
    rows = [
        plain_row(m, load, _held(m, load), _expanded_heads(m, load))
        for m in local_mixers(anatomy, load)
    ]
    return gathered("transformers", NEWEST, rows, load.context)


def expanded(anatomy: Anatomy, load: Load) -> Cache:
    """The same before latent attention was cached compressed."""
    wide = [_wide(m) for m in anatomy.mixers]
    rows = [
        plain_row(m, load, _held(m, load), _expanded_heads(m, load))
        for m in local_mixers(replace(anatomy, parts=tuple(wide)), load)
    ]
    return gathered("transformers", OLDER, rows, load.context)


def _wide(mixer: Mixer) -> Mixer:
    if mixer.kind != "latent":
        return mixer
    return replace(
        mixer, kind="kv", keys=mixer.n_heads * mixer.d_qk, values=mixer.n_heads * mixer.d_v
    )


def _held(mixer: Mixer, load: Load) -> Dim | None:
    if mixer.window is None or not mixer.per_token or mixer.kind == "cross":
        return seen(mixer, load)
    # cache_utils.py, 5.24: StaticSlidingWindowLayer holds W, DynamicSlidingWindowLayer W - 1
    if load.static:
        return least(mixer.window, load.context)
    return least(load.context, most(mixer.window - 1, 0))


def _expanded_heads(mixer: Mixer, load: Load) -> Dim | None:
    """Falcon's newer models repeat keys and values to all heads before they are cached."""
    if mixer.cached_heads is None:
        return None
    heads = mixer.cached_heads
    return token_bytes(mixer, load, heads * mixer.d_qk, heads * mixer.d_v)


_CUTS = ("top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
SAMPLING = Sampling(
    order=(
        *("bias", "repetition", "ngram", "temperature"),
        *("top-h", "top-k", "top-p", "min-p", "typical-p", "epsilon", "eta"),
    ),
    settings=frozenset(
        (
            *("logit_bias", "repetition_penalty", "no_repeat_ngram", "temperature", "min_keep"),
            *_CUTS,
        )
    ),
    defaults={"top_k": 50},
    note="transformers 5.24: temperature first, ties at the k-th stay",
    above_zero=("temperature", "top_k", "top_h", "no_repeat_ngram", "min_keep"),
    inside=("typical_p", "epsilon_cutoff", "eta_cutoff"),
    hints={
        "temperature": "give --greedy for T = 0",
        "top_k": "transformers has no 0 for off: leave it away",
    },
)
ENGINE = Engine(
    name="transformers",
    aliases=("hf",),
    versions=(
        Rules(
            name=OLDER,
            source="transformers 4.57 (cache_utils.py)",
            cache=expanded,
            until=(5, 19),
            asked_as="4",
            working=working,
        ),
        Rules(
            name=NEWEST,
            source="transformers 5.24.0 (cache_utils.py)",
            cache=dynamic,
            since=(5, 20),
            until=(5, 24),
            working=working,
        ),
    ),
    options={"static": 'cache_implementation="static"'},
    sampling=SAMPLING,
)
