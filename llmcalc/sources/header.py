"""Header: what a checkpoint file says of itself, the same record for safetensors and GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from llmcalc.formats.element import dtype

_BUFFER_ENDINGS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.attention.bias",
    ".attn.attention.masked_bias",
    ".rotary_emb.inv_freq",
    ".position_ids",
    ".e_score_correction_bias",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    ".exp_probs_b.bias",
)
"""Names that hold masks, frequencies and balancing terms: stored by some writers, never parameters.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file: dtype in our spelling, shape rows first, bytes and where they lie."""

    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    file: str = ""
    offset: int = field(default=0, compare=False)
    """Where its bytes begin in that file."""

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds, as stored."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a checkpoint, its metadata, and what is wrong or odd about it."""

    format: str
    tensors: Mapping[str, Stored]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    """Tensors that an index promises and their shard lacks: name to shard."""
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str | None:
        """A GGUF's ``general.architecture``; None where there is none."""
        arch = self.metadata.get("general.architecture")
        return arch if isinstance(arch, str) else None

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(t.n_bytes for t in self.tensors.values())

    @property
    def elements(self) -> int:
        """Elements of all tensors, whatever they are."""
        return sum(t.elements for t in self.tensors.values())

    def elements_by_dtype(self) -> dict[str, int]:
        """How many elements are stored in each format."""
        counts: dict[str, int] = {}
        for t in self.tensors.values():
            counts[t.dtype] = counts.get(t.dtype, 0) + t.elements
        return counts


def is_buffer(name: str, stored: Stored) -> bool:
    """Whether a tensor of that name holds no parameters: a mask, frequencies, positions."""
    dotted = f".{name}"
    return stored.dtype in ("int64", "bool") or dotted.endswith(_BUFFER_ENDINGS)


def is_packed(stored: Stored) -> bool:
    """Whether a tensor packs several weights into one integer: its elements are no parameters."""
    integers = ("int32", "uint32", "uint8", "int8", "int16", "uint16")
    return stored.dtype in integers and dtype(stored.dtype).block == 1
