"""What an engine is asked to hold, and what it answers: records alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmcalc.anatomy import Anatomy, Layers, Mixer
from llmcalc.dims import Dim, ceil_div, total
from llmcalc.errors import InputError
from llmcalc.formats.element import DType, dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sequences and tokens to hold, the formats to hold them in, and the settings that engines
    round by.

    ``context`` is tokens per sequence, ``source`` tokens of the other sequence (encoder-decoders),
    ``batch`` sequences. ``state_dtype`` is that of recurrent states without a fixed one.
    """

    context: Dim
    batch: Dim
    key_dtype: DType
    value_dtype: DType
    state_dtype: DType
    ssm_dtype: DType | None = None
    """vLLM's format for recurrent states; None is the cache's own."""
    source: Dim | None = None
    tp: int = 1
    static: bool = False
    block_size: int | None = None
    batched_tokens: int | None = None
    """Tokens of a batch at most; None is what the engine takes by default."""
    graphs: bool = True
    """Whether CUDA graphs are captured."""
    in_flight: int | None = None
    """Batches that are under way at a time; None is what the engine's version does."""
    prefix_caching: bool = True
    speculative: int = 0
    hybrid: bool = True
    """Whether vLLM's manager of several groups is on: without it windows hold every token."""
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    flash_attention: bool = True
    swa_ratio: tuple[int, int] = (4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Layers that share a rule: what they hold for all sequences, and what one more token of one
    sequence adds.

    ``tokens`` is what is held or allocated per sequence; ``pool_per_token`` what a paged pool
    charges per token.
    """

    kind: str
    layers: Layers
    tokens: Dim | None
    kv_bytes: Dim
    state_bytes: Dim = field(default_factory=lambda: Dim(0))
    per_token: Dim = field(default_factory=lambda: Dim(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """An engine's whole answer: its rows, and what it allocates beyond their sum."""

    engine: str
    rules: str
    rows: tuple[Row, ...]
    kv_bytes: Dim
    per_token: Dim
    state_bytes: Dim
    tokens_allocated: Dim
    facts: dict[str, int | float | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def gathered(
    engine: str, rules: str, rows: list[Row], tokens: Dim, notes: tuple[str, ...] = ()
) -> Cache:
    """An answer that is the sum of its rows."""
    state = total(r.state_bytes for r in rows)
    kv = total(r.kv_bytes for r in rows)
    return Cache(
        engine=engine,
        rules=rules,
        rows=tuple(rows),
        kv_bytes=kv + state,
        per_token=total(r.per_token for r in rows),
        state_bytes=state,
        tokens_allocated=tokens,
        facts={},
        notes=notes,
    )


def in_bytes(elements: Dim, kind: DType, name: str = "element_bytes") -> Dim:
    """Elements as bytes of a format.

    A plain one multiplies by a named size, a block one fills its last block up.
    """
    if kind.block == 1:
        return elements * Dim(kind.size, name)
    return ceil_div(elements, kind.block) * kind.size


def token_bytes(
    mixer: Mixer, load: Load, keys: Dim | None = None, values: Dim | None = None
) -> Dim:
    """Bytes of one token in one layer: keys and values in their formats, index keys in that of the
    keys.
    """
    keys = mixer.keys if keys is None else keys
    values = mixer.values if values is None else values
    same = load.key_dtype == load.value_dtype
    if same and load.key_dtype.block == 1:
        return in_bytes(keys + values + mixer.index_keys, load.key_dtype)
    if same and mixer.kind == "latent" and not mixer.index_keys:
        return in_bytes(keys + values, load.key_dtype)
    names = ("element_bytes", "element_bytes") if same else ("key_bytes", "value_bytes")
    out = in_bytes(keys, load.key_dtype, names[0])
    if values:
        out = out + in_bytes(values, load.value_dtype, names[1])
    return out + in_bytes(mixer.index_keys, load.key_dtype, names[0]) if mixer.index_keys else out


def state_size(
    mixer: Mixer, load: Load, narrower_conv: bool = False, recurrent: DType | None = None
) -> Dim:
    """Bytes of the recurrent states of one sequence in one layer.

    Engines differ by one column of the convolution, and in the format of the recurrent state.
    """
    sizes = []
    for state in mixer.states:
        width = (
            state.width - 1 + load.speculative
            if narrower_conv and state.kind == "conv"
            else state.width
        )
        kind = dtype(state.dtype) if state.dtype else load.state_dtype
        if recurrent is not None and state.kind == "recurrent" and not state.always:
            kind = recurrent
        sizes.append(state.channels * width * kind.size)
    return total(sizes)


def kind_of(mixer: Mixer) -> str:
    """The rule of a row in a word."""
    if mixer.kind == "kv":
        return "chunked" if mixer.chunked else "sliding" if mixer.window else "full"
    return {"latent": "latent", "cross": "cross", "state": "recurrent", "shared": "shared"}.get(
        mixer.kind, mixer.kind
    )


def refuse_unknown(anatomy: Anatomy, mixers: list[Mixer], engine: str, *, index: bool) -> None:
    """A kind of cache whose rule is not known for the engine is refused by name."""
    for mixer in mixers:
        known = not mixer.index_keys or index
        if mixer.kind == "cross" or mixer.compress_rate is not None or not known:
            raise InputError(
                f"the rule of {engine}'s cache for the {kind_of(mixer)} layers of "
                f"{anatomy.family} is not known"
            )
