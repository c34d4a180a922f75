"""GGUF files taken apart and put together again without any check, so that every part can be made
wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

from llmcalc.formats.element import GGUF_DTYPES
from llmcalc.sources.gguf import _SCALARS
from tests.fuzz.hostile import NUMBERS, TEXTS, WHOLE

STRING, ARRAY = 8, 9
Value = tuple[int, Any]
"""Type and value; of an array the type of its items, and these as values."""


@dataclass
class Tensor:
    """One line of the tensor table: dimensions fastest first."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int = 0


@dataclass
class Gguf:
    """A file's parts; ``more`` is added to the counts of tensors and of pairs, ``rest``
    the data.
    """

    pairs: list[tuple[bytes, Value]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    rest: bytes = b""
    version: int = 3
    more: tuple[int, int] = (0, 0)


def built(file: Gguf) -> bytes:
    """The parts as a file."""
    counts = (
        n + more for n, more in zip((len(file.tensors), len(file.pairs)), file.more, strict=True)
    )
    out = (
        b"GGUF" + struct.pack("<I", file.version % 2**32) + b"".join(_packed(10, n) for n in counts)
    )
    out += b"".join(
        _packed(STRING, key) + struct.pack("<I", v[0] % 2**32) + _packed(*v)
        for key, v in file.pairs
    )
    for t in file.tensors:
        out += (
            _packed(STRING, t.name)
            + struct.pack("<I", len(t.dims))
            + b"".join(_packed(10, d) for d in t.dims)
        )
        out += struct.pack("<I", t.kind % 2**32) + _packed(10, t.offset)
    return out + b"\0" * (-len(out) % 32) + file.rest


def _packed(kind: int, value: Any) -> bytes:
    """A value as its type has it; what does not fit is cut to its bits."""
    if kind == STRING:
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item % 2**32, len(values)) + b"".join(
            _packed(item, v) for v in values
        )
    form = _SCALARS.get(kind, "I")
    number = value if isinstance(value, int | float) else 0
    if form in "fd":
        return struct.pack(f"<{form}", float(number) if abs(number) < 3e38 else float("inf"))
    size = struct.calcsize(f"<{form}")
    whole = int(number) if number == number and abs(number) != float("inf") else 0
    return (whole % 256**size).to_bytes(size, "little")


def placed(file: Gguf) -> Gguf:
    """The file with every tensor where it may lie and as much data as they need, up to 64 KiB."""
    end = 0
    for t in file.tensors:
        t.offset, elements = end, 1
        for d in t.dims:
            elements *= d
        form = GGUF_DTYPES.get(t.kind)
        end += -(-(form.bytes_for(elements) if form else 0) // 32) * 32
    file.rest = (file.rest + b"\0" * min(max(end, 0), 65_536))[: max(end, 0)]
    return file


def taken(data: bytes) -> Gguf | None:
    """The parts of a file, None where it cannot be followed to its data."""
    try:
        version, n_tensors, n_pairs = struct.unpack_from("<IQQ", data, 4)
        at, file = 24, Gguf(version=version)
        for _ in range(min(n_pairs, 1000)):
            key, at = _take(data, at, STRING)
            kind = struct.unpack_from("<I", data, at)[0]
            value, at = _take(data, at + 4, kind)
            file.pairs.append((key, (kind, value)))
        for _ in range(min(n_tensors, 1000)):
            name, at = _take(data, at, STRING)
            n_dims = struct.unpack_from("<I", data, at)[0]
            *dims, kind, offset = struct.unpack_from(f"<{min(n_dims, 8)}QIQ", data, at + 4)
            file.tensors.append(Tensor(name, list(dims), kind, offset))
            at += 16 + 8 * len(dims)
        file.rest = data[at + -at % 32 :]
    except (struct.error, IndexError, OverflowError):
        return None
    return file


def _take(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRING:
        length = struct.unpack_from("<Q", data, at)[0]
        return data[at + 8 : at + 8 + length], at + 8 + length
    if kind == ARRAY:
        item, length = struct.unpack_from("<IQ", data, at)
        at, values = at + 12, []
        for _ in range(min(length, 100_000)):
            value, at = _take(data, at, item)
            values.append(value)
        return (item, values), at
    form = "<" + _SCALARS.get(kind, "I")
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def changed(file: Gguf, rng: Random, keys: list[bytes]) -> Gguf:
    """The file with a few parts changed, its tensors put where they may lie more often than not."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_CHANGES)(file, rng, keys)
    if rng.random() < 0.05:
        file.more = (rng.choice(WHOLE), rng.choice(WHOLE))
    if rng.random() < 0.02:
        file.version = rng.choice(WHOLE)
    return placed(file) if rng.random() < 0.8 else file


def hostile(rng: Random, kind: int) -> Any:
    """A value for a type, of the kind that no honest file holds."""
    if kind == STRING:
        return rng.choice(TEXTS)
    if kind == ARRAY:
        item = rng.choice((4, 5, 6, STRING, STRING, ARRAY))
        return item, [hostile(rng, item) for _ in range(rng.choice((0, 1, 2, 3, 20)))]
    return rng.choice(NUMBERS)


def _value(file: Gguf, rng: Random, keys: list[bytes]) -> None:
    if file.pairs:
        i = rng.randrange(len(file.pairs))
        key, (kind, value) = file.pairs[i]
        kind = (
            kind
            if rng.random() < 0.6
            else rng.choice((0, 4, 5, 6, 7, STRING, ARRAY, 10, 11, 12, 13, 255))
        )
        if kind == ARRAY and isinstance(value, tuple) and rng.random() < 0.8:
            file.pairs[i] = key, (kind, _items(rng, *value))
        else:
            file.pairs[i] = key, (kind, hostile(rng, kind))


def _items(rng: Random, item: int, values: list[Any]) -> tuple[int, list[Any]]:
    """An array with one item changed, dropped, doubled or moved."""
    values = list(values)
    i = rng.randrange(len(values) + 1)
    how = rng.randrange(5)
    if how == 0:
        return item, [*values[:i], hostile(rng, item), *values[i + 1 :]]
    if how == 1:
        return item, values[:i]
    if how == 2:
        return item, [*values[:i], *values[i : i + 1], *values[i:]]
    if how == 3:
        return item, values[i:] + values[:i]
    item = rng.choice((0, 4, 5, 6, STRING, ARRAY))
    return item, [hostile(rng, item) for _ in values[:20]]


def _key(file: Gguf, rng: Random, keys: list[bytes]) -> None:
    """A pair dropped, doubled, or one more under a known key."""
    if file.pairs and rng.random() < 0.4:
        del file.pairs[rng.randrange(len(file.pairs))]
    elif file.pairs and rng.random() < 0.1:
        file.pairs.append(rng.choice(file.pairs))
    else:
        kind = rng.choice((4, 5, 6, 7, STRING, ARRAY))
        key = rng.choice(keys)
        file.pairs = [p for p in file.pairs if p[0] != key]
        file.pairs.append((key, (kind, hostile(rng, kind))))


def _tensor(file: Gguf, rng: Random, keys: list[bytes]) -> None:
    if not file.tensors or rng.random() < 0.2:
        file.tensors.append(
            Tensor(rng.choice(keys), [rng.choice((1, 2, 32, 64))] * rng.choice((0, 1, 2, 4)), 0)
        )
        return
    t = rng.choice(file.tensors)
    how = rng.randrange(6)
    if how == 0:
        t.kind = rng.choice((*GGUF_DTYPES, 4, 31, 255))
    elif how == 1 and t.dims:
        t.dims[rng.randrange(len(t.dims))] = rng.choice(
            (0, 1, 2, 8, 31, 32, 64, 256, 2**31, 2**63, 2**64 - 1)
        )
    elif how == 2:
        t.dims = t.dims[:-1] if rng.random() < 0.5 else [*t.dims, 1]
    elif how == 3:
        t.offset = rng.choice(WHOLE)
    elif how == 4:
        file.tensors.remove(t)
    else:
        t.name = rng.choice(keys)


_CHANGES = (_value, _value, _value, _key, _key, _tensor)
