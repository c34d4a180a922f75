"""Models by their hub id: small files by its cache, headers by the first bytes of every shard.

What comes from there is untrusted: it is read by the same bounded readers as any file, and nothing
of it is executed. ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and proxies mean
what they mean to huggingface_hub.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from llmcalc.errors import InputError, LlmcalcError, MissingError, UnavailableError
from llmcalc.sources import cache
from llmcalc.sources.header import Header
from llmcalc.sources.model import JOBS
from llmcalc.sources.places import Place
from llmcalc.sources.window import Again, Answer, Window, patiently
from llmcalc.text import shorten

if TYPE_CHECKING:
    from llmcalc.sources.safetensors import Index

Tell = Callable[[int, int], None]
"""Called with how many files are read, and of how many."""

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_SECONDS = 20.0
_LARGEST_FILE = 200_000_000
_LARGEST_INDEX = 64_000_000
_LARGEST_TABLE = 256 << 20
_PASSING = (408, 429, 500, 502, 503, 504)


def quiet(*_: int) -> None:
    """Tells nobody."""


def file(where: Place, name: str) -> Path | None:
    """One small file of the repository in the local cache, fetched where it is not there.

    None where it has none.
    """
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    _quiet()
    if where.exact and (path := _held(where, name)) is not None:
        return path
    try:
        commit, size = _facts(where, name)
        if size > _LARGEST_FILE:
            raise InputError(
                f"{where}/{shorten(name)} has {size:,} bytes; at most {_LARGEST_FILE:,} are fetched"
            )
        there = Place(where.repo, commit)
        with cache.alone(f"{_endpoint()}/{there}/{name}"):  # of several processes one fetches
            held = _held(there, name)
            if held is None:
                return _keep(where, there, name, _whole(there, name, size))
            _point(where, there)
            return held
    except LlmcalcError:
        raise
    except Exception as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        if _may_pass(error):
            if (path := _held(where, name)) is not None:
                return path
            listed = cache.get(_listing(where))
            # an earlier listing says that there is no such file
            if listed is not None and name not in json.loads(listed):
                return None
        raise _failure(error, where) from None


def _whole(where: Place, name: str, size: int) -> bytes:
    """All bytes of a small file, by the same bounded requests that headers are read with."""

    def fetch(window: Window) -> int:
        window.grow(max(size, 1))
        return window.size

    window = Window(
        lambda start, stop: _opened(where, name, start, stop), f"{where}/{name}", _LARGEST_FILE
    )
    return bytes(window.data[: fetch(window)])


def _keep(where: Place, there: Place, name: str, data: bytes) -> Path:
    """The file in the hub's cache, under its commit; the branch that was asked for leads to it.

    The places are made of a commit of 40 hexadecimal digits and names that were looked at: whatever
    a server says, nothing is written outside the cache. (The library names its files by the
    server's ETag.)
    """
    path = _repository(where) / "snapshots" / str(there.revision) / name
    _write(path, data)
    _point(where, there)
    return path


def _point(where: Place, there: Place) -> None:
    """Notes the commit that a branch is at, so that it is found without the network."""
    branch = where.revision or "main"
    if not where.exact and re.fullmatch(r"\w[\w.-]*", branch):
        with contextlib.suppress(UnavailableError):  # a cache that is only read is no error
            _write(_repository(where) / "refs" / branch, str(there.revision).encode())


def _repository(where: Place) -> Path:
    """The repository's folder in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=where.repo, repo_type="model")


def _write(path: Path, data: bytes) -> None:
    """Writes beside the place and moves there: whoever reads finds all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # in the same folder, so that moving it is one step of the file system
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        said = error.strerror or "unreadable"
        raise UnavailableError(
            f"the hub's cache cannot be written: {said}", hint="HF_HOME names another place"
        ) from None


def _held(where: Place, name: str) -> Path | None:
    """A file in the hub's own cache, None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(where.repo, name, revision=where.revision)
    return Path(found) if isinstance(found, str) else None


def header(where: Place, jobs: int = JOBS, tell: Tell = quiet) -> Header:
    """The header of a repository's safetensors, shard by shard, of each the first bytes alone."""
    from llmcalc.sources.safetensors import read_shards

    where = where if where.exact else _at_commit(where)
    if cache.get(f"{_endpoint()}/{where}/{_SINGLE}") is not None:
        return safetensors(where, _SINGLE)
    with cache.alone(f"{_endpoint()}/{where}"):
        index = _index(where)
        if index is None:
            return safetensors(where, _SINGLE)
        if all(shard.is_file() for shard in index.shards.values()):
            return read_shards(index)
        return index.merge(_shards(where, index, jobs, tell))


def _at_commit(where: Place) -> Place:
    """The same place at the commit that the branch is at."""
    try:
        return Place(where.repo, _facts(where, _INDEX)[0])
    except Exception:
        return where


def _index(where: Place) -> Index | None:
    """The index of a repository's shards, from the hub's cache or by one request.

    None where it has none.
    """
    from llmcalc.sources.safetensors import index_of, open_index

    held = _held(where, _INDEX)
    if held is not None:
        return open_index(held)

    def fetch(window: Window) -> int:
        # most indexes are smaller: one request, and its answer says how long the file is
        window.grow(8 << 20)
        window.grow(window.size)
        return window.size

    try:
        data, _ = _beginning(where, _INDEX, _LARGEST_INDEX, fetch)
    except MissingError:
        return None
    beside = _held(where, "config.json")
    folder = beside.parent if beside is not None else Path("nowhere") / where.repo
    return index_of(data, folder / _INDEX)


def _shards(where: Place, index: Index, jobs: int, tell: Tell) -> dict[str, Header]:
    """The headers of all shards, so many at a time."""
    names: dict[str, list[str]] = {}
    for tensor, shard in index.places.items():
        names.setdefault(shard, []).append(tensor)
    headers: dict[str, Header] = {}

    def read(shard: str) -> None:
        headers[shard] = safetensors(where, shard, _guess(names[shard]))
        tell(len(headers), len(names))

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(read, shard) for shard in index.shards]
        try:
            for each in running:
                each.result()
        except BaseException:
            for each in running:
                each.cancel()
            raise
    return {shard: headers[shard] for shard in index.shards}


def gguf(where: Place, name: str) -> Header:
    """Metadata and tensor table of a GGUF inside the repository, with all its parts."""
    from llmcalc.sources import gguf as reader

    there = where if where.exact else Place(where.repo, _commit_of(where, name))
    with cache.alone(f"{_endpoint()}/{there}/{name}"):
        return reader.merge([_table(there, part) for part in reader.parts(name)])


def vocabulary(where: Place, name: str) -> dict[str, Any]:
    """The tokenizer's metadata of a GGUF inside the repository, its arrays whole."""
    from llmcalc.sources import gguf as reader

    there = where if where.exact else Place(where.repo, _commit_of(where, name))
    first = reader.parts(name)[0]
    data, _ = _beginning(there, first, _LARGEST_TABLE, _metadata_end)
    return reader.vocabulary_of(data, f"{there.repo}/{first}")


def _metadata_end(window: Window) -> int:
    """How far the table of a GGUF reaches, where nothing of it was kept."""
    from llmcalc.sources import gguf as reader

    want = 1 << 20
    while True:
        window.grow(want)
        try:
            return reader.parse_beginning(bytes(window.data), window.size, window.name)[1]
        except reader.MoreNeeded as more:
            want = max(min(2 * len(window.data), _LARGEST_TABLE), more.n_bytes)


def _commit_of(where: Place, name: str) -> str:
    """The commit that a branch is at.

    Without the network the one that it was at when it was last asked for.
    """
    key = f"{_endpoint()}/{where}:commit"
    try:
        commit, _ = _facts(where, name)
    except LlmcalcError:
        raise
    except Exception as error:
        known = cache.get(key) if _may_pass(error) else None
        if known is None:
            raise _failure(error, where) from None
        return known.decode()
    cache.put(key, commit.encode())
    return commit


def files(where: Place) -> list[str]:
    """The names of all files in the repository."""
    from huggingface_hub import HfApi

    _quiet()
    key = _listing(where)
    if where.exact and (listed := cache.get(key)) is not None:
        return list(json.loads(listed))

    def once() -> list[str]:
        try:
            info = HfApi().model_info(where.repo, revision=where.revision, timeout=_SECONDS)
        except Exception as error:
            _fail(error)
        return [str(s.rfilename) for s in info.siblings or []]

    try:
        found = patiently(once)
    except Exception as error:
        kept = cache.get(key) if _may_pass(error) else None
        if kept is None:
            raise _failure(error, where) from None
        return list(json.loads(kept))
    cache.put(key, json.dumps(found).encode())
    return found


def _listing(where: Place) -> str:
    return f"{_endpoint()}/{where}:files"


def _guess(names: list[str]) -> int:
    """How long a header with these tensors nearly always is at most: then one request does."""
    entries = sum(len(name) + 95 for name in names)  # dtype, shape and offsets in JSON
    return min(max(entries + 512, 16384), 2 << 20)


def safetensors(where: Place, name: str, guess: int = 1 << 16) -> Header:
    """The header of one remote safetensors file: its length, then as much.

    ``guess`` is how long it may be.
    """
    from llmcalc.sources.safetensors import HEADER_LIMIT, parse

    def fetch(window: Window) -> int:
        window.grow(guess)
        length = int.from_bytes(window.data[:8], "little")
        if len(window.data) >= 8 and length <= HEADER_LIMIT:  # the reader refuses the rest
            window.grow(8 + length)
        return 8 + length

    data, size = _beginning(where, name, HEADER_LIMIT + 8, fetch)
    return parse(io.BytesIO(data), size, f"{where.repo}/{name}")


def _table(where: Place, name: str) -> Header:
    """The table of one remote GGUF file; the window grows until the table ends."""
    from llmcalc.sources import gguf as reader

    label = f"{where.repo}/{name}"
    data, size = _beginning(where, name, _LARGEST_TABLE, _metadata_end)
    return reader.parse_beginning(data, size, label)[0]


def _beginning(
    where: Place, name: str, limit: int, fetch: Callable[[Window], int]
) -> tuple[bytes, int]:
    """The first bytes of a remote file and its size, fetched, or kept for an exact revision."""
    key = f"{_endpoint()}/{where}/{name}"
    if where.exact and (kept := cache.get(key)) is not None:
        return kept[8:], int.from_bytes(kept[:8], "little")
    window = Window(
        lambda start, stop: _opened(where, name, start, stop), f"{where.repo}/{name}", limit
    )
    try:
        used = fetch(window)
    except LlmcalcError:
        raise
    except Exception as error:
        raise _failure(error, where) from None
    data = bytes(window.data[:used])
    if where.exact:
        cache.put(key, window.size.to_bytes(8, "little") + data)
    return data, window.size


@contextmanager
def _opened(where: Place, name: str, start: int, stop: int) -> Iterator[Answer]:
    """A request for some bytes of a file.

    The session sends no token to the host that a redirect leads to.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    _quiet()
    url = hf_hub_url(where.repo, name, revision=where.revision)
    asked = {
        **build_hf_headers(),
        "Range": f"bytes={start}-{stop - 1}",
        "Accept-Encoding": "identity",
    }
    try:
        with get_session().stream("GET", url, headers=asked, timeout=_SECONDS) as response:
            tag = response.headers.get("etag")
            if response.status_code == 416:  # the file is shorter than what is already there
                yield Answer(start, _size(response.headers), tag, False, iter(()))
                return
            hf_raise_for_status(response)
            partial = response.status_code == 206
            coding = response.headers.get("content-encoding", "identity")
            if coding != "identity":  # nobody asked for it, and what it grows to is not bounded
                raise UnavailableError(
                    f"the server sends {shorten(name)} compressed ({shorten(coding, 20)})"
                )
            # a server without ranges sends the file from its beginning
            start = start if partial else 0
            yield Answer(start, _size(response.headers), tag, not partial, response.iter_raw())
    except (LlmcalcError, Again):
        raise
    except Exception as error:
        _fail(error)


def _size(headers: Mapping[str, Any]) -> int:
    """Bytes of the whole file, by what the server says of the range or of the body."""
    total = str(headers.get("content-range", "")).rpartition("/")[2]
    total = total or str(headers.get("content-length", ""))
    if not total.isdigit():
        raise UnavailableError(
            "the server does not say how long the file is", hint="HF_ENDPOINT names another hub"
        )
    return int(total)


def _facts(where: Place, name: str) -> tuple[str, int]:
    """Commit and size of a file, asked for with patience."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    _quiet()

    def once() -> tuple[str, int]:
        try:
            url = hf_hub_url(where.repo, name, revision=where.revision)
            seen = get_hf_file_metadata(url, timeout=_SECONDS)
        except Exception as error:
            _fail(error)
        commit, size = seen.commit_hash, seen.size
        if commit is None or size is None or not Place(where.repo, commit).exact:
            raise UnavailableError(
                "the server is no model hub: it names neither commit nor size", hint="HF_ENDPOINT"
            )
        return commit, size

    return patiently(once)


def session() -> Any:
    """The library's client, which makes every request; without the hub's token."""
    from huggingface_hub.utils import get_session

    return get_session()


def hosts() -> set[str]:
    """The hosts whose pages are models' addresses."""
    own = urlsplit(_endpoint()).hostname
    return {"huggingface.co", "www.huggingface.co", "hf.co", *([own] if own else [])}


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _quiet() -> None:
    """Neither bars nor warnings of the library: what fails is said in one line."""
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _fail(error: Exception) -> NoReturn:
    """Raises the failure, as one that may pass where it is: busy, too many requests, cut, slow."""
    status = _status(error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if status in _PASSING:
        asked = str(getattr(error, "response").headers.get("retry-after", ""))  # noqa: B009
        raise Again(error, float(asked) if asked.isdigit() else None)
    # httpx's names; a connection that was never made is not worth another try
    cut = names & {"TimeoutException", "ReadError", "RemoteProtocolError", "WriteError"}
    if cut and "ConnectTimeout" not in names:
        raise Again(error)
    raise error


def _may_pass(error: Exception) -> bool:
    """Whether what was kept may stand in: no network, or a hub that is busy."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return True
    status = _status(error)
    return status in _PASSING if status is not None else not isinstance(error, ValueError)


def _failure(error: Exception, where: Place) -> LlmcalcError:
    from huggingface_hub import constants

    from llmcalc.sources.hub_errors import explained

    return explained(error, where, _status(error), _endpoint(), bool(constants.HF_HUB_OFFLINE))
