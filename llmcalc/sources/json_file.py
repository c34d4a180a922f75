"""JSON objects from files that nobody has to trust: bounded in size, one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError

LIMIT = 8_000_000
DEEPEST = 100
MOST = 200_000
"""Lists and objects in one file; the largest real ones hold some thousands."""


def read_json(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """The JSON object in a file of at most ``limit`` bytes."""
    return parse_json(read_bytes(path, limit), path.name)


def read_bytes(path: Path, limit: int = LIMIT) -> bytes:
    """A file of at most ``limit`` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise InputError(f"{path.name} has {size} bytes; at most {limit} are read")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or 'unreadable'}") from None


def parse_json(data: bytes | str, name: str) -> dict[str, Any]:
    """The JSON object in a text; ``name`` says in an error whose it is.

    >>> parse_json('{"n": 1}', "a text")
    {'n': 1}
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    # an empty list takes far more memory than its two bytes
    if text.count(b"[") + text.count(b"{") > MOST:
        raise InputError(f"{name} holds more than {MOST:,} lists and objects")
    try:
        value = json.loads(data)
    except RecursionError:
        raise InputError(f"{name} is nested too deeply to be read") from None
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from None
    if too_deep(value):
        raise InputError(f"{name} is nested too deeply to be read")
    if not isinstance(value, dict):
        raise InputError(f"{name} holds a JSON {type(value).__name__}, not an object")
    return value


def too_deep(value: Any) -> bool:
    """Whether lists and objects lie in one another more than ``DEEPEST`` times."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True
