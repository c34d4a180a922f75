"""What a picture shows, apart from how it is drawn: as text, or by matplotlib into a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Say = Callable[[float], str]


def plain(value: float) -> str:
    """A number in four digits, a large one whole."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars, one below the other; with several series each label has one bar of every series."""

    title: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[float]]]
    unit: str
    say: Say = plain


@dataclass(frozen=True, slots=True)
class Stack:
    """Bars of parts that follow each other, to one scale, and a limit where there is one.

    ``binary`` sizes have marks at powers of two.
    """

    title: str
    bars: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    unit: str
    say: Say = plain
    limit: tuple[str, float] | None = None
    binary: bool = False

    @property
    def parts(self) -> list[str]:
        """The names of the parts, in the order in which they come first."""
        return list(dict.fromkeys(name for _, parts in self.bars for name, _ in parts))


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over one axis, and named points.

    Either axis may be logarithmic; ``binary`` as for Stack.
    """

    title: str
    x: str
    y: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    points: Sequence[tuple[str, float, float]] = ()
    say_x: Say = plain
    say_y: Say = plain
    log_x: bool = False
    log_y: bool = False
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Heat:
    """Numbers from 0 to 1 in rows and columns; what is above 1 stands out."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    numbers: Sequence[Sequence[float]]
    row_name: str = ""
    column_name: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements lie between neighbouring edges."""

    title: str
    edges: Sequence[float]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Bits:
    """The bits of some formats: per format its fields from the left, each with name and width."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, int]]]]


Picture: TypeAlias = Bars | Stack | Curves | Heat | Histogram | Bits
