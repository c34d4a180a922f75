"""Writing a View in the format that was asked for, and its notes to stderr."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.cli.output.view import View, to_csv, to_json, to_markdown, to_plain
from llmcalc.cli.said import said
from llmcalc.errors import InputError
from llmcalc.text import safe

if TYPE_CHECKING:
    from llmcalc.cli.options.model import OutputOptions
    from llmcalc.cli.output.draw import Line

FORMATS = ("table", "plain", "json", "csv", "markdown")
_WRITERS = {"plain": to_plain, "json": to_json, "csv": to_csv, "markdown": to_markdown}


class OutputClosed(Exception):
    """Whoever read the output has seen enough: ``| head``."""


def write(view: View, output: OutputOptions) -> None:
    """Prints the view: a table on a terminal, plain text in a pipe, unless a format is named.

    Draws and exports it.
    """
    view = replace(view, notes=[*view.notes, *said()])
    form = output.chosen or ("table" if sys.stdout.isatty() else "plain")
    if form not in FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(FORMATS)}")
    drawn = _drawn(view, output, form)
    if output.export is not None:
        from llmcalc.cli.output.export import export

        export(view, drawn, output.export)
    try:
        _print(view, form, drawn)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def _drawn(view: View, output: OutputOptions, form: str) -> list[Line]:
    """The picture as text, where that is what was asked for; a file is written here."""
    if output.plot is None:
        return []
    if view.picture is None:
        raise InputError(
            "there is no picture of this answer", hint="docs/pictures.md says what has one"
        )
    if output.plot != "-":
        from llmcalc.cli.output.plot import plot

        plot(view.picture(), output.plot)
        return []
    if form in ("json", "csv"):
        raise InputError(
            f"--plot - draws text, which --format {form} is not", hint="--plot FILE.svg"
        )
    import shutil

    from llmcalc.cli.output.draw import draw

    picture = view.picture()
    lines = draw(picture, shutil.get_terminal_size((100, 24)).columns)
    return lines[picture.title == view.title :]  # a title is said once


def _print(view: View, form: str, drawn: list[Line]) -> None:
    """The view and its picture to standard output, its notes to standard error."""
    if form == "table":
        from llmcalc.cli.output.terminal import rich_lines, show, terminal

        show(view)
        console = terminal()
        if drawn:
            console.print()
        for line in rich_lines(drawn):
            console.print(line, soft_wrap=True)
    else:
        print(_WRITERS[form](view))
        if drawn:
            from llmcalc.cli.output.draw import as_text

            picture = as_text(drawn)
            if form == "markdown":
                picture = f"```text\n{picture}\n```"
            print(f"\n{picture}")
    # JSON has the notes inside
    if form != "json":
        for note in view.notes:
            print(f"note: {safe(note)}", file=sys.stderr)
