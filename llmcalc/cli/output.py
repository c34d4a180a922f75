"""Writing a View in the format that was asked for, and its notes to stderr."""

from __future__ import annotations

import sys

from llmcalc.cli.view import View, to_csv, to_json, to_markdown, to_plain
from llmcalc.errors import InputError
from llmcalc.text import safe

FORMATS = ("table", "plain", "json", "csv", "markdown")
_WRITERS = {"plain": to_plain, "json": to_json, "csv": to_csv, "markdown": to_markdown}


class OutputClosed(Exception):
    """Whoever read the output has seen enough: ``| head``."""


def write(view: View, form: str | None) -> None:
    """Prints the view: a table on a terminal, plain text in a pipe, unless a format is named."""
    try:
        _write(view, form)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def _write(view: View, form: str | None) -> None:
    form = form or ("table" if sys.stdout.isatty() else "plain")
    if form not in FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(FORMATS)}")
    if form == "table":
        from llmcalc.cli.table import show

        show(view)
    else:
        print(_WRITERS[form](view))
    if form != "json":
        for note in view.notes:
            print(f"note: {safe(note)}", file=sys.stderr)
