"""``llmcalc dtype --bits`` and ``--codes``: what stored bytes and codes mean, number by number."""

from __future__ import annotations

from typing import Any

from llmcalc.cli.dtype.blocks import short
from llmcalc.cli.output.view import Column, View
from llmcalc.errors import InputError
from llmcalc.formats.block import INTEGERS, Block, Integer
from llmcalc.text import shorten

PACKED = ("gptq", "awq")
"""Schemes whose codes are asked for by name: words of eight, with scale and zero."""
_LONGEST = 1 << 16


def as_bytes(text: str) -> bytes:
    """Hexadecimal digits as the bytes that they name, the first byte in memory first."""
    digits = text.strip().lower().removeprefix("0x").replace("_", "")
    if len(digits) > _LONGEST:
        raise InputError(f"--bits has {len(digits)} digits; at most {_LONGEST} are read")
    if len(digits) % 2 or not digits:
        raise InputError(
            f"--bits {shorten(text)!r} has {_counted(len(digits), 'hexadecimal digit')}; "
            "bytes have two each"
        )
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InputError(f"--bits {shorten(text)!r} is not hexadecimal, such as 0x7e") from None


def of_block(found: Block, text: str) -> View:
    """One block's bytes as numbers."""
    from llmcalc.formats.codecs.decode import block

    decoded = block(found.name, as_bytes(text))
    rows: list[dict[str, Any]] = [
        {"index": e.index, "code": e.code, "scale": e.scale, "stored": e.value, "ggml": e.ggml}
        for e in decoded.elements
    ]
    columns = [
        Column("index", "element", right=True),
        Column("code", "code", right=True, shown=any(r["code"] is not None for r in rows)),
        Column("scale", "scale", short, right=True, shown=rows[0]["scale"] is not None),
        Column("stored", "value", short, right=True),
        Column("ggml", "in ggml's order", short, right=True, shown=rows[0]["ggml"] is not None),
    ]
    title = f"one block of {found.name}: {len(rows)} numbers in {len(as_bytes(text))} bytes"
    return View(kind="dtype/1", title=title, columns=columns, rows=rows, notes=decoded.order)


def of_integers(found: Integer, text: str) -> View:
    """Bytes as integers, two or four in a byte where they are narrow."""
    from llmcalc.formats.codecs.decode import integers

    if found.name == "ternary":
        raise InputError("ternary codes are packed in several ways", hint="dtype tq2_0 --bits ...")
    values = integers(found, as_bytes(text))
    rows = [
        {"index": i, "code": value & ((1 << found.bits) - 1), "stored": value}
        for i, value in enumerate(values)
    ]
    columns = [
        Column("index", "element", right=True),
        Column("code", "code", right=True),
        Column("stored", "value", right=True),
    ]
    notes = ["bytes as they lie in memory"]
    if found.bits < 8:
        notes[0] += f": {8 // found.bits} in a byte, the lowest bits first"
    title = f"{_counted(len(rows), 'number')} of {found.name}"
    return View(kind="dtype/1", title=title, columns=columns, rows=rows, notes=notes)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def of_word(scheme: str, text: str, scale: float | None, zero: int | None) -> View:
    """One int32 of a GPTQ or AWQ checkpoint as its eight codes, with a scale as their numbers."""
    from llmcalc.formats.codecs.decode import AWQ_ORDER, word

    try:
        packed = int(text, 0)
    except ValueError:
        raise InputError(f"--bits {shorten(text)!r} is not an int32 such as 0x76543210") from None
    if not 0 <= packed < 1 << 32:
        raise InputError(f"--bits {shorten(text)} has more bits than an int32")
    order = "nibbles in order, the lowest first"
    if scheme == "awq":
        order = f"the nibbles, lowest first, are elements {', '.join(map(str, AWQ_ORDER))}"
    return of_codes(scheme, word(scheme, packed), scale, zero, (order,))


def of_codes(
    name: str, codes: list[int], scale: float | None, zero: int | None, order: tuple[str, ...] = ()
) -> View:
    """Codes with a scale and a zero point as numbers; without a scale the codes alone."""
    from llmcalc.formats.codecs.decode import affine

    rules = _rules(name, zero or 0)
    rows: list[dict[str, Any]] = []
    for rule, point in rules if scale is not None else [("", 0)]:
        values = affine(codes, scale or 0.0, point)
        for i, (code, value) in enumerate(zip(codes, values, strict=True)):
            row: dict[str, Any] = {"index": i, "code": code}
            if scale is not None:
                row |= {"rule": rule, "scale": scale, "zero_point": point, "stored": value}
            rows.append(row)
    columns = [Column("index", "element", right=True), Column("code", "code", right=True)]
    if scale is not None:
        columns += [
            Column("rule", "rule"),
            Column("scale", "scale", short, right=True),
            Column("zero_point", "zero point", right=True),
            Column("stored", "value", short, right=True),
        ]
    title = f"{_counted(len(codes), 'code')} of {name}"
    return View(kind="dtype/1", title=title, columns=columns, rows=rows, notes=order)


def _rules(name: str, zero: int) -> list[tuple[str, int]]:
    """How the stored zero is read: GPTQ's first checkpoint format stores one less than it means."""
    if name != "gptq":
        return [("(q - z)·s", zero)]
    return [("v1: (q - (z + 1))·s", zero + 1), ("v2: (q - z)·s", zero)]


def codes_in(name: str, text: str) -> list[int]:
    """Codes by their numbers, each within the format."""
    known = INTEGERS["uint4"] if name in PACKED else INTEGERS.get(name)
    if known is None or name == "ternary":
        raise InputError(
            f"{name} has no codes that a scale and a zero point turn into numbers",
            hint=f"gptq, awq, {', '.join(n for n in INTEGERS if n != 'ternary')}; "
            "`--bits` reads one block of the others",
        )
    found = []
    for word in text.split(","):
        try:
            code = int(word, 0)
        except ValueError:
            raise InputError(f"--codes {shorten(word)!r} is not a whole number") from None
        if not known.lowest <= code <= known.highest:
            raise InputError(
                f"--codes {code} is not from {known.lowest} to {known.highest} ({known.name})"
            )
        found.append(code)
    return found
