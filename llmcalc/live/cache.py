"""The cache of a run: keys and values of the tokens that a query can see.

A layer with a window keeps ``min(tokens, window)`` tokens, latent attention its latent and one
rotary key, a recurrent layer its states. The bytes are those that the engine ``formula`` counts at
the capacity that was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.engines.cache import Load
from llmcalc.errors import UnavailableError
from llmcalc.live.device import DTYPES, FLOATS
from llmcalc.live.files import held_bytes


@dataclass(slots=True)
class Kept:
    """What one layer keeps: keys (B, n_kv, slots, d_h) and values (B, n_kv, slots, d_v).

    The token at place p lies in slot p mod slots.
    """

    keys: Tensor
    values: Tensor
    window: int | None
    length: int = 0

    @property
    def slots(self) -> int:
        """How many tokens fit."""
        return int(self.keys.shape[2])

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values to look at now, old and new, and their places; the new ones are kept.

        One new token is written first, so that nothing is copied; several are joined to what is
        held before.
        """
        new, slots = keys.shape[2], self.slots
        if self.length + new <= slots:
            self._write(keys, values)
            held = self.length
            return self.keys[:, :, :held], self.values[:, :, :held], self.places()
        if new == 1:
            self._write(keys, values)
            return self.keys, self.values, self.places()
        # a query may see what the newest tokens push out: join first, write afterwards
        held = min(self.length, slots)
        newest = torch.arange(self.length, self.length + new, device=keys.device)
        places = torch.cat((self.places(), newest))  # (held + T)
        all_keys = torch.cat((self.keys[:, :, :held], keys), 2)  # (B, n_kv, held + T, d_h)
        all_values = torch.cat((self.values[:, :, :held], values), 2)  # (B, n_kv, held + T, d_v)
        self._write(keys, values)
        return all_keys, all_values, places

    def places(self) -> Tensor:
        """The place of the token in each slot that is filled."""
        slots = self.slots
        slot = torch.arange(min(self.length, slots), device=self.keys.device)
        if self.length <= slots:
            return slot
        rounds = (self.length - 1 - slot) // slots  # how often each slot was written anew
        return slot + slots * rounds

    def _write(self, keys: Tensor, values: Tensor) -> None:
        """Puts new tokens into their slots; of more than fit, the last ones."""
        new, slots = keys.shape[2], self.slots
        skipped = max(0, new - slots)
        first = self.length + skipped
        begin = first % slots
        end = begin + new - skipped
        if end <= slots:
            self.keys[:, :, begin:end] = keys[:, :, skipped:]
            self.values[:, :, begin:end] = values[:, :, skipped:]
        else:
            # they go on at the front of the buffer
            where = torch.arange(first, self.length + new, device=keys.device) % slots
            self.keys[:, :, where] = keys[:, :, skipped:]
            self.values[:, :, where] = values[:, :, skipped:]
        self.length += new


@dataclass(slots=True)
class States:
    """What a recurrent layer keeps: the last columns of its convolution, and its state.

    ``conv`` is (B, d_in, K), ``recurrent`` (B, d_in, N).
    """

    conv: Tensor
    recurrent: Tensor


Layer = Kept | States


class Cache:
    """Every layer's share, and which tokens are padding."""

    def __init__(
        self,
        mixers: list[Mixer],
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.batch = batch
        self.capacity = capacity
        self.length = 0
        self.layers = [_layer(m, batch, capacity, dtype, device) for m in mixers]
        self.valid: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Every buffer."""
        found: list[Tensor] = []
        for layer in self.layers:
            if isinstance(layer, Kept):
                found += [layer.keys, layer.values]
            else:
                found += [layer.conv, layer.recurrent]
        return found

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return held_bytes(self.tensors())


def _layer(
    mixer: Mixer, batch: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> Layer:
    """The empty buffers of one layer."""

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=kind, device=device)

    if mixer.kind == "state":
        conv, recurrent = mixer.states
        fixed = torch.float32 if recurrent.dtype == "float32" else dtype
        return States(
            empty(batch, int(conv.channels), int(conv.width)),  # (B, d_in, K)
            empty(batch, int(recurrent.channels), int(recurrent.width), kind=fixed),  # (B, d_in, N)
        )
    seen = mixer.window or mixer.sight
    window = int(seen) if seen is not None else None
    slots = capacity if window is None else min(window, capacity)
    if mixer.kind == "latent":
        keys = empty(batch, 1, slots, int(mixer.keys))  # (B, 1, slots, r_kv)
        values = empty(batch, 1, slots, int(mixer.values))  # (B, 1, slots, d_r)
    else:
        heads = int(mixer.n_kv_heads)
        keys = empty(batch, heads, slots, int(mixer.d_qk))  # (B, n_kv, slots, d_h)
        values = empty(batch, heads, slots, int(mixer.d_v))  # (B, n_kv, slots, d_v)
    return Kept(keys, values, window)


_ANY = (
    DTYPES
    | {"int8": torch.int8}
    | {name: FLOATS[name] for name in ("float8_e4m3fn", "float8_e5m2")}
)
"""Formats that a cache is kept in."""


def allocate(anatomy: Anatomy, load: Load, engine: str, device: torch.device) -> list[Tensor]:
    """Every buffer of a model's cache at that load, really allocated.

    As we hold it, or as transformers does: that keeps one token less than the window where it
    grows as it goes, and Falcon's heads repeated.
    """
    if engine not in ("formula", "transformers"):
        raise UnavailableError(
            f"{engine} allocates its own pool, which is not made here",
            hint="--engine formula or transformers can be allocated and measured",
        )
    as_transformers = engine == "transformers"
    wanted = (load.key_dtype, load.value_dtype, load.state_dtype)
    kinds = tuple(_plain(kind.name) for kind in wanted)
    found: list[Tensor] = []
    for m in anatomy.mixers:
        if m.kind == "compressed" or load.tp > 1:
            raise UnavailableError(
                f"a cache of kind {m.kind} over {load.tp} ranks is not allocated here"
            )
        if m.kind in ("none", "shared"):
            continue
        for _ in m.layers.indices:
            found += _buffers(m, load, as_transformers, kinds, device)
    return found


def _plain(name: str) -> torch.dtype:
    if name not in _ANY:
        raise UnavailableError(f"a cache in {name} is not allocated here: torch has no such tensor")
    return _ANY[name]


def _buffers(
    m: Mixer,
    load: Load,
    as_transformers: bool,
    kinds: tuple[torch.dtype, ...],
    device: torch.device,
) -> list[Tensor]:
    """What one layer holds for all sequences; ``kinds`` are of keys, values and states."""
    keys, values, states = kinds
    batch = int(load.batch)

    def empty(*shape: int, kind: torch.dtype) -> Tensor:
        return torch.zeros(batch, *shape, dtype=kind, device=device)

    found: list[Tensor] = []
    for state in m.states:
        kind = _plain(state.dtype) if state.dtype else states
        found.append(empty(int(state.channels), int(state.width), kind=kind))  # (B, d_in, K or N)
    if m.per_token:
        slots = _slots(m, load, as_transformers)
        key_width, value_width = int(m.keys), int(m.values)
        if as_transformers and m.cached_heads:
            key_width = int(m.cached_heads) * int(m.d_qk)
            value_width = int(m.cached_heads) * int(m.d_v)
        found.append(empty(slots, key_width, kind=keys))  # (B, slots, n_kv·d_h or r_kv)
        found.append(empty(slots, value_width, kind=values))  # (B, slots, n_kv·d_v or d_r)
        found.append(empty(slots, int(m.index_keys), kind=keys))
    return found


def _slots(m: Mixer, load: Load, as_transformers: bool) -> int:
    """Tokens that one layer holds per sequence."""
    if m.kind == "cross":
        source = m.max_source if m.max_source is not None else load.source
        return int(source if source is not None else load.context)
    tokens = int(load.context)
    window = m.window if as_transformers else m.window or m.sight
    if window is not None:
        # DynamicSlidingWindowLayer keeps one less: transformers 5.24, cache_utils.py
        less = 1 if as_transformers and not load.static else 0
        tokens = min(tokens, int(window) - less)
    if m.max_source is not None:
        tokens = min(tokens, int(m.max_source))
    return max(tokens, 0) + int(m.extra_tokens or 0)
