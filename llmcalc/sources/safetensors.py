"""The header of a safetensors file, or of all shards that an index names; no weight is ever read.

Format: 8 bytes little-endian header length, that many bytes of JSON (name -> dtype, shape,
data_offsets), then the data without gaps (huggingface/safetensors, README "Format").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from llmcalc.errors import HeaderError
from llmcalc.formats.element import DType, find_dtype
from llmcalc.sources.header import Header, Stored
from llmcalc.sources.json_file import parse_json, read_bytes
from llmcalc.text import shorten, shown

HEADER_LIMIT = 100_000_000
"""The largest header that the format's own library accepts."""
_INDEX_LIMIT = 64_000_000
_MOST_TENSORS, _MOST_SHARDS = 1_000_000, 10_000


def read(path: Path) -> Header:
    """The header of one file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return parse(file, size, path.name)


def parse(file: BinaryIO, size: int, name: str) -> Header:
    """The header of an open file of ``size`` bytes.

    A fault is a HeaderError that names file and tensor.
    """
    length = _length(file.read(8), size, name)
    entries = _entries(file.read(length), length, name)
    metadata = _metadata(entries.pop("__metadata__", {}), name)
    tensors: dict[str, Stored] = {}
    spans: list[tuple[int, int, str]] = []
    for tensor, entry in entries.items():
        stored, begin = _stored(tensor, entry, name, 8 + length)
        tensors[tensor] = stored
        spans.append((begin, begin + stored.n_bytes, tensor))
    _check_spans(spans, size - 8 - length, name)
    return Header("safetensors", tensors, metadata)


def _length(prefix: bytes, size: int, name: str) -> int:
    if prefix.startswith(b"version "):
        raise HeaderError(
            f"{name} is a Git LFS pointer, not the file it stands for",
            hint="fetch the file itself with `git lfs pull`",
        )
    if len(prefix) < 8:
        raise HeaderError(
            f"{name} is not a safetensors file: it has {size} bytes, too few for a header length"
        )
    length = int.from_bytes(prefix, "little")
    first = prefix.lstrip()[:1]
    # a zip archive or a bare pickle: what torch.save has written. A length of 60 begins so too
    other = first in (b"<", b"{") or prefix[:2] in (b"PK", b"\x80\x02")
    if other and length + 8 > size:
        kind = {b"<": "an HTML page", b"{": "JSON"}.get(first, "a pickle (.bin or .pt)")
        raise HeaderError(f"{name} is not a safetensors file: it looks like {kind}")
    if length > HEADER_LIMIT:
        raise HeaderError(
            f"{name}: the header length is {length}, above the format's limit of {HEADER_LIMIT}"
        )
    if length + 8 > size:
        raise HeaderError(
            f"{name}: the header length is {length}, but the file has {size} bytes: truncated, or"
            " no whole JSON header"
        )
    return length


def _entries(text: bytes, length: int, name: str) -> dict[str, Any]:
    # counted in the bytes, before anything is made of them
    if text.count(b'"dtype"') > _MOST_TENSORS or text.count(b"[") > 3 * _MOST_TENSORS:
        raise HeaderError(
            f"{name}: the header has more than {_MOST_TENSORS:,} tensors, more than any model"
        )
    try:
        entries = json.loads(text)
        if not _each_once(text, entries):
            entries = json.loads(text, object_pairs_hook=_unique)
    except _Duplicate as duplicate:
        raise HeaderError(f"{name}: the header names {shorten(str(duplicate))} twice") from None
    except (ValueError, RecursionError):
        raise HeaderError(f"{name}: the header of {length} bytes is not JSON") from None
    if not isinstance(entries, dict):
        raise HeaderError(f"{name}: the header is not a JSON object")
    return entries


def _each_once(text: bytes, entries: Any) -> bool:
    """Whether as many keys were kept as the text has: then none stands twice."""
    if not isinstance(entries, dict):
        return True
    kept = len(entries) + sum(len(entry) for entry in entries.values() if isinstance(entry, dict))
    return text.count(b'":') == kept


class _Duplicate(Exception):
    """A name that stands twice in one JSON object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(key)
            seen.add(key)
    return found


def _metadata(metadata: Any, name: str) -> dict[str, str]:
    if metadata is None:  # null is as good as absent (safetensors 0.8)
        return {}
    if not isinstance(metadata, dict):
        raise HeaderError(f"{name}: __metadata__ is not an object of strings")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise HeaderError(
                f"{name}: __metadata__ holds {shorten(key)} = {shown(value)}, which is not a string"
            )
    return metadata


def _stored(tensor: str, entry: Any, name: str, data: int) -> tuple[Stored, int]:
    """One tensor, and where its bytes begin behind ``data``, the header's end."""

    def fault(what: str) -> HeaderError:
        return HeaderError(f"{name}: tensor {shorten(tensor)} {what}")

    if not isinstance(entry, dict) or not entry.keys() >= _KEYS:
        raise fault("lacks dtype, shape or data_offsets")
    kind = _kind(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if kind is None:
        raise fault(f"has the dtype {shown(entry['dtype'])}, which is unknown")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > 64:
        raise fault(f"has the shape {shown(shape)}, not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise fault(f"has the data_offsets {shown(offsets)}, not two offsets")
    elements = 1
    for size in shape:
        # Python's integers grow without end: a shape could ask for hours of multiplying
        elements *= size
        if elements > 2**63:
            raise fault(f"has the shape {shown(shape)}, more than any file holds")
    begin, end = offsets
    if elements % kind.block:
        raise fault(f"has {elements} elements, which end inside a byte")
    needed = kind.bytes_for(elements)
    if needed != end - begin:
        raise fault(
            f"needs {needed} bytes for {entry['dtype']} {shape}, its offsets give {end - begin}"
        )
    # the file's offsets count from the header's end
    return Stored(kind.name, tuple(shape), needed, name, data + begin), begin


_KEYS = frozenset(("dtype", "shape", "data_offsets"))


@lru_cache(maxsize=256)
def _kind(name: str) -> DType | None:
    """The format of that name; blocks of numbers, as ggml has them, are in no safetensors file."""
    found = find_dtype(name)
    return found if found is not None and found.block <= 4 else None


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _check_spans(spans: list[tuple[int, int, str]], data: int, name: str) -> None:
    end, previous = 0, ""
    for begin, stop, tensor in sorted(spans):
        if begin < end:
            raise HeaderError(
                f"{name}: tensor {shorten(tensor)} overlaps {shorten(previous)}: "
                f"its offset is {begin}, that one ends at {end}"
            )
        if begin > end:
            raise HeaderError(
                f"{name}: {begin - end} bytes before tensor {shorten(tensor)} belong to no tensor"
                f" (offset {begin})"
            )
        end, previous = stop, tensor
    if end > data:
        raise HeaderError(
            f"{name}: its tensors need {end} bytes, the file holds {data}: truncated?"
        )
    if end < data:
        raise HeaderError(f"{name}: {data - end} bytes after the last tensor belong to no tensor")


@dataclass(frozen=True, slots=True)
class Index:
    """A ``*.safetensors.index.json``: where it lies, what it says, every tensor's shard."""

    path: Path
    raw: Mapping[str, Any]
    places: Mapping[str, str]

    @property
    def shards(self) -> dict[str, Path]:
        """The shards by name, each below the index's own directory."""
        return {name: _shard(self.path, name) for name in dict.fromkeys(self.places.values())}

    def merge(self, headers: Mapping[str, Header]) -> Header:
        """The shards' headers as one: what is twice, absent, or contradicts the index is said."""
        tensors: dict[str, Stored] = {}
        twice: list[str] = []
        for name, header in headers.items():
            for tensor, stored in header.tensors.items():
                if tensor in tensors:
                    twice.append(tensor)
                    if self.places.get(tensor) != name:
                        continue
                tensors[tensor] = stored
        absent = {tensor: shard for tensor, shard in self.places.items() if tensor not in tensors}
        metadata = _plain(self.raw.get("metadata"))
        notes = tuple(_contradictions(metadata, tensors))
        if twice:
            where = shorten(self.places.get(twice[0], tensors[twice[0]].file))
            notes += (
                f"{len(twice)} tensors are in two shards, the first {shorten(twice[0])}: twice in"
                f" the files, and the index says that {where} counts",
            )
        return Header("safetensors", tensors, metadata, absent, notes)


def open_index(path: Path) -> Index:
    """The index in a file; shards outside its directory are refused."""
    return index_of(read_bytes(path, _INDEX_LIMIT), path)


def index_of(data: bytes, path: Path) -> Index:
    """The same of its bytes; ``path`` is where it lies, or would lie, beside its shards."""
    if data.count(b":") > 3 * _MOST_TENSORS:
        raise HeaderError(
            f"{path.name} names more than {_MOST_TENSORS:,} tensors, more than any model"
        )
    raw = parse_json(data, path.name)
    places = raw.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise HeaderError(f"{path.name}: weight_map is not an object of file names")
    if len(set(places.values())) > _MOST_SHARDS:
        raise HeaderError(f"{path.name} names more than {_MOST_SHARDS:,} shards")
    return Index(path, raw, places)


def read_index(path: Path) -> Header:
    """The headers of all shards that a ``*.safetensors.index.json`` names, as one."""
    return read_shards(open_index(path))


def read_shards(index: Index) -> Header:
    """The same of an index that has been read."""
    headers = {}
    for name, file in index.shards.items():
        if not file.is_file():
            raise HeaderError(
                f"{index.path.name} names the shard {shorten(name)}, which is missing"
            )
        headers[name] = read(file)
    return index.merge(headers)


def _shard(index: Path, name: str) -> Path:
    """The shard's path, which must lie directly in or below the index's own directory."""
    file = index.parent / name
    # a name comes from a file that nobody has to trust
    outside = Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name or "\0" in name
    if outside or not name.strip(".") or len(name.encode("utf-8", "surrogatepass")) > 250:
        raise HeaderError(
            f"{index.name} names the shard {shorten(name)}, which lies outside the model directory"
        )
    return file


def _plain(metadata: Any) -> dict[str, Any]:
    return metadata if isinstance(metadata, dict) else {}


def _contradictions(metadata: Mapping[str, Any], tensors: Mapping[str, Stored]) -> list[str]:
    counts: Mapping[str, Callable[[], int]] = {
        "total_size": lambda: sum(t.n_bytes for t in tensors.values()),
        "total_parameters": lambda: sum(t.elements for t in tensors.values()),
    }
    held = {key: count() for key, count in counts.items() if key in metadata}
    return [
        f"the index says {key} = {shown(metadata[key])}, the shards hold {value}; the shards count"
        for key, value in held.items()
        if metadata[key] != value
    ]
