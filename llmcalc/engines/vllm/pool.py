"""vLLM's paged pool: pages per layer, layers in groups that draw from one pool of blocks.

Source: v1/kv_cache_interface.py, v1/core/kv_cache_utils.py, platforms/interface.py, mamba_utils.py
of 0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmcalc.anatomy import Anatomy, Layers, Mixer
from llmcalc.dims import Dim, ceil_div, dim, least, total
from llmcalc.engines.cache import Cache, Load, Row, kind_of, state_size, token_bytes
from llmcalc.errors import InputError
from llmcalc.parallel import shared_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """What changed between versions.

    ``in_flight`` are the batches that a window must survive; groups of layers take the larger size
    while ``largest · merge[1] < smallest · merge[0]``. To 0.11 they took the smaller one always.
    """

    name: str
    in_flight: int
    merge: tuple[int, int]
    latent: int = 64
    """Tokens that blocks of latent attention beside states are a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one layer asks of the pool: bytes of a page, tokens in it, pages per sequence."""

    kind: str
    token: Dim
    block: int
    blocks: Dim
    window: int
    layers: Layers
    mixer: Mixer
    padded: int | None = None

    @property
    def page(self) -> Dim:
        """Bytes of one page of one layer."""
        return Dim(self.padded) if self.padded is not None else self.token * self.block


USUAL = 8192
"""Tokens of a batch on large devices, where none is named."""
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "fp8_ds_mla")


def _check(anatomy: Anatomy, load: Load) -> None:
    """Which formats vLLM keeps: one for keys and values, no integers and no blocks of ggml."""
    kind = load.key_dtype
    if kind != load.value_dtype:
        raise InputError("vLLM keeps keys and values in one dtype", hint="give --kv-dtype one name")
    if kind.name not in DTYPES:
        raise InputError(
            f"the rule of vLLM's cache in {kind.name} is not known",
            hint=f"known: {', '.join(DTYPES)}",
        )
    widths = {
        int(m.keys + m.values) if m.kind == "latent" else 0 for m in anatomy.mixers if m.per_token
    }
    if kind.name == "fp8_ds_mla" and widths != {576}:
        raise InputError(
            "fp8_ds_mla is for latent attention of 512 + 64 elements alone",
            hint="try --kv-dtype fp8",
        )


def pool(anatomy: Anatomy, load: Load, rules: PoolRules) -> Cache:
    """The blocks that ``batch`` sequences of ``context`` tokens occupy, in bytes."""
    _check(anatomy, load)
    if load.in_flight is None:
        load = replace(load, in_flight=rules.in_flight)
    held = [m for m in anatomy.mixers if m.kind not in ("none", "shared")]
    if load.speculative:  # what guesses has attention of its own, in the same pool
        held += [p for p in anatomy.predicting if isinstance(p, Mixer)]
    if not load.hybrid:
        held = [replace(m, window=None, chunked=False) for m in held]
    mixers = [shared_heads(m, load.tp) for m in held]
    specs = _specs(mixers, load, rules)
    if not specs:
        return Cache(
            engine="vllm",
            rules=rules.name,
            rows=(),
            kv_bytes=Dim(0),
            per_token=Dim(0),
            state_bytes=Dim(0),
            tokens_allocated=Dim(0),
        )
    specs, notes = _unified(specs, load)
    groups = _grouped(specs, rules)
    size = max((_group_bytes(g) for g in groups), key=int)
    blocks = total(g[0][0].blocks for g in groups)
    each = [_row(s, load) for s in specs]
    state = total(r.state_bytes for r in each)
    wasted = sum(int(size) * int(g[0][0].blocks) for g in groups) - sum(
        int(s.page) * n * int(s.blocks) for g in groups for s, n in g
    )
    per_token = sum(int(size) // s[0][0].block for s in groups if s[0][0].kind != "recurrent")
    facts: dict[str, int | float | str] = {
        "block_size": specs[0].block,
        "bytes_per_block": int(size),
        "blocks_per_sequence": int(blocks),
        "groups": len(groups),
        "pool_bytes_per_token": per_token,
        "padding_bytes": wasted * int(load.batch),
    }
    return Cache(
        engine="vllm",
        rules=rules.name,
        rows=tuple(each),
        kv_bytes=load.batch * (blocks * size),
        per_token=total(r.per_token for r in each),
        state_bytes=state,
        tokens_allocated=dim(int(blocks) * specs[0].block) * load.batch,
        facts=facts,
        notes=tuple(notes),
    )


def _specs(mixers: list[Mixer], load: Load, rules: PoolRules) -> list[Spec]:
    block = load.block_size or _default_block(mixers)
    specs: list[Spec] = []
    for m in mixers:
        if m.compress_rate is not None:
            raise InputError(
                "the rule of vLLM's cache for compressed attention (DeepSeek-V4) is not known"
            )
        if m.per_token:
            specs += _attention(m, load, block)
    states = [m for m in mixers if m.states and int(_state(m, load))]
    if not states:
        return specs
    if not specs:
        # no attention: one block holds a sequence of any length (MambaSpec, kv_cache_interface.py)
        page = max(int(_state(m, load)) for m in states)
        return [_recurrent(m, int(load.context), page, load) for m in states]
    return _with_states(specs, states, load, rules)


def _default_block(mixers: list[Mixer]) -> int:
    """16 tokens; the kernels for latent attention need 64 (FlashMLA, the default on Hopper)."""
    return 64 if any(m.kind == "latent" for m in mixers) else 16


def _attention(m: Mixer, load: Load, block: int) -> list[Spec]:
    """The pages of one kind of attention layer; an indexer's keys are layers of their own."""
    token = token_bytes(replace(m, index_keys=Dim(0)), load)
    spec = [
        Spec(
            kind=kind_of(m),
            token=token,
            block=block,
            blocks=_blocks(m, load, block),
            window=int(m.window or 0),
            layers=m.layers,
            mixer=m,
        )
    ]
    if m.index_keys:
        # one byte per element and a float32 scale per 128 of them
        index = m.index_keys + ceil_div(m.index_keys, 128) * 4
        spec.append(
            Spec(
                kind="index",
                token=index,
                block=block,
                blocks=ceil_div(load.context, block),
                window=0,
                layers=m.layers,
                mixer=m,
            )
        )
    return spec


def _blocks(m: Mixer, load: Load, block: int) -> Dim:
    """Pages of one sequence at most: a window may begin inside a page and must survive the batches
    in flight.
    """
    if m.kind == "cross":
        return ceil_div(
            m.max_source if m.max_source is not None else load.source or load.context, block
        )
    if m.window is None:
        return ceil_div(load.context, block)
    flying = Dim((load.in_flight or 1) * (load.batched_tokens or USUAL), "tokens_in_flight")
    # kv_cache_interface.py, 0.33: ChunkedLocalAttentionSpec, then SlidingWindowSpec
    if m.chunked:
        return ceil_div(least(m.window + flying, load.context), block)
    return ceil_div(least(m.window - 1 + flying, load.context), block) + 1


def _state_blocks(load: Load) -> Dim:
    """States that a sequence holds: its own, one to resume from, one per guessed token."""
    return Dim((2 if load.prefix_caching else 1) + load.speculative)


def _state(m: Mixer, load: Load) -> Dim:
    """A sequence's state in one layer: vLLM keeps one column less of the convolution, and one dtype
    unless told.
    """
    return state_size(m, load, True, load.ssm_dtype or load.state_dtype)


def _with_states(
    specs: list[Spec], states: list[Mixer], load: Load, rules: PoolRules
) -> list[Spec]:
    """Hybrids: attention pages grow until they hold a state, and the state's page is padded to
    theirs.
    """
    # platforms/interface.py since 0.20, model_executor/models/config.py before
    per_token = max(int(s.token) for s in specs)
    latent = any(s.kind == "latent" for s in specs)
    least_block = max(specs[0].block, rules.latent if latent else 16)
    largest = max(int(_state(m, load)) for m in states)
    block = least_block * -(-largest // (least_block * per_token))
    page = per_token * block
    grown = [replace(s, block=block, blocks=_blocks(s.mixer, load, block)) for s in specs]
    return [*grown, *(_recurrent(m, block, page, load) for m in states)]


def _recurrent(m: Mixer, block: int, page: int, load: Load) -> Spec:
    """A recurrent layer's pages: a few states per sequence, each padded to a page."""
    return Spec(
        kind="recurrent",
        token=Dim(0),
        block=block,
        blocks=_state_blocks(load),
        window=0,
        layers=m.layers,
        mixer=m,
        padded=page,
    )


_WHOLE = ("full", "latent", "index")
"""Kinds of layers that hold every token."""


def _unified(specs: list[Spec], load: Load) -> tuple[list[Spec], list[str]]:
    """Different kinds share one pool, so their pages must be of one size: smaller blocks grow, or
    are padded.
    """
    # unify_kv_cache_spec_page_size in v1/core/kv_cache_utils.py
    sizes = {int(s.page) for s in specs}
    rules = {(s.kind in _WHOLE, s.window) for s in specs}
    if len(sizes) == 1 or len(rules) == 1:
        return specs, []
    largest = max(sizes)
    out, notes = [], []
    for s in specs:
        times, rest = divmod(largest, int(s.page))
        if times == 1 and not rest:
            out.append(s)
        elif not rest:
            block = s.block * times
            blocks = _blocks(s.mixer, load, block) if s.kind != "recurrent" else s.blocks
            out.append(replace(s, block=block, blocks=blocks))
        elif s.kind in ("latent", "index"):
            raise InputError("vLLM cannot pad pages of latent attention to those of other layers")
        else:
            out.append(replace(s, padded=largest))
            notes.append(
                f"pages of {s.kind} layers are padded from {int(s.page)} to {largest} bytes"
            )
    return out, notes


Group = list[tuple[Spec, int]]


def _grouped(specs: list[Spec], rules: PoolRules) -> list[Group]:
    """Layers of one rule in groups of equal size.

    One group for all where they differ in page size alone.
    """
    # get_kv_cache_groups in v1/core/kv_cache_utils.py; rules.merge is what changed there
    alike = {(s.kind in _WHOLE, s.window, s.block, int(s.blocks)) for s in specs}
    if len(alike) == 1:
        return [[(s, len(s.layers.indices)) for s in specs]]
    buckets: dict[tuple[object, ...], list[Spec]] = {}
    for s in specs:
        buckets.setdefault((s.kind, s.window, s.block, int(s.page)), []).append(s)
    counts = [sum(len(s.layers.indices) for s in b) for b in buckets.values()]
    most, fewest = max(counts), min(counts)
    size = most if most * rules.merge[1] < fewest * rules.merge[0] else fewest
    groups: list[Group] = []
    for bucket, n in zip(buckets.values(), counts, strict=True):
        n_groups = -(-n // size)
        groups += [[(bucket[0], (n - i + n_groups - 1) // n_groups)] for i in range(n_groups)]
    return groups


def _group_bytes(group: Group) -> Dim:
    return total(Dim(n) * s.page for s, n in group)


def _row(s: Spec, load: Load) -> Row:
    """What the layers of one rule occupy, before groups are padded."""
    count = s.layers.count
    if s.kind == "recurrent":
        return Row(
            kind="recurrent",
            layers=s.layers,
            tokens=None,
            kv_bytes=Dim(0),
            state_bytes=count * load.batch * s.blocks * s.page,
        )
    grows = s.window == 0 and s.kind != "cross"
    per_token = count * s.token if grows else Dim(0)
    return Row(
        kind=s.kind,
        layers=s.layers,
        tokens=s.blocks * s.block,
        kv_bytes=count * load.batch * s.blocks * s.page,
        state_bytes=Dim(0),
        per_token=per_token,
    )
