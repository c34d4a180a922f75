"""Text that came from a file, made safe for a terminal: nothing in it moves the cursor or reorders
the line.
"""

from __future__ import annotations

import unicodedata

_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def safe(text: str, keep: str = "") -> str:
    """The text with control, formatting and bidirectional characters written as escapes, but for
    those in ``keep``.

    >>> safe("layer" + chr(27) + "[31m")
    'layer\\\\x1b[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(char) if unicodedata.category(char) in _UNSAFE and char not in keep else char
        for char in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def shorten(text: str, limit: int = 80) -> str:
    """The text, safe, cut in the middle of an error line where it is absurdly long."""
    text = safe(text)
    return text if len(text) <= limit else f"{text[: limit - 12]}... ({len(text)} characters)"


def shown(value: object, limit: int = 80) -> str:
    """A value from a file as an error names it: written as Python does, safe, cut, whatever it
    holds.

    >>> shown("a"), shown([1, 2])
    ("'a'", '[1, 2]')
    """
    try:
        return shorten(repr(value), limit)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply to show"
