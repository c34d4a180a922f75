"""Pictures as text: lines of pieces, each with a colour that nothing depends on."""

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
_DOTS = "·:'"
_SINGLE = 20
"""A line's way is dotted; where it has so many points or fewer, each of them is marked."""


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
    """Labels of one width, cut in front: a part's name ends with what tells it apart."""
    clean = [safe(label) for label in labels]
    longest = max((width(label) for label in clean), default=0)
    most = min(longest, max(room // 3, 8))
    cut = [label if width(label) <= most else "…" + label[-(most - 1) :] for label in clean]
    return [label + " " * (most - width(label)) for label in cut]


def _filled(value: float, most: float, cells: int) -> str:
    """A bar to the eighth of a cell."""
    eighths = round(8 * cells * value / most) if most > 0 and math.isfinite(value) else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + _EIGHTHS[rest].strip()


@_body.register
def _(picture: Bars, room: int) -> list[Line]:
    many = len(picture.series) > 1
    names = _labels([name for name, _ in picture.series], room) if many else [""]
    labels = _labels(picture.labels, room)
    said = [[picture.say(value) for value in values] for _, values in picture.series]
    longest = max((len(text) for texts in said for text in texts), default=0)
    cells = 0
    if labels:
        name_room = width(names[0]) + 1 if many else 0
        cells = max(room - width(labels[0]) - longest - 4 - name_room, 10)
    known = [v for _, values in picture.series for v in values if math.isfinite(v)]
    most = max(known, default=0.0)
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
    sums = [sum(value for _, value in parts) for _, parts in picture.bars]
    most = max([*sums, picture.limit[1]] if picture.limit else sums)
    cells = room - (width(labels[0]) if labels else 0) - 4
    order = picture.parts
    lines: list[Line] = []
    for label, (_, parts) in zip(labels, picture.bars, strict=True):
        line: Line = [(f"{label}  ", "")]
        done, total = 0, 0.0
        for name, value in parts:
            total += value
            end = round(cells * total / most) if most else 0
            line.append((_fill(order, name) * (end - done), _colour(order.index(name))))
            done = end
        if picture.limit is not None:
            at = round(cells * picture.limit[1] / most) if most else 0
            line.append(("·" * (at - done) + "|", "") if at >= done else ("!", "red"))
        lines.append(line)
    lines.append([])
    for i, name in enumerate(order):
        values = [dict(parts)[name] for _, parts in picture.bars if name in dict(parts)]
        said = ", ".join(dict.fromkeys(picture.say(value) for value in values))
        lines.append([(_fill(order, name), _colour(i)), (f" {safe(name)}  {said}", "")])
    if picture.limit is not None:
        lines.append([(f"| {picture.limit[0]}  {picture.say(picture.limit[1])}", "")])
    return lines


def _fill(order: Sequence[str], name: str) -> str:
    return FILLS[order.index(name) % len(FILLS)]


def _scale(values: Sequence[float], log: bool) -> tuple[float, float, Callable[[float], float]]:
    """The ends of an axis, and where on it, from 0 to 1, a value lies."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    if not log:
        # a straight axis begins at zero, so that heights can be compared
        low = min(low, 0.0)
    turn = math.log if log else float
    start = turn(low)
    span = turn(high) - start
    return low, high, lambda v: (turn(v) - start) / span if span else 0.5


@_body.register
def _(picture: Curves, room: int) -> list[Line]:
    spots = [spot for _, line in picture.lines for spot in line]
    spots += [(x, y) for _, x, y in picture.points]
    x_low, x_high, across = _scale([x for x, _ in spots], picture.log_x)
    y_low, y_high, up = _scale([y for _, y in spots], picture.log_y)
    top, bottom = picture.say_y(y_high), picture.say_y(y_low)
    side = max(len(top), len(bottom))
    cells = max(room - side - 3, 20)
    field: list[list[Piece]] = [[(" ", "")] * cells for _ in range(_HEIGHT)]

    def put(x: float, y: float, piece: Piece) -> None:
        if (x <= 0 and picture.log_x) or (y <= 0 and picture.log_y):
            return
        column = round(across(x) * (cells - 1))
        row = round((1 - up(y)) * (_HEIGHT - 1))
        # rounding may step over an end
        row = min(max(row, 0), _HEIGHT - 1)
        field[row][min(max(column, 0), cells - 1)] = piece

    for i, (_, line) in enumerate(picture.lines):
        for x, y in _between(line, cells, picture.log_x, picture.log_y):
            put(x, y, (_DOTS[i % len(_DOTS)], _colour(i)))
        if len(line) <= _SINGLE:
            for x, y in line:
                put(x, y, (_mark(i, line), _colour(i)))
    for i, (_, x, y) in enumerate(picture.points):
        put(x, y, (_letter(i), "bold"))
    lines: list[Line] = [[(f"{' ' * side} {picture.y}", "dim")]]
    marks = {0: top, _HEIGHT - 1: bottom}
    for n, cells_of_row in enumerate(field):
        lines.append([(f"{marks.get(n, ''):>{side}} │", ""), *cells_of_row])
    low, high = picture.say_x(x_low), picture.say_x(x_high)
    lines.append([(f"{' ' * side} └{'─' * cells}", "")])
    gap = max(cells - len(low) - len(high), 0)
    lines.append([(f"{' ' * side}  {low}{picture.x:^{gap}}{high}", "")])
    return [*lines, *_legend(picture)]


def _legend(picture: Curves) -> list[Line]:
    """What the signs of lines and points stand for, where it is not plain."""
    if len(picture.lines) < 2 and not picture.points:
        return []
    found: list[Line] = []
    for i, (name, line) in enumerate(picture.lines):
        found.append([(f"  {_mark(i, line)}", _colour(i)), (f" {safe(name)}", "")])
    for i, (name, _, _) in enumerate(picture.points):
        found.append([(f"  {_letter(i)} {safe(name)}", "")])
    return found


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
    """A line's points and those on the way from each to the next, straight as the axes show it."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(line):
        left, right = _into(x0, log_x), _into(x1, log_x)
        start, end = _into(y0, log_y), _into(y1, log_y)
        for step in range(cells):
            way = step / cells
            x = _back(left + (right - left) * way, log_x)
            y = _back(start + (end - start) * way, log_y)
            found.append((x, y))
    return found


@_body.register
def _(picture: Heat, room: int) -> list[Line]:
    labels = _labels(picture.rows, room)
    side = width(labels[0]) if labels else 0
    n_columns = len(picture.columns)
    widest = max(map(width, picture.columns), default=2) + 1
    cell = max(2, min((room - side - 2) // max(n_columns, 1), widest))
    shown = min(n_columns, (room - side - 2) // cell)
    # a number that is cut would mislead
    names = [safe(name) if width(name) < cell else "·" for name in picture.columns[:shown]]
    heading = "".join(" " * (cell - 1 - width(name)) + name + " " for name in names)
    lines: list[Line] = [[(f"{' ' * side}  {heading}", "dim")]]
    for label, numbers in zip(labels, picture.numbers, strict=True):
        line: Line = [(f"{label}  ", "")]
        for x in numbers[:shown]:
            line.append((_shade(x) * (cell - 1) + " ", "cyan" if x <= 1 else "red"))
        lines.append(line)
    if shown < n_columns:
        lines.append([(f"{n_columns - shown} more columns do not fit", "dim")])
    scale = f"{_SHADES[1]} a little  {_SHADES[2]}  {_SHADES[3]}  {_SHADES[4]} all"
    if any(x > 1 for row in picture.numbers for x in row):
        scale += "  - too much"
    lines.append([(scale, "dim")])
    return lines


def _shade(x: float) -> str:
    if x > 1:
        return "-"
    return _SHADES[0] if x < 0.005 else _SHADES[min(1 + int(x * 4), 4)]


@_body.register
def _(picture: Histogram, room: int) -> list[Line]:
    labels = _labels([f"{edge:.4g}" for edge in picture.edges[:-1]], room)
    most = math.log1p(max(picture.counts, default=0))
    longest = max((len(f"{n:,}") for n in picture.counts), default=0)
    cells = max(room - width(labels[0]) - longest - 4, 10)
    lines: list[Line] = []
    for label, n in zip(labels, picture.counts, strict=True):
        bar = _filled(math.log1p(n), most, cells)
        lines.append([(f"{label}  ", ""), (bar, COLOURS[0]), (f" {n:,}", "")])
    lines.append([("from each value on; bars are logarithmic", "dim")])
    return lines


@_body.register
def _(picture: Bits, room: int) -> list[Line]:
    labels = _labels([label for label, _ in picture.rows], room)
    names = list(dict.fromkeys(name for _, fields in picture.rows for name, _ in fields))
    lines: list[Line] = []
    for label, (_, fields) in zip(labels, picture.rows, strict=True):
        line: Line = [(f"{label}  ", "")]
        room_left = max(room - width(label) - 24, 8)
        present = [(name, n) for name, n in fields if n]
        for name, n in present:
            letter = name[0]  # one for each bit
            bits = letter * n if n <= room_left else letter * (room_left // 2) + "…"
            line += [(bits, _colour(names.index(name))), (" ", "")]
        sum_of_bits = " + ".join(str(n) for _, n in present)
        lines.append([*line, (sum_of_bits, "dim")])
    lines.append([])
    lines.append([(f"{name[0]} {name}   ", _colour(i)) for i, name in enumerate(names)])
    return lines
