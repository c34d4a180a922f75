"""Pictures into files, by matplotlib where it is installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from itertools import pairwise
from pathlib import Path
from typing import Any

from llmcalc.cli.output.picture import Bars, Bits, Curves, Heat, Histogram, Picture, Say, Stack
from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.text import safe

SUFFIXES = (".svg", ".png", ".pdf")
_BIT_COLOURS = ("tab:red", "tab:green", "tab:blue", "tab:purple", "tab:orange")


def plot(picture: Picture, path: str) -> None:
    """Draws the picture into an SVG, PNG or PDF file.

    Without matplotlib that is an UnavailableError.
    """
    if Path(path).suffix not in SUFFIXES:
        raise InputError(
            f"--plot {path!r} is none of .svg, .png and .pdf", hint="- draws it here, as text"
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("pictures need matplotlib", hint=install("plot")) from None
    with rc_context({"svg.hashsalt": "llmcalc"}):  # the same picture is the same file
        figure = Figure(figsize=_inches(picture), layout="constrained")
        axes = figure.subplots()
        axes.set_title(_plain(picture.title), fontsize="small", wrap=True)
        _onto(picture, axes, figure)
        try:
            figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
        except OSError as error:
            raise InputError(f"--plot {path!r} cannot be written: {error.strerror}") from None


def _plain(label: str) -> str:
    """A label without the signs that matplotlib reads as mathematics."""
    return safe(label).replace("$", r"\$")


def _inches(picture: Picture) -> tuple[float, float]:
    """Width and height, so that nothing lies on something else."""
    if isinstance(picture, Heat):
        wide = max(4.0, 0.35 * len(picture.columns)) + 1.5
        return wide, max(3.0, 0.35 * len(picture.rows)) + 0.5
    if isinstance(picture, Bars):
        return 8, 1.2 + 0.22 * len(picture.labels) * max(len(picture.series), 1)
    if isinstance(picture, Stack):
        return 8, 1.6 + 0.5 * len(picture.bars) + 0.12 * len(picture.parts)
    if isinstance(picture, Bits):
        return 9, 1 + 0.32 * len(picture.rows)
    return 7.5, 4.5


@singledispatch
def _onto(picture: Picture, axes: Any, figure: Any) -> None:
    raise TypeError(type(picture))


def _ticks(axis: Any, say: Say, most: float = 0) -> None:
    """Marks as the numbers are printed elsewhere; of ``most`` bytes, at a power of two of them."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(say(value))))
    if most > 8:
        apart = 2 ** math.ceil(math.log2(most / 8))  # eight marks at most
        axis.set_major_locator(MultipleLocator(apart))


@_onto.register
def _(picture: Bars, axes: Any, figure: Any) -> None:
    n_series, n_labels = len(picture.series), len(picture.labels)
    height = 0.8 / n_series
    for i, (name, values) in enumerate(picture.series):
        # bars of one label lie around its mark
        shift = (i - (n_series - 1) / 2) * height
        places = [n + shift for n in range(n_labels)]
        drawn = axes.barh(places, values, height, label=_plain(name))
        said = [_plain(picture.say(value)) for value in values]
        axes.bar_label(drawn, said, padding=3, fontsize="x-small")
    labels = [_plain(label) for label in picture.labels]
    axes.set_yticks(range(n_labels), labels, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xticks([])
    axes.set_xlabel(picture.unit)
    if n_series > 1:
        axes.legend(fontsize="small")


@_onto.register
def _(picture: Stack, axes: Any, figure: Any) -> None:
    labels = [_plain(label) for label, _ in picture.bars]
    for name in picture.parts:
        before = [_before(parts, name) for _, parts in picture.bars]
        values = [dict(parts).get(name, 0.0) for _, parts in picture.bars]
        said = ", ".join(dict.fromkeys(picture.say(value) for value in values if value))
        axes.barh(labels, values, 0.6, left=before, label=_plain(f"{name}  {said}"))
    if picture.limit is not None:
        name, value = picture.limit
        label = _plain(f"{name}  {picture.say(value)}")
        axes.axvline(value, color="black", linestyle="--", label=label)
    axes.invert_yaxis()
    axes.set_xlabel(picture.unit)
    _ticks(axes.xaxis, picture.say, axes.get_xlim()[1] if picture.binary else 0)
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def _before(parts: Sequence[tuple[str, float]], name: str) -> float:
    """What lies to the left of a part."""
    total = 0.0
    for other, value in parts:
        if other == name:
            return total
        total += value
    return total


@_onto.register
def _(picture: Curves, axes: Any, figure: Any) -> None:
    for name, line in picture.lines:
        xs = [x for x, _ in line]
        ys = [y for _, y in line]
        marker = "o" if len(line) <= 20 else None
        axes.plot(xs, ys, marker=marker, markersize=4, label=_plain(name))
    for name, x, y in picture.points:
        axes.plot([x], [y], "D", markersize=6, label=_plain(name))
    axes.set_xscale("log" if picture.log_x else "linear")
    axes.set_yscale("log" if picture.log_y else "linear")
    if not picture.log_y:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
    _ticks(axes.xaxis, picture.say_x)
    _ticks(axes.yaxis, picture.say_y, axes.get_ylim()[1] if picture.binary else 0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter("")
    axes.tick_params(axis="x", rotation=30)
    axes.grid(alpha=0.3)
    if len(picture.lines) > 1 or picture.points:
        axes.legend(fontsize="small")


@_onto.register
def _(picture: Heat, axes: Any, figure: Any) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"].with_extremes(over="lightgrey")
    image = axes.imshow(picture.numbers, vmin=0, vmax=1, cmap=colours, aspect="auto")
    columns = [_plain(name) for name in picture.columns]
    rows = [_plain(name) for name in picture.rows]
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(picture.column_name)
    axes.set_ylabel(picture.row_name)
    figure.colorbar(image, shrink=0.8)


@_onto.register
def _(picture: Histogram, axes: Any, figure: Any) -> None:
    widths = [b - a for a, b in pairwise(picture.edges)]
    axes.bar(picture.edges[:-1], picture.counts, width=widths, align="edge", log=True)
    axes.set_xlabel("value")
    axes.set_ylabel("elements")


@_onto.register
def _(picture: Bits, axes: Any, figure: Any) -> None:
    names = list(dict.fromkeys(name for _, fields in picture.rows for name, _ in fields))
    colours = dict(zip(names, _BIT_COLOURS, strict=False))
    for row, (_, fields) in enumerate(picture.rows):
        left = 0
        for name, n in fields:
            # a box for every bit
            axes.barh(
                [row] * n,
                [1] * n,
                0.8,
                left=range(left, left + n),
                color=colours[name],
                edgecolor="white",
            )
            left += n
        said = " + ".join(str(n) for _, n in fields if n)
        axes.text(left + 0.5, row, said, va="center", fontsize="x-small")
    for name in names:
        axes.barh([0], [0], color=colours[name], label=name)
    axes.set_yticks(range(len(picture.rows)), [_plain(label) for label, _ in picture.rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("bits")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
