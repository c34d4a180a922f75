"""View: one description of a result, and its writers: JSON, CSV, Markdown and plain text."""

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
    """A column: its key in JSON, its heading, how a value is shown."""

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
        """Every value that carries a formula, with its name; of a row's equal ones, the first."""
        headings = {c.key: c.heading for c in self.columns if c.heading}
        for row in self.rows:
            name = str(next(iter(row.values()), ""))
            found: dict[str, Dim] = {}
            for key, value in row.items():
                if not isinstance(value, Dim):
                    continue
                if all(value.node != other.node for other in found.values()):
                    found[key] = value
            for key, value in found.items():
                several = len(found) > 1 and key in headings
                yield f"{name}, {headings[key]}" if several else name, value
        for fact in self.facts:
            if isinstance(fact.value, Dim):
                yield fact.label or fact.key, fact.value

    def legend(self, *, printed: bool = False) -> dict[str, tuple[str, int]]:
        """The symbols of all formulas, or of the printed ones: symbol to our name and value."""
        # rows show their numbers alone where no column has the formulas
        hidden = printed and not self.explain and all(c.key != "formula" for c in self.columns)
        seen = replace(self, rows=()) if hidden else self
        sizes: dict[str, int] = {}
        for _, value in seen.dims():
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
    """The same with plain ints, and every formula beside its number."""
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
    data["facts"] = _with_formulas({fact.key: fact.value for fact in view.facts})
    data["rows"] = [_with_formulas({key: row.get(key) for key in keys}) for row in view.rows]
    data["notes"] = list(view.notes)
    legend = view.legend()
    if legend:
        data["symbols"] = {
            symbol: {"size": name, "value": value} for symbol, (name, value) in legend.items()
        }
    return {**data, **view.extra}


def to_json(view: View) -> str:
    """JSON with exact ints; what could disturb a terminal is escaped, and stays exact."""
    written = json.dumps(to_data(view), ensure_ascii=False, indent=1)
    if written.isascii():
        return written
    return "".join(f"\\u{ord(c):04x}" if _disturbs(c) else c for c in written)


def _disturbs(character: str) -> bool:
    """Whether a terminal may obey a character or turn a line around it."""
    if not 126 < ord(character) < 0x10000:
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


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
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return value


def cells(view: View) -> tuple[list[str], list[list[str]]]:
    """Headings and shown values of the table."""
    columns = view.shown_columns()
    headings = [c.heading for c in columns]
    rows = [[c.show(row.get(c.key)) for c in columns] for row in view.rows]
    return headings, rows


def to_markdown(view: View) -> str:
    """A Markdown table and a list of facts."""
    headings, rows = cells(view)
    columns = view.shown_columns()
    lines = [f"**{view.title}**", ""]
    if rows:
        lines.append(_piped(headings))
        lines.append("|" + "|".join("---:" if c.right else "---" for c in columns) + "|")
        lines += [_piped([cell.replace("|", "\\|") for cell in row]) for row in rows]
        lines.append("")
    for fact in view.shown_facts():
        shown = fact.show(fact.value).replace("\n", "\n  ")
        lines.append(f"- {fact.label}: {shown}{formula_text(fact.value)}")
    if view.grid is not None:
        heading, *body = view.grid.lines()
        lines += ["", f"{view.grid.title}:", "", _piped(heading), "|" + "---:|" * len(heading)]
        lines += [_piped(row) for row in body]
    return "\n".join([*lines, *closing(view)])


def _piped(row: Sequence[str]) -> str:
    return "| " + " | ".join(row) + " |"


def to_plain(view: View) -> str:
    """Aligned text at full width: nothing is cut, nothing is wrapped."""
    headings, rows = cells(view)
    lines = [view.title, ""]
    if rows:
        lines += _aligned([headings, *rows], [c.right for c in view.shown_columns()])
    facts = view.shown_facts()
    if rows and facts:
        lines.append("")
    label_width = max((width(str(fact.label)) for fact in facts), default=0)
    for fact in facts:
        label = _pad(str(fact.label), label_width, False)
        shown = fact.show(fact.value).replace("\n", "\n" + " " * (label_width + 2))
        lines.append(f"{label}  {shown}{formula_text(fact.value)}")
    if view.grid is not None:
        table = view.grid.lines()
        wide = [max(width(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["", view.grid.title]
        for row in table:
            lines.append("  ".join(_pad(cell, wide[i], True) for i, cell in enumerate(row)))
    return "\n".join([*lines, *closing(view)])


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Rows with every column as wide as its widest cell."""
    widths = [max(width(row[i]) for row in rows) for i in range(len(right))]
    lines = []
    for row in rows:
        padded = [_pad(cell, widths[i], right[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(padded).rstrip())
    return lines


def formula_text(value: Any) -> str:
    """What follows a fact's value: its formula, where it fits on a line.

    ``--explain`` and JSON have every one.
    """
    if not isinstance(value, Dim):
        return ""
    formula = value.formula
    if len(formula) > 90:
        return ""
    return f" = {formula}" if formula != str(int(value)) else ""


def closing(view: View) -> list[str]:
    """The legend of symbols, and the explanation where it was asked for."""
    lines: list[str] = []
    said = []
    for symbol, (name, value) in view.legend(printed=True).items():
        known_as = "" if symbol == name else f"{symbol} = "
        said.append(f"{known_as}{name} = {value}")
    if said:
        lines += ["", "where " + ", ".join(said)]
    if view.explain:
        lines += ["", *view.steps()]
    return lines


def width(value: str) -> int:
    """Columns that a text takes on a terminal."""
    if value.isascii():
        return len(value)
    return sum(_columns_of(character) for character in value)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pad(value: str, size: int, right: bool) -> str:
    gap = " " * (size - width(value))
    return gap + value if right else value + gap
