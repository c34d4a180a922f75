"""The numbers that somebody gives for a calculation by hand, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmcalc.course.attention import Matrix
from llmcalc.errors import InputError
from llmcalc.text import shorten

LARGEST = 64
"""Rows and columns of a matrix that is printed whole."""


class Given:
    """A JSON object whose keys are asked for by name.

    A key that nobody asked for is an InputError.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.asked: dict[str, None] = {}

    def _get(self, key: str, default: Any) -> Any:
        self.asked[key] = None
        found = self.values.get(key, default)
        if found is None:
            raise InputError(f"{key!r} is not given")
        return found

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        self.asked[key] = None
        return key in self.values

    def matrix(self, key: str, default: Any = None) -> Matrix:
        """Rows of one length; a single row may stand without its outer brackets."""
        return matrix(key, self._get(key, default))

    def vector(self, key: str, default: Any = None) -> Matrix:
        """One row of numbers."""
        found = self.matrix(key, default)
        if len(found) != 1:
            raise InputError(f"{key} has {len(found)} rows; it is one row of numbers")
        return np.asarray(found[0])

    def number(
        self, key: str, default: float | None = None, least: float = -1e300, most: float = 1e300
    ) -> float:
        """One number within its bounds."""
        found = self._get(key, default)
        if not _is_number(found) or not least <= found <= most:
            raise InputError(
                f"{key} is {shorten(str(found))}; it must be a number from {least:g} to {most:g}"
            )
        return float(found)

    def whole(
        self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST
    ) -> int:
        """One whole number within its bounds."""
        found = self._get(key, default)
        if not _is_whole(found) or not least <= found <= most:
            raise InputError(f"{key} is {shorten(str(found))}; it must be from {least} to {most:,}")
        return int(found)

    def wholes(
        self, key: str, default: Sequence[int] | None = None, most: int = 10_000_000
    ) -> list[int]:
        """Several whole numbers, from 0 on."""
        found = self._get(key, default)
        fine = isinstance(found, Sequence) and 0 < len(found) <= LARGEST
        if not fine or not all(_is_whole(x) and 0 <= x <= most for x in found):
            raise InputError(
                f"{key} is a list of up to {LARGEST} whole numbers, each from 0 to {most:,}"
            )
        return list(found)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        found = self._get(key, default)
        if not isinstance(found, bool):
            raise InputError(f"{key} is true or false")
        return found

    def named(self) -> dict[str, Matrix]:
        """Every key as the name of a vector, all of one length."""
        self.asked = dict.fromkeys(self.values)
        found = {shorten(key): self.vector(key) for key in self.values}
        lengths = {len(vector) for vector in found.values()}
        if len(lengths) > 1 or not 2 <= len(found) <= LARGEST:
            raise InputError(f"two to {LARGEST} vectors of one length are compared")
        return found

    def all_read(self) -> None:
        """An InputError where a key was given that means nothing here."""
        for key in self.values:
            if key not in self.asked:
                raise InputError(f"{shorten(key)!r} is none of {', '.join(sorted(self.asked))}")


def matrix(name: str, value: Any) -> Matrix:
    """A matrix from rows of numbers, at most ``LARGEST`` wide and high, every number finite.

    >>> matrix("x", [1, 2]).shape
    (1, 2)
    """
    several = isinstance(value, list) and value and isinstance(value[0], list)
    rows = value if several else [value]
    if not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows):
        raise InputError(f"{name} is no matrix: rows of one length, in brackets")
    if len(rows) > LARGEST or len(rows[0]) > LARGEST:
        raise InputError(
            f"{name} is {len(rows)} x {len(rows[0])}; by hand it is at most {LARGEST} x {LARGEST}"
        )
    if not all(_is_number(x) for row in rows for x in row):
        raise InputError(f"{name} holds something that is no number")
    try:
        found = np.array(rows, dtype=np.float64)  # (rows, columns)
    except OverflowError:
        raise InputError(f"{name} holds a number beyond float64") from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds NaN or an infinity")
    return found


def _is_whole(value: Any) -> bool:
    """Whether JSON had a whole number there; true and false are whole numbers to Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)
