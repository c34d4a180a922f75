"""Pictures, by matplotlib where it is installed."""

from __future__ import annotations

from pathlib import Path

from llmcalc.errors import InputError, UnavailableError


def bars(path: str, labels: list[str], series: dict[str, list[float]]) -> None:
    """Bars of each series beside each other, to an SVG, PNG or PDF file."""
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--plot {path!r} is none of .svg, .png and .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("pictures need matplotlib", hint="pip install 'llmcalc[plot]'") from None
    figure = Figure(figsize=(max(6, 0.35 * len(labels) * max(len(series), 1)), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        axes.bar([x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))], values, width, label=name)
    axes.set_xticks(range(len(labels)), [label.replace("$", r"\$") for label in labels], rotation=45, ha="right")
    axes.set_ylabel("probability")
    if len(series) > 1 or any(series):
        axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path!r} cannot be written: {error.strerror}") from None
