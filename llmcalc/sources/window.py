"""The first bytes of a far file: fetched as far as its header goes, whatever the server does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from llmcalc.errors import UnavailableError

T = TypeVar("T")

TRIES = 4
LONGEST_WAIT = 20.0
"""Seconds; a server that asks for more is not waited for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer: where its bytes begin, the whole file's size and tag, the bytes.

    ``whole`` says that the server sends the file to its end, whatever was asked for.
    """

    start: int
    size: int
    tag: str | None
    whole: bool
    chunks: Iterator[bytes]


Open = Callable[[int, int], AbstractContextManager[Answer]]
"""Asks for the bytes from a place up to, without, another."""


class Again(Exception):
    """A failure that may pass: what it was, and how many seconds the server asks to wait."""

    def __init__(self, error: Exception, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait


class _Changed(Exception):
    """The file is another one than a moment ago."""


class Window:
    """The first bytes of a remote file, as many as were asked for so far."""

    def __init__(self, open_at: Open, name: str, limit: int) -> None:
        self.open_at = open_at
        self.name = name
        self.limit = limit
        self._forget()

    def _forget(self) -> None:
        """Nothing is held, and nothing known of the file."""
        self.data = bytearray()
        self.size = -1
        self.tag: str | None = None

    def grow(self, n: int) -> None:
        """At least the first n bytes, or all where the file has fewer.

        A cut is taken up where it happened.
        """
        if n > self.limit:
            raise UnavailableError(f"{self.name}: more than {self.limit:,} bytes are needed of it")
        restarts = 0
        while True:
            try:
                patiently(lambda: self._once(n))
                return
            except _Changed:
                restarts += 1
                if restarts > 1:
                    raise UnavailableError(
                        f"{self.name} changes while it is read", hint="try again later"
                    ) from None
                self._forget()

    def _once(self, n: int) -> None:
        if len(self.data) >= n or len(self.data) == self.size:
            return
        with self.open_at(len(self.data), n) as answer:
            if self.size >= 0 and (answer.size, answer.tag) != (self.size, self.tag):
                raise _Changed
            self.size, self.tag = answer.size, answer.tag
            skip = len(self.data) - answer.start  # a server without ranges begins at the beginning
            want = min(n, self.size)
            for chunk in answer.chunks:
                self.data += chunk[skip:] if skip > 0 else chunk
                skip = max(skip - len(chunk), 0)
                if len(self.data) >= want:  # a server may send more than it was asked for
                    break
        if len(self.data) < want:
            said = f"{self.name}: the connection was cut after {len(self.data):,} bytes"
            raise Again(UnavailableError(said))


def patiently(once: Callable[[], T]) -> T:
    """Does it again after failures that may pass, as long apart as the server asks for.

    A bounded number of times.
    """
    trials = 0
    while True:
        try:
            return once()
        except Again as failure:
            trials += 1
            wait = 0.125 * 2**trials if failure.wait is None else failure.wait
            if trials == TRIES or wait > LONGEST_WAIT:
                raise failure.error from None
            time.sleep(wait)
