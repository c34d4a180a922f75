"""Corpora beyond one machine: every file is counted where a Dask scheduler puts it.

Files are named by addresses that fsspec opens (s3://, gs://, a shared directory); a worker reads
its file in pieces, and only counts come back. Without a scheduler the same is done by the cores of
this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from llmcalc.errors import InputError, LlmcalcError, UnavailableError, install
from llmcalc.text import shorten
from llmcalc.tokens import corpus
from llmcalc.tokens.count import Counts, count

Tell = Callable[[int, int], None]
"""Called with how many files are counted, and of how many."""
_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Ask:
    """How every file is counted: under which tokenizer, which field, what to do with oddities."""

    tokenizer: str
    field: str = "text"
    special: str = "refuse"
    errors: str = "strict"


Found = tuple[str, Counts, "int | None"]
"""A file, its counts, and how many records it holds."""


def expanded(words: Sequence[str]) -> list[str]:
    """Files that addresses and their patterns name; one that matches nothing is an InputError."""
    import fsspec

    found: list[str] = []
    for word in words:
        try:
            system, path = fsspec.core.url_to_fs(word)
            scheme = word.partition("://")[0] + "://" if "://" in word else ""
            matches = sorted(system.glob(path)) if any(c in path for c in "*?[") else [path]
            there = [p for p in matches if system.isfile(p)]
        except ImportError as error:
            raise UnavailableError(
                f"{shorten(word)} needs a package that is not here ({shorten(str(error), 80)})",
                hint=install("cluster"),
            ) from None
        except (OSError, ValueError) as error:
            raise UnavailableError(
                f"{shorten(word)} cannot be looked at: {shorten(str(error), 80)}"
            ) from None
        if not there:
            raise InputError(f"no file is called {shorten(word)}")
        found += [p if "://" in p else scheme + p for p in there]
    return found


def counted(files: Sequence[str], ask: Ask, scheduler: str | None, tell: Tell) -> list[Found]:
    """The counts of every file, in the order of the files."""
    results: dict[str, Found] = {}
    done = _on_cluster(files, ask, scheduler) if scheduler else (one(f, ask) for f in files)
    for number, found in enumerate(done, 1):
        results[found[0]] = found
        tell(number, len(files))
    return [results[file] for file in files]


def one(file: str, ask: Ask) -> Found:
    """The counts of one file, wherever this runs."""
    import fsspec

    from llmcalc.tokens.find import named

    tokenizer, shown = named(ask.tokenizer), shorten(file.rpartition("/")[2])
    try:
        if corpus.is_corpus(file):
            with fsspec.open(file, "rb") as opened:
                counts, n = corpus.count(tokenizer, opened, ask.field, ask.special, file)
            return file, counts, n
        with fsspec.open(file, "rb") as opened:
            return file, count(tokenizer, opened, ask.special, ask.errors, shown), None
    except LlmcalcError:
        raise
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from None


def _asked(file: str, ask: Ask) -> tuple[Found | None, tuple[str, str, str | None]]:
    """The same as an answer that goes over a network: counts, or an error in words."""
    try:
        return one(file, ask), ("", "", None)
    except LlmcalcError as error:
        return None, (type(error).__name__, str(error), error.hint)


def _on_cluster(files: Sequence[str], ask: Ask, scheduler: str) -> Iterator[Found]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise UnavailableError("--cluster needs Dask", hint=install("cluster")) from None
    try:
        client = distributed.Client(scheduler, timeout=_SECONDS)
    except (OSError, ValueError, RuntimeError) as error:
        said = shorten(str(error), 80) or type(error).__name__
        raise UnavailableError(
            f"no Dask scheduler answers at {shorten(scheduler)} ({said})",
            hint="`dask scheduler` starts one, `dask worker tcp://...` a worker",
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise UnavailableError(
                f"the scheduler at {shorten(scheduler)} has no workers",
                hint=f"dask worker {shorten(scheduler)}",
            )
        running = client.map(_asked, list(files), ask=ask, pure=False)
        try:
            for future in distributed.as_completed(running):
                found, (kind, message, hint) = _result(future)
                if found is None:
                    passing = kind == "UnavailableError"
                    raise (UnavailableError if passing else InputError)(message, hint=hint)
                yield found
        finally:
            client.cancel(running)


def _result(future: Any) -> tuple[Found | None, tuple[str, str, str | None]]:
    try:
        return future.result()  # type: ignore[no-any-return]
    except Exception as error:  # what a worker without llmcalc says, or one that was lost
        said = f"{type(error).__name__}: {shorten(str(error), 100)}"
        return None, ("UnavailableError", f"a worker failed: {said}", "workers need llmcalc too")
