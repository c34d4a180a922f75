"""Headers that came over the network, kept on disk by revision and file, bounded in all.

Entries are written beside their place and moved there, so that a process that is killed leaves
nothing half; one that does not match the hash inside it is dropped. A cache that cannot be written
is no error: it costs time alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmcalc.errors import InputError
from llmcalc.units import parse_bytes

_MAGIC = b"llmcalc1"
_LARGEST = 512 << 20
DEFAULT_LIMIT = 1 << 30
_LOCK_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept header: what it is of, its bytes on disk, and when it was last read."""

    key: str
    path: Path
    n_bytes: int
    used: float


def folder() -> Path:
    """Where entries are: ``LLMCALC_CACHE_DIR``, else the user's cache directory."""
    named = os.environ.get("LLMCALC_CACHE_DIR")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return Path(user_cache_path("llmcalc")) / "headers"


def limit() -> int:
    """The most bytes that are kept: ``LLMCALC_CACHE_MAX`` (500MB; 0 keeps nothing), else 1 GiB."""
    named = os.environ.get("LLMCALC_CACHE_MAX")
    if not named:
        return DEFAULT_LIMIT
    try:
        return parse_bytes(named)
    except InputError as error:
        raise InputError(f"LLMCALC_CACHE_MAX: {error}") from None


def get(key: str) -> bytes | None:
    """What was kept under the key, or None; an entry that is broken is removed."""
    path = _path(key)
    try:
        whole = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
    except OSError:
        return None
    found = _open(whole)
    if found is None or found[0] != key:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # when it was last read: what is dropped first depends on it
    return found[1]


def put(key: str, data: bytes) -> None:
    """Keeps the data under the key; whoever is ``alone`` makes room afterwards."""
    if limit() == 0:
        return
    name = key.encode()
    body = len(name).to_bytes(4, "little") + name + zlib.compress(data, 3)
    whole = _MAGIC + hashlib.sha256(body).digest() + body
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        # in the same folder, so that moving it is one step of the file system
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(whole)
            Path(temporary).replace(_path(key))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError:
        return


def _path(key: str) -> Path:
    return folder() / (hashlib.sha256(key.encode()).hexdigest()[:40] + ".entry")


def _open(whole: bytes) -> tuple[str, bytes] | None:
    """Key and data of an entry, or None where it is not whole."""
    at = len(_MAGIC) + 32
    digest, body = whole[len(_MAGIC) : at], whole[at:]
    if not whole.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    end_of_key = 4 + int.from_bytes(body[:4], "little")
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(body[end_of_key:], _LARGEST)
        return (body[4:end_of_key].decode(), data) if unpacking.eof else None
    except (ValueError, zlib.error):
        return None


def entries() -> list[Entry]:
    """Every entry, the one that was read last first."""
    found = []
    for path in folder().glob("*.entry"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            with path.open("rb") as file:
                begin = file.read(len(_MAGIC) + 36)
                length = int.from_bytes(begin[-4:], "little")
                key = file.read(min(length, 4096)).decode("utf-8", "replace")
            found.append(Entry(key, path, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda e: -e.used)


def bound(most: int) -> list[Entry]:
    """Drops the entries that were not read for longest until at most so many bytes are left.

    What was dropped.
    """
    for path in folder().glob("*.part"):  # of a process that was killed
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()
    kept = 0
    dropped: list[Entry] = []
    for entry in entries():
        kept += entry.n_bytes
        if kept > most:
            with contextlib.suppress(OSError):
                entry.path.unlink()
                dropped.append(entry)
    return dropped


@contextmanager
def alone(key: str) -> Iterator[None]:
    """While one process fetches what belongs to the key, the others wait, and find it kept.

    Then room is made.
    """
    from filelock import FileLock, Timeout

    lock = None
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock = FileLock(_path(key).with_suffix(".lock"), timeout=_LOCK_SECONDS)
        lock.acquire()
    except (OSError, Timeout):
        lock = None  # without a lock a file is fetched twice, no more
    try:
        yield
    finally:
        # also where fetching failed: other entries may have come meanwhile
        bound(limit())
        if lock is not None:
            lock.release()
