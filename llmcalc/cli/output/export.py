"""An output written to a file as it looks on a terminal: HTML, SVG or Markdown."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from llmcalc.cli.output.draw import Line, as_text
from llmcalc.cli.output.view import View, to_markdown
from llmcalc.errors import InputError
from llmcalc.text import safe

SUFFIXES = (".html", ".svg", ".md")
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.S)


def export(view: View, drawn: Sequence[Line], path: str) -> None:
    """Writes the view, and its picture where one was asked for.

    Nothing in the file is loaded from elsewhere.
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise InputError(f"--export {path!r} is none of {', '.join(SUFFIXES)}")
    if suffix == ".md":
        text = _markdown(view, drawn)
    else:
        from llmcalc.cli.output.terminal import recorded

        columns = shutil.get_terminal_size((120, 24)).columns
        console = recorded(view, drawn, max(columns, 60))
        if suffix == ".html":
            text = console.export_html(inline_styles=True)
        else:
            # Rich's SVG asks a server for its font
            text = _FONTS.sub("", console.export_svg(title="llmcalc"))
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--export {path!r} cannot be written: {error.strerror}") from None


def _markdown(view: View, drawn: Sequence[Line]) -> str:
    picture = ["", "```text", as_text(drawn), "```"] if drawn else []
    notes = ["", *(f"- note: {safe(note)}" for note in view.notes)] if view.notes else []
    return "\n".join([to_markdown(view), *picture, *notes, ""])
