"""The table on a terminal: the only place that imports rich."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from itertools import accumulate

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmcalc.cli.output.view import Column, Grid, View, cells, closing, formula_text
from llmcalc.text import safe

BANDS = ("on grey30", "on dark_blue", "on dark_green", "on purple4")
HEAT = ("green", "green", "yellow", "red")


def terminal() -> Console:
    """The terminal, with colours unless NO_COLOR is set."""
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")


def rich_lines(lines: Sequence[Sequence[tuple[str, str]]]) -> list[Text]:
    """Lines of coloured pieces as Rich writes them."""
    return [Text.assemble(*line) for line in lines]


def recorded(view: View, drawn: Sequence[Sequence[tuple[str, str]]], columns: int) -> Console:
    """A terminal of so many columns that keeps what was shown on it, to be written to a file."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    show(view, console)
    console.print(*[Text()] * bool(drawn))
    for line in rich_lines(drawn):
        console.print(line, soft_wrap=True)
    for note in view.notes:
        console.print(Text(f"note: {safe(note)}", style="dim"))
    return console


def show(view: View, console: Console | None = None) -> None:
    """Prints the view on the terminal; text folds, numbers do not, nothing is cut."""
    console = console or terminal()
    console.print(Text(view.title, style="bold"))
    if view.bands and console.is_terminal and not console.no_color:
        console.print()
        console.print(banded(view.bands), soft_wrap=True)
    _, rows = cells(view)
    columns = list(view.shown_columns())
    groups = sections(columns, rows, console.width) if rows else []
    for i, group in enumerate(groups):
        if i:
            console.print()
        chosen = [columns[c] for c in group]
        console.print(section(chosen, [[row[c] for c in group] for row in rows]))
    if view.shown_facts():
        console.print()
        console.print(_facts(view))
    if view.grid is not None:
        console.print()
        console.print(heat_map(view.grid, console.width))
    for line in closing(view):
        console.print(Text(line, style="dim"), soft_wrap=False)


def _facts(view: View) -> Table:
    """Labels and values beside each other; a long value folds."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for fact in view.shown_facts():
        shown = fact.show(fact.value) + formula_text(fact.value)
        table.add_row(Text(str(fact.label), style="dim"), Text(shown))
    return table


_FOLDED = 18
"""Characters below which a column of text is not made narrower."""


def sections(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int
) -> list[list[int]]:
    """Columns in groups that fit beside each other.

    Each begins with the first column, which says whose row it is.
    """
    widths = []
    for i, column in enumerate(columns):
        longest = max(cell_len(row[i]) for row in rows)
        least = longest if column.right else min(longest, _FOLDED)
        words = [column.heading] if column.right else column.heading.split() or [""]
        heading = max(map(cell_len, words))
        widths.append(max(least, heading) + 3)  # and the gap to the next
    groups = [[0]]
    used = widths[0]
    for i in range(1, len(columns)):
        # the last column of a group has no gap behind it
        if used + widths[i] > room + 3 and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(i)
        used += widths[i]
    return groups


def section(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """Some columns as a table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        longest = max(cell_len(row[i]) for row in rows)
        table.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
            min_width=longest if column.right else min(longest, _FOLDED),
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def banded(pieces: Sequence[str]) -> Text:
    """A text whose pieces lie on alternating backgrounds."""
    whole = Text()
    for i, piece in enumerate(pieces):
        whole.append(piece, style=BANDS[i % len(BANDS)])
    return whole


def heat_map(grid: Grid, columns: int) -> Table:
    """The grid with each cell coloured by its heat, grey where it is too hot.

    Columns that do not fit are left away.
    """
    heading, *rows = grid.lines()
    widths = [max(len(row[i]) for row in (heading, *rows)) + 3 for i in range(len(heading))]
    fitting = sum(1 for used in accumulate(widths) if used <= columns + 3)
    title = grid.title
    if fitting < len(heading):
        title += f" ({len(heading) - fitting} more columns do not fit here)"
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for text in heading[:fitting]:
        table.add_column(text, justify="right", no_wrap=True)
    for row, heats in zip(rows, grid.heat, strict=True):
        label, *texts = row[:fitting]
        styled = [Text(text, style=_style(heat)) for text, heat in zip(texts, heats, strict=False)]
        table.add_row(Text(label), *styled)
    return table


def _style(heat: float) -> str:
    return "dim" if heat > 1 else HEAT[min(int(heat * 4), 3)]
