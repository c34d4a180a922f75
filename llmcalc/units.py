"""How counts, bytes and rates are printed, and how people's spellings of them are read."""

from __future__ import annotations

import re
from fractions import Fraction

from llmcalc.errors import InputError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNT = ("", " K", " M", " B", " T", " Q")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_BYTE_FACTORS = {
    **{unit.lower(): 1024**i for i, unit in enumerate(_BINARY)},
    **{unit.lower(): 1000**i for i, unit in enumerate(_DECIMAL)},
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}
_THOUSANDS = re.compile(r"\s*\d{1,3}(,\d{3})+(?!\d).*")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?|\.\d+)\s*([A-Za-z]*)\s*")


def exact(number: int) -> str:
    """A whole number with thousands separators: ``124,439,808``."""
    return f"{number:,}"


def count(number: int) -> str:
    """A count in decimal K, M, B, T with at least three digits: ``124.44 M``."""
    return _scaled(number, 1000, _COUNT, "")


def both(number: int) -> str:
    """The whole number, and from ten thousand on also how it is spoken of.

    >>> both(560), both(124439808)
    ('560', '124,439,808 (124.44 M)')
    """
    return exact(number) if abs(number) < 10_000 else f"{exact(number)} ({count(number)})"


def size(n_bytes: int, *, si: bool = False) -> str:
    """Bytes with two decimals: GiB = 2^30 and so on, or GB = 10^9 where ``si`` asks for it.

    >>> size(1073741824), size(1073741824, si=True), size(512)
    ('1.00 GiB', '1.07 GB', '512 B')
    """
    units = _DECIMAL if si else _BINARY
    return _scaled(n_bytes, 1000 if si else 1024, units, " ")


def _scaled(number: int, base: int, units: tuple[str, ...], gap: str) -> str:
    power = 0
    while power + 1 < len(units) and abs(number) >= base ** (power + 1):
        power += 1
    if power and power + 1 < len(units) and round(abs(number) / base**power, 2) >= base:
        power += 1
    return (
        f"{number}{gap}{units[0]}".rstrip()
        if power == 0
        else f"{number / base**power:.2f}{gap}{units[power]}"
    )


def percent(part: int, whole: int) -> str:
    """A share with one decimal; one too small to show is said to be under it."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


def plural(word: str, n: int) -> str:
    """The word, with an s unless there is one.

    >>> plural("token", 1), plural("token", 2)
    ('token', 'tokens')
    """
    return word if n == 1 else f"{word}s"


def several(n: int, word: str, many: str | None = None) -> str:
    """So many of them:

    ``1 token``, ``8,192 tokens``; ``many`` is a plural that does not end in s alone.
    """
    return f"{exact(n)} {many if many and n != 1 else plural(word, n)}"


def parse_bytes(text: str) -> int:
    """Bytes from ``80GB`` (10^9), ``8GiB`` (2^30), ``512`` or ``79.19 GiB``, whose part of a byte
    is dropped.

    >>> parse_bytes("8GiB"), parse_bytes("80GB")
    (8589934592, 80000000000)
    """
    return _parse(
        text, _BYTE_FACTORS | {"": 1}, "a size in bytes such as 80GB (10^9) or 8GiB (2^30)"
    )


def parse_count(text: str) -> int:
    """A count from ``70B``, ``70e9``, ``128k`` (1,000) or ``128Ki`` (1,024).

    >>> parse_count("70e9"), parse_count("8Ki")
    (70000000000, 8192)
    """
    return _parse(
        text, _FACTORS | {"ki": 1024, "mi": 1024**2}, "a count such as 8192, 128k or 70e9"
    )


def parse_tokens(text: str) -> tuple[int, bool]:
    """Tokens, and whether a suffix was used: ``k`` is 1,000 and ``K`` 1,024, as vLLM reads them.

    vLLM 0.33, ``utils/argparse_utils.py``, ``human_readable_int``.

    >>> parse_tokens("8k"), parse_tokens("8K"), parse_tokens("8192")
    ((8000, True), (8192, True), (8192, False))
    """
    powers = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    factor = powers.get(text[-1:])
    if factor is None:
        return parse_count(text), text[-1:].isalpha()
    count = parse_count(text[:-1]) if text[:-1].isdecimal() else None
    if count is not None:
        return count * factor, True
    return int(Fraction(parse_count(f"{text[:-1]}m")) * factor / 1000**2), True


def _parse(text: str, factors: dict[str, int], wanted: str) -> int:
    plain = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    match = _NUMBER.fullmatch(plain.replace("_", ""))
    if not match or match[2].lower() not in factors:
        raise InputError(f"{text!r} is not {wanted}")
    value = Fraction(match[1].rstrip(".")) * factors[match[2].lower()]
    if value.denominator != 1 and not (
        match[2] and match[2].lower() in _BYTE_FACTORS and "B" in wanted
    ):
        raise InputError(f"{text!r} is not a whole number; wanted {wanted}")
    return int(value)
