"""Real weights under the slots of a list of parts, on a device, in one format.

What they took is kept count of.

Loaded whole, a tensor that is stored in the format it is run in stays mapped: no copy is made on
the CPU. Streamed, one layer at a time is loaded and let go, so that a checkpoint many times larger
than memory can be run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.errors import InputError
from llmcalc.live.files import Files
from llmcalc.live.packed import unpack
from llmcalc.live.ranks import ALONE, Ranks
from llmcalc.questions.layer_plan import LayerPlan
from llmcalc.sources import gguf
from llmcalc.sources.names import names_in
from llmcalc.text import shorten

Held = Tensor | list[Tensor]
Slots = dict[str, Any]
"""Slot to tensor, (out, in) for a matrix; of routed experts, to a list with one tensor per expert.
"""


@dataclass(slots=True)
class Loaded:
    """What was really put on the device: elements and bytes of parameters, buffers apart."""

    params: int = 0
    n_bytes: int = 0
    buffer_bytes: int = 0
    by_name: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, weight: Weight, name: str, tensors: list[Tensor]) -> None:
        """Counts one tensor, once however often it is loaded."""
        if name in self.by_name:
            return
        elements = sum(t.numel() for t in tensors)
        n_bytes = sum(t.numel() * t.element_size() for t in tensors)
        self.by_name[name] = (elements, n_bytes)
        if weight.buffer:
            self.buffer_bytes += n_bytes
        else:
            self.params += elements
            self.n_bytes += n_bytes


class Weights:
    """The tensors of a checkpoint, found by part and layer."""

    def __init__(
        self,
        files: Files,
        anatomy: Anatomy,
        device: torch.device,
        dtype: torch.dtype,
        quantisation: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.files = files
        self.device = device
        self.dtype = dtype
        self.ranks = ranks
        self.loaded = Loaded()
        self._whole = {w.name: w for w in anatomy.weights}
        self._settings = quantisation or {}
        self._is_gguf = files.header.format == "gguf"
        self._sandwich = gguf.norms_after(anatomy)
        shapes = {name: t.shape for name, t in files.header.tensors.items()}
        self._names = {} if self._is_gguf else names_in(anatomy, shapes)

    def layer(self, plan: LayerPlan) -> Slots:
        """The tensors of one layer, on the device."""
        return self.of(plan.weights, plan.index)

    def of(self, weights: Mapping[str, Weight], layer: int = 0) -> Slots:
        """Some weights by slot, on the device; tied ones are left to whoever holds their owner."""
        own = {slot: weight for slot, weight in weights.items() if not weight.tied_to}
        return {slot: self._put(weight, layer) for slot, weight in own.items()}

    def _put(self, share: Weight, layer: int) -> Held:
        """One weight, or this rank's share of it, on the device; a list where it is routed."""
        weight = self._whole[share.name]
        found = self._gguf(weight, layer) if self._is_gguf else self._safetensors(weight, layer)
        kept = [self.ranks.cut(weight, t).to(self.device, self.dtype) for t in found]
        name = weight.name.replace("{layer}", str(layer))
        self.loaded.add(weight, name, kept)
        return kept if weight.routed else kept[0]

    def _safetensors(self, weight: Weight, layer: int) -> list[Tensor]:
        """One tensor, or one for each expert: a matrix is (out, in)."""
        name = weight.name.replace("{layer}", str(layer))
        if weight.by_expert:
            each = [name.replace("{expert}", str(e)) for e in range(weight.experts)]
            return [weight.turned(self._read(n, weight, weight.shape)) for n in each]
        whole = self._read(name, weight, weight.full_shape)
        if weight.stacked:  # (E, ...)
            return [weight.turned(t) for t in whole.unbind(0)]
        return [weight.turned(whole)]

    def _read(self, name: str, weight: Weight, shape: tuple[int, ...]) -> Tensor:
        """A tensor in the shape that the config promises, unpacked where it is quantised."""
        here = self._names.get(name, name)
        packed = unpack(self.files, here, self._settings)
        if packed is not None:
            found: Tensor = weight.turned(packed)  # what is packed lies output first
        elif here in self.files:
            found = self.files.tensor(here)
        else:
            absent = self.files.header.absent.get(here)
            where = f": its shard {shorten(absent)} does not hold it" if absent else ""
            raise InputError(
                f"the checkpoint has no tensor {shorten(here)}{where}",
                hint="`llmcalc check` lists all differences",
            )
        if tuple(found.shape) != tuple(int(s) for s in shape):
            raise InputError(
                f"tensor {shorten(here)} has the shape {list(found.shape)}, the config says"
                f" {[int(s) for s in shape]}",
                hint="`llmcalc check` lists all differences",
            )
        return found

    def _gguf(self, weight: Weight, layer: int) -> list[Tensor]:
        """The same from a GGUF, where every matrix lies output first."""
        pattern = gguf.tensor_name(weight, self._sandwich)
        name = (pattern or weight.name).replace("{layer}", str(layer))
        if name not in self.files:
            raise InputError(
                f"the file has no tensor {shorten(name)}",
                hint="`llmcalc check` lists all differences",
            )
        found = self.files.tensor(name)
        shape = [int(s) for s in weight.applied_shape]
        many = weight.routed
        wanted = [int(weight.experts), *shape] if many else shape
        if list(found.shape) != wanted:
            raise InputError(
                f"tensor {name} has the shape {list(found.shape)}, the metadata says {wanted}"
            )
        return list(found.unbind(0)) if many else [found]
