"""What a reader may take: two seconds of processor time and 200 MB above what the process held
before.

Memory is the kernel's own high-water mark of resident pages (VmHWM), set back before each input:
address space would count mapped files and the arenas of threads, and a Python tracer would not see
what libraries in C and Rust take. What an earlier input left free inside the process is taken again
unseen, so a finding, or the lack of one, is certain in a fresh process alone (``python -m
tests.fuzz.run TARGET FILE``).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SECONDS, MEMORY = 2.0, 200 * 10**6
_allowed: list[float] = []
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Breach(Exception):
    """An input took more time or memory than a reader may."""


@contextmanager
def limits(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Raises Breach where the block takes more processor time or memory; slow Python code is
    stopped where it is.
    """
    late: list[str] = []

    def stop(_: int, frame: FrameType | None) -> None:
        late.append(f"more than {seconds} s")
        raise Breach(late[0])

    before, start = signal.signal(signal.SIGPROF, stop), _reset_peak()
    _allowed.append(seconds)
    renew()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        _allowed.pop()
    if late:  # a reader that catches everything has caught it
        raise Breach(late[0])
    taken = _bytes("VmHWM") - start
    if taken > memory:
        raise Breach(f"{taken // 10**6} MB more than before, at most {memory // 10**6} are allowed")


def renew() -> None:
    """Begins the time anew, for what a user would ask for in another command."""
    if _allowed:
        signal.setitimer(signal.ITIMER_PROF, _allowed[-1])


def _reset_peak() -> int:
    """Sets the high-water mark back to what is resident now, and gives that; 0 where there is no
    such file.
    """
    with suppress(OSError):
        _RESET.write_text("5")
    return _bytes("VmRSS")


def _bytes(key: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0
