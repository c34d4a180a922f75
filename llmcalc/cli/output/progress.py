"""A line on standard error that says how far long work is."""

from __future__ import annotations

import sys
import time

from llmcalc.units import exact, percent


class Progress:
    """A line on standard error for work that takes long, on a terminal alone."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.before = 0
        self.last = time.monotonic()
        self.on = sys.stderr.isatty() and total > 50_000_000

    def tell(self, n_bytes: int) -> None:
        """So many bytes of the present file are done."""
        if self.on and time.monotonic() - self.last > 0.2:
            self.last = time.monotonic()
            share = percent(self.before + n_bytes, self.total)
            sys.stderr.write(f"\r{share} of {exact(self.total)} bytes ")
            sys.stderr.flush()

    def done(self, n_bytes: int) -> None:
        """A file is through."""
        self.before += n_bytes

    def end(self) -> None:
        """The line is wiped."""
        if self.on:
            sys.stderr.write("\r\x1b[K")


class Counting:
    """The same for files, of which so many are through."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.on = sys.stderr.isatty()
        self.shown = False

    def tell(self, done: int, of: int) -> None:
        """So many of them are through."""
        if self.on and of > 1:
            self.shown = True
            sys.stderr.write(f"\r{exact(done)} of {exact(of)} {self.what} ")
            sys.stderr.flush()

    def end(self) -> None:
        """The line is wiped."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
