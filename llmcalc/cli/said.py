"""What has to be said of how the command line was read: it goes among the notes of the answer."""

from __future__ import annotations

from contextvars import ContextVar

_SAID: ContextVar[tuple[str, ...]] = ContextVar("said", default=())


def say(note: str) -> None:
    """Keeps a note for the answer, once."""
    if note not in _SAID.get():
        _SAID.set((*_SAID.get(), note))


def said() -> tuple[str, ...]:
    """The notes that were kept, which are forgotten then."""
    found = _SAID.get()
    _SAID.set(())
    return found
