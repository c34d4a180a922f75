"""Pictures, by matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError


def _figure(path: str, width: float, height: float) -> Any:
    """An empty figure for that file, if matplotlib is here and the file's kind is one it writes."""
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--plot {path!r} is none of .svg, .png and .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("pictures need matplotlib", hint="pip install 'llmcalc[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path!r} cannot be written: {error.strerror}") from None


def plain(label: str) -> str:
    """A label without the signs that matplotlib reads as mathematics."""
    return label.replace("$", r"\$")


def heat(
    path: str, title: str, rows: Sequence[str], columns: Sequence[str], numbers: Sequence[Sequence[float]]
) -> None:
    """A heat map from 0 to 1, to an SVG, PNG or PDF file."""
    side = max(4.0, 0.35 * len(columns))
    figure = _figure(path, side + 1, side)
    axes = figure.subplots()
    image = axes.imshow(numbers, vmin=0, vmax=1, cmap="viridis")
    axes.set_xticks(range(len(columns)), [plain(c) for c in columns], rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), [plain(r) for r in rows])
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(plain(title), fontsize="small", wrap=True)
    figure.colorbar(image, shrink=0.8)
    _save(figure, path)


def bars(path: str, labels: list[str], series: dict[str, list[float]]) -> None:
    """Bars of each series beside each other, to an SVG, PNG or PDF file."""
    figure = _figure(path, max(6, 0.35 * len(labels) * max(len(series), 1)), 4)
    axes = figure.subplots()
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        axes.bar([x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))], values, width, label=name)
    axes.set_xticks(range(len(labels)), [plain(label) for label in labels], rotation=45, ha="right")
    axes.set_ylabel("probability")
    if len(series) > 1 or any(series):
        axes.legend()
    _save(figure, path)


def histogram(path: str, title: str, edges: Sequence[float], counts: Sequence[int]) -> None:
    """How a tensor's numbers lie, on a logarithmic scale of counts, to an SVG, PNG or PDF file."""
    figure = _figure(path, 7, 4)
    axes = figure.subplots()
    widths = [b - a for a, b in pairwise(edges)]
    axes.bar(edges[:-1], counts, width=widths, align="edge", log=True)
    axes.set_xlabel("value")
    axes.set_ylabel("elements")
    axes.set_title(plain(title), fontsize="small", wrap=True)
    _save(figure, path)
