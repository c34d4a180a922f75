"""The plain arithmetic that engines without a pool share: tokens that a query sees, nothing
rounded.
"""

from __future__ import annotations

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, least, total
from llmcalc.engines.cache import Load, Row, in_bytes, kind_of, state_size, token_bytes
from llmcalc.parallel import shared_heads


def local_mixers(anatomy: Anatomy, load: Load) -> list[Mixer]:
    """The mixers that keep something, as one rank has them."""
    return [shared_heads(m, load.tp) for m in anatomy.mixers if m.kind != "none"]


def seen(mixer: Mixer, load: Load) -> Dim | None:
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


def plain_row(mixer: Mixer, load: Load, tokens: Dim | None, per_token: Dim | None = None) -> Row:
    """One mixer's row: what it holds at that many tokens, and what one more adds."""
    state = mixer.layers.count * load.batch * state_size(mixer, load)
    if mixer.compress_rate is not None:
        return _compressed(mixer, load)
    if tokens is None:
        return Row(
            kind=kind_of(mixer),
            layers=mixer.layers,
            tokens=None,
            kv_bytes=Dim(0),
            state_bytes=state,
        )
    each = token_bytes(mixer, load) if per_token is None else per_token
    grows = mixer.kind != "cross" and (mixer.window is None or load.context < mixer.window)
    grows = grows and not (mixer.max_source is not None and load.context >= mixer.max_source)
    kv = mixer.layers.count * each * tokens * load.batch
    return Row(
        kind=kind_of(mixer),
        layers=mixer.layers,
        tokens=tokens,
        kv_bytes=kv,
        state_bytes=state,
        per_token=mixer.layers.count * each if grows else Dim(0),
    )


def _compressed(mixer: Mixer, load: Load) -> Row:
    """DeepSeek-V4: a window of single keys, one entry per group of tokens before it, the group that
    is not full yet.

    The reference's CSA layers keep overlapping groups too, their gates in float32, and the same for
    the indexer.
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
        kind="compressed",
        layers=mixer.layers,
        tokens=window,
        kv_bytes=mixer.layers.count * load.batch * each,
        state_bytes=Dim(0),
        per_token=mixer.layers.count * per_token,
    )
