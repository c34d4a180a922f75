"""The table on a terminal: the only place that imports rich."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

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
    for i, chosen in enumerate(sections(columns, rows, console.width) if rows else ()):
        if i:
            console.print()
        console.print(
            section([columns[c] for c in chosen], [[row[c] for c in chosen] for row in rows])
        )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for fact in view.shown_facts():
        facts.add_row(
            Text(str(fact.label), style="dim"),
            Text(fact.show(fact.value) + formula_text(fact.value)),
        )
    if view.shown_facts():
        console.print()
        console.print(facts)
    if view.grid is not None:
        console.print()
        console.print(heat_map(view.grid, console.width))
    for line in closing(view):
        console.print(Text(line, style="dim"), soft_wrap=False)


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
        widths.append(max(least, max(map(cell_len, words))) + 3)
    groups, used = [[0]], widths[0]
    for i in range(1, len(columns)):
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
    wide = [max(len(row[i]) for row in (heading, *rows)) + 3 for i in range(len(heading))]
    fitting = sum(1 for i in range(len(wide)) if sum(wide[: i + 1]) <= columns + 3)
    left_out = len(heading) - fitting
    heading, rows = heading[:fitting], [row[:fitting] for row in rows]
    title = grid.title + (f" ({left_out} more columns do not fit here)" if left_out else "")
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for text in heading:
        table.add_column(text, justify="right", no_wrap=True)
    for (label, *cells_), heats in zip(rows, grid.heat, strict=True):
        styled = [
            Text(c, style="dim" if h > 1 else HEAT[min(int(h * 4), 3)])
            for c, h in zip(cells_, heats, strict=False)
        ]
        table.add_row(Text(label), *styled)
    return table
