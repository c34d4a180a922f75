"""The cache of a run, as the list of parts describes it: keys and values of the tokens that a query
can see.

A layer with a window keeps ``min(tokens, window)`` tokens, latent attention its latent and one
rotary key, a recurrent layer its states: the bytes are those of ``calc.cache.plain.formula`` at the
capacity that was asked for.
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
    """What one layer keeps: two buffers (B, H, slots, D) in which the token at place p lies in slot
    p mod slots.
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
            return self.keys[:, :, : self.length], self.values[:, :, : self.length], self.places()
        if new == 1:
            self._write(keys, values)
            return self.keys, self.values, self.places()
        places = torch.cat(
            (self.places(), torch.arange(self.length, self.length + new, device=keys.device))
        )
        held = min(self.length, slots)
        seen = (
            torch.cat((self.keys[:, :, :held], keys), 2),
            torch.cat((self.values[:, :, :held], values), 2),
        )
        self._write(keys, values)
        return *seen, places

    def places(self) -> Tensor:
        """The place of the token in each slot that is filled."""
        at, slots = torch.arange(min(self.length, self.slots), device=self.keys.device), self.slots
        return at if self.length <= slots else at + slots * ((self.length - 1 - at) // slots)

    def _write(self, keys: Tensor, values: Tensor) -> None:
        new, slots = keys.shape[2], self.slots
        first = max(0, new - slots)
        at = self.length + first
        if at % slots + new - first <= slots:
            begin = at % slots
            self.keys[:, :, begin : begin + new - first] = keys[:, :, first:]
            self.values[:, :, begin : begin + new - first] = values[:, :, first:]
        else:
            where = torch.arange(at, self.length + new, device=keys.device) % slots
            self.keys[:, :, where] = keys[:, :, first:]
            self.values[:, :, where] = values[:, :, first:]
        self.length += new


@dataclass(slots=True)
class States:
    """What a recurrent layer keeps: the last columns of its convolution (B, C, K), and its state
    (B, C, N).
    """

    conv: Tensor
    recurrent: Tensor
    begun: bool = False


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
        self.batch, self.capacity, self.length = batch, capacity, 0
        self.layers = [_layer(m, batch, capacity, dtype, device) for m in mixers]
        self.valid: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Every buffer."""
        return [
            t
            for x in self.layers
            for t in ((x.keys, x.values) if isinstance(x, Kept) else (x.conv, x.recurrent))
        ]

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return held_bytes(self.tensors())


def _layer(
    mixer: Mixer, batch: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> Layer:
    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=kind, device=device)

    if mixer.kind == "state":
        conv, recurrent = mixer.states
        fixed = torch.float32 if recurrent.dtype == "float32" else dtype
        return States(
            empty(batch, int(conv.channels), int(conv.width)),
            empty(batch, int(recurrent.channels), int(recurrent.width), kind=fixed),
        )
    seen = mixer.window or mixer.sight
    window = int(seen) if seen is not None else None
    slots = capacity if window is None else min(window, capacity)
    if mixer.kind == "latent":
        keys, values = (
            empty(batch, 1, slots, int(mixer.keys)),
            empty(batch, 1, slots, int(mixer.values)),
        )
    else:
        heads = int(mixer.n_kv_heads)
        keys, values = (
            empty(batch, heads, slots, int(mixer.d_qk)),
            empty(batch, heads, slots, int(mixer.d_v)),
        )
    return Kept(keys, values, window)


_ANY = (
    DTYPES
    | {"int8": torch.int8}
    | {name: FLOATS[name] for name in ("float8_e4m3fn", "float8_e5m2")}
)
"""Formats that a cache is kept in."""


def allocate(anatomy: Anatomy, load: Load, engine: str, device: torch.device) -> list[Tensor]:
    """Every buffer of a model's cache at that load, really allocated: as we hold it, or as
    transformers does.

    transformers keeps one token less than the window where it grows as it goes, and Falcon's heads
    repeated.
    """
    if engine not in ("formula", "transformers"):
        raise UnavailableError(
            f"{engine} allocates its own pool, which is not made here",
            hint="--engine formula or transformers can be allocated and measured",
        )
    keys, values, states = (
        _plain(k.name) for k in (load.key_dtype, load.value_dtype, load.state_dtype)
    )
    found: list[Tensor] = []
    for m in anatomy.mixers:
        if m.kind == "compressed" or load.tp > 1:
            raise UnavailableError(
                f"a cache of kind {m.kind} over {load.tp} ranks is not allocated here"
            )
        for _ in m.layers.indices if m.kind not in ("none", "shared") else ():
            found += _buffers(m, load, engine == "transformers", (keys, values, states), device)
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
    """What one layer holds for all sequences."""
    keys, values, states = kinds
    batch = int(load.batch)
    found = [
        torch.zeros(
            batch,
            int(s.channels),
            int(s.width),
            dtype=_plain(s.dtype) if s.dtype else states,
            device=device,
        )
        for s in m.states
    ]
    if m.per_token:
        slots = _slots(m, load, as_transformers)
        heads = (
            (int(m.cached_heads) * int(m.d_qk), int(m.cached_heads) * int(m.d_v))
            if m.cached_heads
            else None
        )
        widths = heads if heads is not None and as_transformers else (int(m.keys), int(m.values))
        found += [
            torch.zeros(batch, slots, w, dtype=k, device=device)
            for w, k in zip(widths, (keys, values), strict=True)
        ]
        found.append(torch.zeros(batch, slots, int(m.index_keys), dtype=keys, device=device))
    return found


def _slots(m: Mixer, load: Load, as_transformers: bool) -> int:
    """Tokens that one layer holds per sequence."""
    if m.kind == "cross":
        source = m.max_source if m.max_source is not None else load.source
        return int(source if source is not None else load.context)
    tokens = int(load.context)
    window = m.window if as_transformers else m.window or m.sight
    if window is not None:
        tokens = min(tokens, int(window) - (1 if as_transformers and not load.static else 0))
    if m.max_source is not None:
        tokens = min(tokens, int(m.max_source))
    return max(tokens, 0) + int(m.extra_tokens or 0)
