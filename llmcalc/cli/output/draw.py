"""Pictures as text: lines of pieces, each with a colour that a terminal may show and that nothing
depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from itertools import pairwise

from llmcalc.cli.output.picture import Bars, Bits, Curves, Heat, Histogram, Picture, Stack
from llmcalc.cli.output.view import width
from llmcalc.text import safe

Piece = tuple[str, str]
"""A text and its colour by Rich's name, or none."""
Line = list[Piece]

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
FILLS = "█▓▒▞░▚▤▥"
MARKS = "●○×+◆◇"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES = " ░▒▓█"
_HEIGHT = 12
_DOTS, _SINGLE = "·:'", 20
"""A line's way is dotted; where it has few points, each of them is marked."""


def draw(picture: Picture, columns: int) -> list[Line]:
    """The picture in at most so many columns, its title first."""
    room = max(columns, 40)
    return [[(safe(picture.title), "bold")], *_body(picture, room)]


def as_text(lines: Sequence[Line]) -> str:
    """The lines without their colours."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


@singledispatch
def _body(picture: Picture, room: int) -> list[Line]:
    raise TypeError(type(picture))


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _labels(labels: Sequence[str], room: int) -> list[str]:
    """Labels of one width, cut in front where they are too long: a part's name ends with what tells
    it apart.
    """
    clean = [safe(label) for label in labels]
    most = min(max((width(label) for label in clean), default=0), max(room // 3, 8))
    cut = [label if width(label) <= most else "…" + label[-(most - 1) :] for label in clean]
    return [label + " " * (most - width(label)) for label in cut]


def _filled(value: float, most: float, cells: int) -> str:
    """A bar to the eighth of a cell."""
    eighths = round(8 * cells * value / most) if most > 0 and math.isfinite(value) else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8].strip())


@_body.register
def _(picture: Bars, room: int) -> list[Line]:
    many = len(picture.series) > 1
    names = _labels([name for name, _ in picture.series], room) if many else [""]
    labels = _labels(picture.labels, room)
    said = [[picture.say(v) for v in values] for _, values in picture.series]
    longest = max((len(s) for row in said for s in row), default=0)
    cells = (
        max(room - width(labels[0]) - longest - 4 - (width(names[0]) + 1 if many else 0), 10)
        if labels
        else 0
    )
    most = max((v for _, values in picture.series for v in values if math.isfinite(v)), default=0.0)
    lines: list[Line] = []
    for i, label in enumerate(labels):
        for s, (_, values) in enumerate(picture.series):
            head = label if s == 0 else " " * width(label)
            series = f" {names[s]}" if many else ""
            bar = _filled(values[i], most, cells)
            lines.append([(f"{head}{series}  ", ""), (bar, _colour(s)), (f" {said[s][i]}", "")])
    return lines


@_body.register
def _(picture: Stack, room: int) -> list[Line]:
    labels = _labels([label for label, _ in picture.bars], room)
    most = max(
        [sum(v for _, v in parts) for _, parts in picture.bars]
        + ([picture.limit[1]] if picture.limit else [])
    )
    cells = room - (width(labels[0]) if labels else 0) - 4
    order = picture.parts
    lines: list[Line] = []
    for label, (_, parts) in zip(labels, picture.bars, strict=True):
        line, done, total = [(f"{label}  ", "")], 0, 0.0
        for name, value in parts:
            total += value
            end = round(cells * total / most) if most else 0
            i = order.index(name)
            line.append((FILLS[i % len(FILLS)] * (end - done), _colour(i)))
            done = end
        if picture.limit is not None:
            at = round(cells * picture.limit[1] / most) if most else 0
            line.append(("·" * max(at - done, 0) + "|", "") if at >= done else ("!", "red"))
        lines.append(line)
    lines.append([])
    for i, name in enumerate(order):
        values = [
            picture.say(dict(parts)[name]) for _, parts in picture.bars if name in dict(parts)
        ]
        lines.append(
            [
                (FILLS[i % len(FILLS)], _colour(i)),
                (f" {safe(name)}  {', '.join(dict.fromkeys(values))}", ""),
            ]
        )
    if picture.limit is not None:
        lines.append([(f"| {picture.limit[0]}  {picture.say(picture.limit[1])}", "")])
    return lines


def _scale(values: Sequence[float], log: bool) -> tuple[float, float, Callable[[float], float]]:
    """The ends of an axis, and where on it, from 0 to 1, a value lies."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    if not log:
        low = min(low, 0.0)
    turn = math.log if log else float
    span = turn(high) - turn(low)
    return low, high, lambda v: (turn(v) - turn(low)) / span if span else 0.5


@_body.register
def _(picture: Curves, room: int) -> list[Line]:
    spots = [xy for _, line in picture.lines for xy in line] + [
        (x, y) for _, x, y in picture.points
    ]
    x_low, x_high, across = _scale([x for x, _ in spots], picture.log_x)
    y_low, y_high, up = _scale([y for _, y in spots], picture.log_y)
    ends = (picture.say_y(y_high), picture.say_y(y_low))
    side = max(map(len, ends))
    cells = max(room - side - 3, 20)
    field: list[list[Piece]] = [[(" ", "")] * cells for _ in range(_HEIGHT)]

    def put(x: float, y: float, piece: Piece) -> None:
        if (x <= 0 and picture.log_x) or (y <= 0 and picture.log_y):
            return
        column, row = round(across(x) * (cells - 1)), round((1 - up(y)) * (_HEIGHT - 1))
        field[min(max(row, 0), _HEIGHT - 1)][min(max(column, 0), cells - 1)] = (
            piece  # rounding may step over an end
        )

    for i, (_, line) in enumerate(picture.lines):
        for x, y in _between(line, cells, picture.log_x, picture.log_y):
            put(x, y, (_DOTS[i % len(_DOTS)], _colour(i)))
        for x, y in line if len(line) <= _SINGLE else ():
            put(x, y, (_mark(i, line), _colour(i)))
    for i, (_, x, y) in enumerate(picture.points):
        put(x, y, (_letter(i), "bold"))
    lines: list[Line] = [[(f"{' ' * side} {picture.y}", "dim")]]
    for n, row in enumerate(field):
        mark = ends[0] if n == 0 else ends[1] if n == _HEIGHT - 1 else ""
        lines.append([(f"{mark:>{side}} │", ""), *row])
    low, high = picture.say_x(x_low), picture.say_x(x_high)
    lines.append([(f"{' ' * side} └{'─' * cells}", "")])
    gap = cells - len(low) - len(high)
    lines.append([(f"{' ' * side}  {low}{picture.x:^{max(gap, 0)}}{high}", "")])
    if len(picture.lines) > 1 or picture.points:
        lines += [
            [(f"  {_mark(i, line)}", _colour(i)), (f" {safe(name)}", "")]
            for i, (name, line) in enumerate(picture.lines)
        ]
        lines += [
            [(f"  {_letter(i)} {safe(name)}", "")] for i, (name, _, _) in enumerate(picture.points)
        ]
    return lines


def _mark(i: int, line: Sequence[tuple[float, float]]) -> str:
    """What the i-th line is drawn with: each of its points marked, or dots where they are many."""
    signs = MARKS if len(line) <= _SINGLE else _DOTS
    return signs[i % len(signs)]


def _letter(i: int) -> str:
    return chr(ord("a") + i % 26)


def _into(value: float, log: bool) -> float:
    return math.log(value) if log and value > 0 else value


def _back(value: float, log: bool) -> float:
    return math.exp(value) if log else value


def _between(
    line: Sequence[tuple[float, float]], cells: int, log_x: bool, log_y: bool
) -> list[tuple[float, float]]:
    """A line's points and what lies on the way from each to the next, as straight as the axes show
    it.
    """
    out = []
    for (x0, y0), (x1, y1) in pairwise(line):
        a, b, c, d = _into(x0, log_x), _into(y0, log_y), _into(x1, log_x), _into(y1, log_y)
        for k in range(cells):
            t = k / cells
            out.append((_back(a + (c - a) * t, log_x), _back(b + (d - b) * t, log_y)))
    return out


@_body.register
def _(picture: Heat, room: int) -> list[Line]:
    labels = _labels(picture.rows, room)
    side = width(labels[0]) if labels else 0
    widest = max(map(width, picture.columns), default=2) + 1
    cell = max(2, min((room - side - 2) // max(len(picture.columns), 1), widest))
    shown = min(len(picture.columns), (room - side - 2) // cell)
    names = [
        safe(c) if width(c) < cell else "·" for c in picture.columns[:shown]
    ]  # a number that is cut would mislead
    heading = "".join(" " * (cell - 1 - width(name)) + name + " " for name in names)
    lines: list[Line] = [[(f"{' ' * side}  {heading}", "dim")]]
    for label, numbers in zip(labels, picture.numbers, strict=True):
        line: Line = [(f"{label}  ", "")]
        for x in numbers[:shown]:
            line.append((_shade(x) * (cell - 1) + " ", "cyan" if x <= 1 else "red"))
        lines.append(line)
    over = "  - too much" if any(x > 1 for row in picture.numbers for x in row) else ""
    if shown < len(picture.columns):
        lines.append([(f"{len(picture.columns) - shown} more columns do not fit", "dim")])
    lines.append(
        [(f"{_SHADES[1]} a little  {_SHADES[2]}  {_SHADES[3]}  {_SHADES[4]} all{over}", "dim")]
    )
    return lines


def _shade(x: float) -> str:
    if x > 1:
        return "-"
    return _SHADES[0 if x < 0.005 else min(1 + int(x * 4), 4)]


@_body.register
def _(picture: Histogram, room: int) -> list[Line]:
    labels = _labels([f"{edge:.4g}" for edge in picture.edges[:-1]], room)
    most = math.log1p(max(picture.counts, default=0))
    longest = max((len(f"{c:,}") for c in picture.counts), default=0)
    cells = max(room - width(labels[0]) - longest - 4, 10)
    lines: list[Line] = [
        [(f"{label}  ", ""), (_filled(math.log1p(c), most, cells), COLOURS[0]), (f" {c:,}", "")]
        for label, c in zip(labels, picture.counts, strict=True)
    ]
    return [*lines, [("from each value on; bars are logarithmic", "dim")]]


@_body.register
def _(picture: Bits, room: int) -> list[Line]:
    labels = _labels([label for label, _ in picture.rows], room)
    names = list(dict.fromkeys(name for _, fields in picture.rows for name, _ in fields))
    lines: list[Line] = []
    for label, (_, fields) in zip(labels, picture.rows, strict=True):
        line: Line = [(f"{label}  ", "")]
        for name, n in fields:
            if n:
                room_left = max(room - width(label) - 24, 8)
                bits = name[0] * n if n <= room_left else name[0] * (room_left // 2) + "…"
                line += [(bits, _colour(names.index(name))), (" ", "")]
        lines.append([*line, (" + ".join(str(n) for _, n in fields if n), "dim")])
    lines.append([])
    lines.append([(f"{name[0]} {name}   ", _colour(i)) for i, name in enumerate(names)])
    return lines
