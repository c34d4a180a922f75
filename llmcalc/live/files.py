"""Tensors of a checkpoint as they lie in its files: mapped, so that only what is used is loaded.

Nothing is unpickled or executed: the header has been read and bounded by ``llmcalc.sources``, and
what is read here are the bytes between two of its offsets.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from llmcalc.errors import InputError
from llmcalc.formats.element import dtype
from llmcalc.live.device import FLOATS
from llmcalc.sources.header import Header, Stored

_TORCH = FLOATS | {
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "float8_e8m0fnu": torch.uint8,
}


class Files:
    """The tensors of a checkpoint under their names in the file."""

    def __init__(self, header: Header, folder: Path) -> None:
        self.header = header
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.header.tensors

    def tensor(self, name: str) -> Tensor:
        """One tensor in its stored shape and format; float32 where that packs blocks."""
        stored = self.header.tensors[name]
        if self.header.format == "gguf" and dtype(stored.dtype).block > 1:
            return self._dequantised(name, stored)
        kind = _TORCH.get(stored.dtype)
        if kind is None:
            raise InputError(f"tensor {name} is stored as {stored.dtype}, which torch cannot hold")
        if not stored.elements:
            return torch.empty(stored.shape, dtype=kind)
        return self._bytes(stored, kind).view(kind).view(stored.shape)

    def release(self) -> None:
        """Gives back the memory of pages that were looked at; they can be read again."""
        for mapped in self._maps.values():
            with suppress(AttributeError, OSError, ValueError):
                mapped.madvise(mmap.MADV_DONTNEED)

    def _mapped(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = self._folder / file
            try:
                with path.open("rb") as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise InputError(f"{path.name} cannot be read: {error}") from None
        return self._maps[file]

    def _bytes(self, stored: Stored, kind: torch.dtype = torch.uint8) -> Tensor:
        """A tensor's bytes, (n_bytes): mapped, and copied where ``kind`` would lie unaligned."""
        data = self._mapped(stored.file)
        if stored.offset + stored.n_bytes > len(data):
            raise InputError(f"{stored.file} has become shorter since its header was read")
        with warnings.catch_warnings():
            # torch warns that the mapping cannot be written to; it never is
            warnings.simplefilter("ignore")
            found = torch.frombuffer(
                data, dtype=torch.uint8, count=stored.n_bytes, offset=stored.offset
            )
        aligned = stored.offset % max(kind.itemsize, 1) == 0
        return found if aligned else found.clone()

    def _dequantised(self, name: str, stored: Stored) -> Tensor:
        """Rows of ggml blocks to float32, by the ``gguf`` package."""
        from llmcalc.formats.codecs.ggml import dequantise

        form = dtype(stored.dtype)
        blocks = stored.shape[-1] // form.block if stored.shape else 1
        rows = self._bytes(stored).view(-1, blocks * form.size)  # (rows, bytes of a row)
        return torch.from_numpy(dequantise(rows.numpy(), stored.dtype, name)).view(stored.shape)


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the elements of some tensors, storage that several share counted once."""
    seen: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        seen[tensor.data_ptr(), tensor.numel()] = tensor.numel() * tensor.element_size()
    return sum(seen.values())
