"""Models by their hub id: the config through huggingface_hub and its cache, headers by the first bytes of every shard.

What comes from there is untrusted: it is read by the same bounded readers as any file, and nothing of it is executed.
``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and proxies mean what they mean to huggingface_hub.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, LlmcalcError, UnavailableError
from llmcalc.sources.header import Header
from llmcalc.text import safe, shorten

_PLACE = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?(?::([\w./-]+))?")
_PAGE = re.compile(r"https?://[\w.:-]+/([\w.-]+/[\w.-]+)(?:/(?:tree|blob|resolve)/([\w.-]+)(?:/(.*))?)?/?")
_COMMIT = re.compile("[0-9a-f]{40}")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_JOBS = 16
_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is: its repository, a branch, tag or commit, and a file inside where one is meant."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "")


def place(name: str) -> Place | None:
    """The place that a hub id or the address of a model's page names, or None.

    >>> place("hf://openai-community/gpt2@main"), place("https://huggingface.co/openai-community/gpt2").repo
    (Place(repo='openai-community/gpt2', revision='main', file=None), 'openai-community/gpt2')
    """
    found = _PAGE.fullmatch(name) or _PLACE.fullmatch(name)
    if found is None or ".." in name:
        return None
    return Place(found[1], found[2], found[3] or None)


def config(where: Place) -> Path | None:
    """The repository's config.json in the local cache, fetched where it is not there; None where it has none."""
    if where.file is not None and where.file != "config.json":
        raise UnavailableError(
            f"one file of a repository, {shorten(where.file)}, is not read over the network",
            hint=f"download it and name it, or count the whole: {where}",
        )
    return _cached(where, "config.json")


def file(where: Place, name: str) -> Path | None:
    """One small file of the repository, a tokenizer's: in the local cache, fetched where it is not there."""
    return _cached(where, name)


def header(where: Place) -> Header:
    """The header of a repository's safetensors, shard by shard, of each the first bytes alone."""
    from llmcalc.sources import safetensors

    path = _cached(where, _INDEX)
    if path is None:
        return _first_bytes(where, _SINGLE)
    index = safetensors.open_index(path)
    if all(shard.is_file() for shard in index.shards.values()):
        return safetensors.read_shards(index)
    with ThreadPoolExecutor(_JOBS) as pool:
        headers = list(pool.map(lambda name: _first_bytes(where, name), index.shards))
    return index.merge(dict(zip(index.shards, headers, strict=True)))


def _quiet() -> None:
    """Neither bars nor warnings of the library: what it does is small, and what fails is said in one line."""
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()


def _cached(where: Place, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    _quiet()
    if where.revision is not None and _COMMIT.fullmatch(where.revision):  # what it holds never changes
        held = try_to_load_from_cache(where.repo, file, revision=where.revision)
        if isinstance(held, str):
            return Path(held)
    try:
        return Path(hf_hub_download(where.repo, file, revision=where.revision))
    except LocalEntryNotFoundError as error:  # it is an EntryNotFoundError too, and says something else
        raise _failure(error, where) from None
    except EntryNotFoundError:
        return None
    except Exception as error:
        raise _failure(error, where) from None


def _first_bytes(where: Place, file: str) -> Header:
    """The header of one remote file: its length, then as much; the connection is closed where the header ends."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    from llmcalc.sources import safetensors

    _quiet()
    url = hf_hub_url(where.repo, file, revision=where.revision)
    asked = {**build_hf_headers(), "Range": "bytes=0-524287", "Accept-Encoding": "identity"}
    try:
        got, size = b"", 0
        while True:
            with get_session().stream("GET", url, headers=asked, timeout=_SECONDS) as response:
                hf_raise_for_status(response)
                size = _size(response.headers)
                for chunk in response.iter_bytes():
                    got += chunk
                    if len(got) >= 8 and len(got) >= 8 + _bounded(got):
                        return safetensors.parse(io.BytesIO(got), size, f"{where}/{file}")
            if response.status_code != 206 or len(got) < 8:
                return safetensors.parse(io.BytesIO(got), size, f"{where}/{file}")  # the whole file, or a broken one
            asked["Range"] = f"bytes={len(got)}-{8 + _bounded(got) - 1}"
    except LlmcalcError:
        raise
    except Exception as error:
        raise _failure(error, where) from None


def _bounded(got: bytes) -> int:
    """The header's length, at most what the format allows: the reader refuses the rest."""
    from llmcalc.sources.safetensors import HEADER_LIMIT

    length = int.from_bytes(got[:8], "little")
    return length if length <= HEADER_LIMIT else 0


def _size(headers: Mapping[str, Any]) -> int:
    """Bytes of the whole file, by what the server says of the range or of the body."""
    total = str(headers.get("content-range", "")).rpartition("/")[2] or str(headers.get("content-length", ""))
    if not total.isdigit():
        raise UnavailableError("the server does not say how long the file is")
    return int(total)


def _failure(error: Exception, where: Place) -> LlmcalcError:
    """What went wrong, in one line that says what can be done."""
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "set HF_TOKEN, or `hf auth login`"
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{where.repo}"
        return UnavailableError(f"{where} is gated", hint=f"ask for access at {page}, then {token}")
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{where.repo} has no revision {shorten(where.revision or '')!r}")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return UnavailableError(f"the hub has no {where}, or it is private", hint=f"check the spelling; {token}")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return InputError(f"{where} holds no safetensors", hint="its config alone can be counted")
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{where} is no hub id: {safe(str(error).splitlines()[0])}")
    if isinstance(error, errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return UnavailableError(f"{where} is not in the local cache, and HF_HUB_OFFLINE is set")
    if status is not None:
        wait = "wait, " if status == 429 else ""
        return UnavailableError(f"the hub answered {status} for {where}", hint=f"{wait}try again later")
    cause = _cause(error)
    return UnavailableError(
        f"the hub cannot be reached, and {where} is not in the local cache ({cause})",
        hint="check the network, HF_ENDPOINT and proxies; or name a config.json, a directory or a preset",
    )


def _cause(error: BaseException) -> str:
    """The innermost reason, shortened to a line."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return safe(shorten(str(error).splitlines()[0] if str(error) else type(error).__name__, 80))
