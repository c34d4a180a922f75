"""The table on a terminal: the only place that imports rich."""

from __future__ import annotations

import os

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmcalc.cli.view import View, cells, closing, formula_text


def show(view: View) -> None:
    """Prints the view on the terminal; text folds, numbers do not, nothing is cut."""
    console = Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    console.print(Text(view.title, style="bold"))
    _, rows = cells(view)
    if rows:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in view.shown_columns():
            table.add_column(
                Text(column.heading),
                justify="right" if column.right else "left",
                no_wrap=column.right,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for fact in view.shown_facts():
        facts.add_row(Text(str(fact.label), style="dim"), Text(fact.show(fact.value) + formula_text(fact.value)))
    if view.shown_facts():
        console.print()
        console.print(facts)
    for line in closing(view):
        console.print(Text(line, style="dim"), soft_wrap=False)
