"""View: one description of a result, and the writers that turn it into JSON, CSV, Markdown and
plain text.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmcalc.dims import SYMBOLS, Dim
from llmcalc.text import safe
from llmcalc.units import exact

if TYPE_CHECKING:
    from llmcalc.cli.output.picture import Picture

Show = Callable[[Any], str]


def text(value: Any) -> str:
    """A value as a user reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return safe(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in JSON, its heading, how a value is shown.

    ``formula`` adds a column with the formula.
    """

    key: str
    heading: str
    show: Show = text
    right: bool = False
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Fact:
    """A single value beside the table; without a label it stands in JSON alone."""

    key: str
    value: Any
    label: str | None = None
    show: Show = text


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map: texts in rows and columns, each with its heat from 0; above 1 it is too hot."""

    title: str
    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    texts: Sequence[Sequence[str]]
    heat: Sequence[Sequence[float]]

    def lines(self) -> list[list[str]]:
        """Heading and rows."""
        return [
            [self.corner, *self.columns],
            *([r, *cells] for r, cells in zip(self.rows, self.texts, strict=True)),
        ]

    def picture(self) -> Picture:
        """The same as a picture."""
        from llmcalc.cli.output.picture import Heat

        return Heat(self.title, self.rows, self.columns, self.heat, self.corner)


@dataclass(frozen=True, slots=True)
class View:
    """A result: rows under columns, facts, notes.

    Every number that is a Dim brings its formula along.
    """

    kind: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    facts: Sequence[Fact] = ()
    notes: Sequence[str] = ()
    model: Mapping[str, Any] | None = None
    explain: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid | None = None
    bands: Sequence[str] = ()
    """A text in pieces, which a terminal shows on alternating backgrounds."""
    picture: Callable[[], Picture] | None = None
    """What ``--plot`` draws, computed when it is asked for."""

    def __post_init__(self) -> None:
        """A title names what the user named: a path may hold any sign."""
        object.__setattr__(self, "title", safe(self.title))

    def shown_columns(self) -> list[Column]:
        """The columns that a person sees."""
        return [c for c in self.columns if c.shown]

    def shown_facts(self) -> list[Fact]:
        """The facts that a person sees."""
        return [f for f in self.facts if f.label is not None and f.value is not None]

    def dims(self) -> Iterator[tuple[str, Dim]]:
        """Every value that carries a formula, with its name."""
        headings = {c.key: c.heading for c in self.columns if c.heading}
        for row in self.rows:
            name = str(next(iter(row.values()), ""))
            found: dict[str, Dim] = {}
            for key, value in row.items():
                if isinstance(value, Dim) and all(
                    value.node != other.node for other in found.values()
                ):
                    found[key] = value
            for key, value in found.items():
                yield (
                    f"{name}, {headings[key]}" if len(found) > 1 and key in headings else name,
                    value,
                )
        for fact in self.facts:
            if isinstance(fact.value, Dim):
                yield fact.label or fact.key, fact.value

    def legend(self, *, printed: bool = False) -> dict[str, tuple[str, int]]:
        """The symbols of all formulas, or of the printed ones: symbol to our name and value."""
        sizes: dict[str, int] = {}
        hidden = printed and not self.explain and all(c.key != "formula" for c in self.columns)
        for _, value in (replace(self, rows=()) if hidden else self).dims():
            sizes.update(value.sizes)
        return {SYMBOLS.get(name, name): (name, size) for name, size in sizes.items()}

    def steps(self) -> list[str]:
        """For ``--explain``: every formula, the same with numbers, the value."""
        lines = []
        for name, value in self.dims():
            if value.formula != str(int(value)):
                lines += [
                    f"{safe(name)} = {value.formula}",
                    f"  = {value.with_numbers}",
                    f"  = {exact(value)}",
                ]
        return lines


def _with_formulas(items: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in items.items():
        out[key] = int(value) if isinstance(value, Dim) else value
        if isinstance(value, Dim) and key != "shape":
            out[f"{key}_formula"] = value.formula
    return out


def to_data(view: View) -> dict[str, Any]:
    """The result as plain data, under the stable keys."""
    keys = [c.key for c in view.columns]
    data: dict[str, Any] = {"kind": view.kind}
    if view.model is not None:
        data["model"] = dict(view.model)
    data["facts"] = _with_formulas({f.key: f.value for f in view.facts})
    data["rows"] = [_with_formulas({k: row.get(k) for k in keys}) for row in view.rows]
    data["notes"] = list(view.notes)
    symbols = {s: {"size": name, "value": value} for s, (name, value) in view.legend().items()}
    return {**data, **({"symbols": symbols} if symbols else {}), **view.extra}


def to_json(view: View) -> str:
    """JSON with exact ints; characters that could disturb a terminal are escaped, and
    stay exact.
    """
    written = json.dumps(to_data(view), ensure_ascii=False, indent=1)
    if written.isascii():
        return written
    return "".join(
        (
            f"\\u{ord(c):04x}"
            if ord(c) > 126
            and ord(c) < 0x10000
            and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")
            else c
        )
        for c in written
    )


def to_csv(view: View) -> str:
    """The rows as CSV, formulas in columns of their own."""
    import csv
    import io

    rows = [_with_formulas({c.key: row.get(c.key) for c in view.columns}) for row in view.rows]
    keys = list(dict.fromkeys(key for row in rows for key in row)) or [c.key for c in view.columns]
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _cell(v) for k, v in row.items()})
    return out.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    """A CSV cell: a spreadsheet must not take text from a file for a formula."""
    if isinstance(value, list | tuple):
        return "x".join(str(v) for v in value)
    if isinstance(value, str):
        value = safe(value)
        return f"'{value}" if value[:1] in "=+-@" and value[:1] else value
    return value


def cells(view: View) -> tuple[list[str], list[list[str]]]:
    """Headings and shown values of the table."""
    columns = view.shown_columns()
    return [c.heading for c in columns], [
        [c.show(row.get(c.key)) for c in columns] for row in view.rows
    ]


def to_markdown(view: View) -> str:
    """A Markdown table and a list of facts."""
    headings, rows = cells(view)
    columns = view.shown_columns()
    lines = [f"**{view.title}**", ""]
    if rows:
        lines.append("| " + " | ".join(headings) + " |")
        lines.append("|" + "|".join("---:" if c.right else "---" for c in columns) + "|")
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
        ]
        lines.append("")
    for fact in view.shown_facts():
        shown = fact.show(fact.value).replace("\n", "\n  ")
        lines.append(f"- {fact.label}: {shown}{formula_text(fact.value)}")
    if view.grid is not None:
        heading, *body = view.grid.lines()
        lines += [
            "",
            f"{view.grid.title}:",
            "",
            "| " + " | ".join(heading) + " |",
            "|" + "---:|" * len(heading),
        ]
        lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join([*lines, *closing(view)])


def to_plain(view: View) -> str:
    """Aligned text at full width: nothing is cut, nothing is wrapped."""
    headings, rows = cells(view)
    columns = view.shown_columns()
    widths = [max([width(h), *(width(row[i]) for row in rows)]) for i, h in enumerate(headings)]
    lines = [view.title, ""]
    if rows:
        for row in [headings, *rows]:
            padded = [_pad(cell, widths[i], columns[i].right) for i, cell in enumerate(row)]
            lines.append("  ".join(padded).rstrip())
    facts = view.shown_facts()
    lines += [""] if rows and facts else []
    label_width = max([width(str(f.label)) for f in facts], default=0)
    for fact in facts:
        shown = fact.show(fact.value).replace("\n", "\n" + " " * (label_width + 2))
        lines.append(
            f"{_pad(str(fact.label), label_width, False)}  {shown}{formula_text(fact.value)}"
        )
    if view.grid is not None:
        table = view.grid.lines()
        wide = [max(width(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", view.grid.title]
        lines += [
            "  ".join(_pad(cell, wide[i], True) for i, cell in enumerate(row)) for row in table
        ]
    return "\n".join([*lines, *closing(view)])


def formula_text(value: Any) -> str:
    """What follows a fact's value: its formula, where it fits on a line (``--explain`` and JSON
    have every one).
    """
    if not isinstance(value, Dim):
        return ""
    formula = value.formula
    if len(formula) > 90:
        return ""
    return f" = {formula}" if formula != str(int(value)) else ""


def closing(view: View) -> list[str]:
    """The legend of symbols, and the explanation where it was asked for."""
    lines = []
    if legend := view.legend(printed=True):
        said = [
            f"{s} = {name} = {v}" if s != name else f"{name} = {v}"
            for s, (name, v) in legend.items()
        ]
        lines += ["", "where " + ", ".join(said)]
    if view.explain:
        lines += ["", *view.steps()]
    return lines


def width(value: str) -> int:
    """Columns that a text takes on a terminal."""
    if value.isascii():
        return len(value)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in value
    )


def _pad(value: str, size: int, right: bool) -> str:
    gap = " " * (size - width(value))
    return gap + value if right else value + gap
