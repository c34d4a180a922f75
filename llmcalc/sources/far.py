"""Files at an address: over HTTP, in the object stores that fsspec knows, on ModelScope.

All of them are read by the same bounded window and the same readers as a file of the hub: the first
bytes of a GGUF or safetensors file, and small files whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from llmcalc.errors import InputError, LlmcalcError, MissingError, UnavailableError
from llmcalc.sources import cache, gguf, safetensors
from llmcalc.sources.header import Header
from llmcalc.sources.json_file import LIMIT, parse_json
from llmcalc.sources.model import Model
from llmcalc.sources.window import Again, Answer, Open, Window
from llmcalc.text import shorten

STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss")
"""Schemes of addresses that fsspec opens."""
MODELSCOPE = "ms:"
_SECONDS = 20.0
_LARGEST_FILE = 200_000_000
_LARGEST_TABLE = 256 << 20
_PASSING = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder somewhere: what it is called, how a file in it is opened, which files it has."""

    label: str
    open: Callable[[str], Open]
    files: Callable[[], list[str]] | None = None


def is_address(name: str) -> bool:
    """Whether a name is an address that is read here; the hub's own pages are not.

    >>> is_address("s3://bucket/model.gguf"), is_address("ms:Qwen/Qwen3-0.6B"), is_address("gpt2")
    (True, True, False)
    """
    scheme, colon, _ = name.partition("://")
    if colon and scheme.lower() in STORES:
        return True
    if name.startswith(MODELSCOPE):
        return True
    if not name.startswith(("http://", "https://")):
        return False
    from llmcalc.sources import hub

    return urlsplit(name).hostname not in hub.hosts()


def read_name(name: str) -> str:
    """What a model at an address is called: its repository, or its file."""
    if name.startswith(MODELSCOPE):
        return shorten(name.removeprefix(MODELSCOPE))
    return shorten(name.rpartition("/")[2].partition("?")[0])


def read(name: str) -> Model:
    """The model at an address."""
    if name.startswith(MODELSCOPE):
        return _modelscope(name)
    base, _, file = name.rpartition("/")
    file = file.partition("?")[0]
    web = name.startswith("http")
    place = Place(
        shorten(base),
        partial(_web, name.partition("?")[2], base) if web else partial(_stored, base),
    )
    return _file(place, file, name)


def _file(place: Place, file: str, name: str) -> Model:
    """One file: a GGUF with its parts, a safetensors file, an index, or a config."""
    called = f"address {shorten(name, 120)}"
    if file.endswith(".gguf"):
        header = table(place, file)
        return Model(
            file,
            called,
            gguf.to_config(header),
            header,
            header.notes,
            fetch_vocabulary=partial(_vocabulary, place, file),
        )
    if file.endswith(".index.json"):
        header = _indexed(place, file)
        return Model(file, called, _config(place), header, header.notes)
    if file.endswith(".safetensors"):
        header = weights(place, file)
        return Model(file, called, _config(place), header, header.notes)
    if file.endswith(".json"):
        raw = parse_json(small(place, file, LIMIT), file)
        return Model(file.removesuffix(".json"), called, raw, fetch_file=partial(_kept, place))
    raise InputError(
        f"{shorten(name)} is no file that is read from an address",
        hint="a .gguf, a .safetensors, its .index.json, or a config.json",
    )


def _config(place: Place) -> dict[str, Any] | None:
    """The config.json beside a file, None where there is none."""
    with contextlib.suppress(MissingError):
        return parse_json(small(place, "config.json", LIMIT), "config.json")
    return None


def small(place: Place, name: str, limit: int = _LARGEST_FILE) -> bytes:
    """All bytes of a small file."""
    window = Window(place.open(name), f"{place.label}/{shorten(name)}", limit)
    window.grow(1)
    window.grow(max(window.size, 1))
    return bytes(window.data)


def weights(place: Place, name: str) -> Header:
    """The header of a safetensors file."""
    label = f"{place.label}/{shorten(name)}"
    window = Window(place.open(name), label, safetensors.HEADER_LIMIT + 8)
    window.grow(1 << 16)
    length = int.from_bytes(window.data[:8], "little")
    if len(window.data) >= 8 and length <= safetensors.HEADER_LIMIT:
        window.grow(8 + length)
    data = bytes(window.data[: 8 + min(length, safetensors.HEADER_LIMIT)])
    return safetensors.parse(io.BytesIO(data), window.size, name)


def _indexed(place: Place, name: str) -> Header:
    index = safetensors.index_of(small(place, name), Path("nowhere") / name)
    return index.merge({shard: weights(place, shard) for shard in index.shards})


def table(place: Place, name: str) -> Header:
    """Metadata and tensor table of a GGUF, with all its parts."""
    return gguf.merge([_one_table(place, part)[0] for part in gguf.parts(name)])


def _one_table(place: Place, name: str) -> tuple[Header, bytes]:
    label = f"{place.label}/{shorten(name)}"
    window, want = Window(place.open(name), label, _LARGEST_TABLE), 1 << 20
    while True:
        window.grow(want)
        try:
            header, used = gguf.parse_beginning(bytes(window.data), window.size, name)
            return header, bytes(window.data[:used])
        except gguf.MoreNeeded as more:
            want = max(min(2 * len(window.data), _LARGEST_TABLE), more.n_bytes)


def _vocabulary(place: Place, name: str) -> dict[str, Any]:
    first = gguf.parts(name)[0]
    return gguf.vocabulary_of(_one_table(place, first)[1], first)


def _kept(place: Place, name: str) -> Path | None:
    """A small file as one on this machine, for readers that need one."""
    key = hashlib.sha256(f"{place.label}/{name}".encode()).hexdigest()[:24]
    path = cache.folder() / "files" / key / PurePosixPath(name).name
    try:
        data = small(place, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except MissingError:
        return None
    except OSError as error:
        raise UnavailableError(f"{name} cannot be kept: {error.strerror or error}") from None
    return path


# --- how bytes come ------------------------------------------------------------------------------


def _web(query: str, base: str, name: str) -> Open:
    """Opens a file below an address by HTTP, with ranges where the server has them."""
    address = f"{base}/{quote(name)}" + (f"?{query}" if query else "")
    return partial(_requested, address, {})


@contextmanager
def _requested(address: str, more: dict[str, str], start: int, stop: int) -> Iterator[Answer]:
    from llmcalc.sources.hub import session

    host = shorten(urlsplit(address).hostname or "the server", 60)
    asked = {**more, "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    try:
        with session().stream("GET", address, headers=asked, timeout=_SECONDS) as response:
            status, headers = response.status_code, response.headers
            if status == 416:
                yield Answer(start, _size(headers, host), headers.get("etag"), False, iter(()))
                return
            _check(status, headers, host)
            partial_answer = status == 206
            begin = start if partial_answer else 0
            size, tag = _size(headers, host), headers.get("etag")
            yield Answer(begin, size, tag, not partial_answer, response.iter_raw())
    except (LlmcalcError, Again):
        raise
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        said = UnavailableError(f"{host} does not answer ({type(error).__name__})")
        if names & {"ReadError", "RemoteProtocolError", "ReadTimeout"}:
            raise Again(said) from None
        raise said from None


def _check(status: int, headers: Any, host: str) -> None:
    """What a server refuses, as an error that says what to do; what may pass is tried again."""
    if status in (200, 206):
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            raise UnavailableError(f"{host} sends the file compressed ({shorten(coding, 20)})")
        return
    if status in (404, 410):
        raise MissingError(f"{host} has no such file (status {status})")
    if status in (401, 403):
        raise UnavailableError(
            f"{host} does not give the file out (status {status})",
            hint="an address that is signed, or a token: MODELSCOPE_API_TOKEN for ModelScope",
        )
    error = UnavailableError(f"{host} answers with status {status}")
    if status in _PASSING:
        asked = str(headers.get("retry-after", ""))
        raise Again(error, float(asked) if asked.isdigit() else None)
    raise error


def _size(headers: Any, host: str) -> int:
    total = str(headers.get("content-range", "")).rpartition("/")[2]
    total = total or str(headers.get("content-length", ""))
    if not total.isdigit():
        raise UnavailableError(f"{host} does not say how long the file is")
    return int(total)


def _stored(base: str, name: str) -> Open:
    """Opens a file of an object store."""
    return partial(_fetched, f"{base}/{name}")


@contextmanager
def _fetched(address: str, start: int, stop: int) -> Iterator[Answer]:
    import fsspec

    scheme = address.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(address)
        info = system.info(path)
        size = int(info["size"])
        end = min(stop, size)
        data = system.cat_file(path, start=start, end=end) if start < end else b""
    except ImportError as error:
        raise UnavailableError(
            f"{scheme}:// needs a package that is not here ({shorten(str(error), 80)})",
            hint=f"pip install {_PACKAGES.get(scheme, 'the package that fsspec names')}",
        ) from None
    except FileNotFoundError:
        raise MissingError(f"{shorten(address)} is not there") from None
    except Exception as error:
        said = shorten(str(error), 100) or type(error).__name__
        raise UnavailableError(f"{shorten(address, 80)} cannot be read: {said}") from None
    yield Answer(start, size, str(info.get("ETag") or info.get("etag") or ""), False, iter((data,)))


_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


# --- ModelScope ----------------------------------------------------------------------------------

_ID = re.compile(r"ms:([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?(?::([\w./+-]+))?")


def _modelscope(name: str) -> Model:
    """A repository of ModelScope, or a file in it: ``ms:org/name[@revision][:file]``.

    Addresses as modelscope_hub 0.5 makes them (``_legacy_api.py``): a listing of files, and one
    file by its path.
    """
    found = _ID.fullmatch(name)
    if found is None or ".." in name:
        raise InputError(
            f"{shorten(name)} is no ModelScope id", hint="ms:org/name or ms:org/name:file"
        )
    repo, revision, file = found[1], found[2] or "master", found[3]
    place = _repository(repo, revision)
    if file is not None and "." in file:
        return _file(place, file, name)
    return _whole(place, name, repo, file)


def _repository(repo: str, revision: str) -> Place:
    root = f"{_endpoint()}/api/v1/models/{repo}/repo"
    token = os.environ.get("MODELSCOPE_API_TOKEN")
    more = {"Authorization": f"Bearer {token}"} if token else {}

    def open_file(file: str) -> Open:
        path = quote(file, safe="")
        return partial(_requested, f"{root}?Revision={revision}&FilePath={path}", more)

    def files() -> list[str]:
        address = f"{root}/files?Revision={revision}&Recursive=true"
        window = Window(partial(_requested, address, more), repo, 8_000_000)
        window.grow(1)
        window.grow(max(window.size, 1))
        listed = parse_json(bytes(window.data), "the listing of files")
        data = listed.get("Data")
        rows = data.get("Files") if isinstance(data, dict) else None
        paths = (row.get("Path") for row in rows or () if isinstance(row, dict))
        return [path for path in paths if isinstance(path, str)]

    return Place(repo, open_file, files)


def _endpoint() -> str:
    """``MODELSCOPE_ENDPOINT``, else the older ``MODELSCOPE_DOMAIN``, else modelscope.cn."""
    named = os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN")
    if not named:
        return "https://www.modelscope.cn"
    return (named if "://" in named else f"https://{named}").rstrip("/")


def _whole(place: Place, name: str, repo: str, quantisation: str | None) -> Model:
    from llmcalc.sources.from_hub import choose, first_parts

    assert place.files is not None
    names = place.files()
    if quantisation is not None:
        return _file(place, choose(names, quantisation, name), name)
    if "config.json" in names:
        raw = parse_json(small(place, "config.json", LIMIT), "config.json")
        return Model(
            repo,
            f"ModelScope {repo}",
            raw,
            fetch=lambda jobs, tell: _header(place, names),
            fetch_file=lambda file: _kept(place, file) if file in names else None,
        )
    ggufs = first_parts(names)
    if len(ggufs) == 1:
        return _file(place, ggufs[0], name)
    if ggufs:
        hint = f"name one: {name}:{shorten(ggufs[0])}"
        raise InputError(f"{repo} holds {len(ggufs)} GGUF files", hint=hint)
    if any(n.endswith((".safetensors", ".safetensors.index.json")) for n in names):
        header = _header(place, names)
        return Model(repo, f"ModelScope {repo}", None, header, header.notes)
    raise InputError(f"{repo} holds neither a config.json nor safetensors nor GGUF files")


def _header(place: Place, names: list[str]) -> Header:
    indexes = [n for n in names if n.endswith(".safetensors.index.json")]
    if indexes:
        return _indexed(place, min(indexes, key=len))
    files = [n for n in names if n.endswith(".safetensors")]
    if len(files) == 1 or "model.safetensors" in files:
        return weights(place, "model.safetensors" if "model.safetensors" in files else files[0])
    raise InputError(f"{place.label} holds {len(files)} safetensors files and no index")
