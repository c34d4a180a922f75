"""``llmcalc dtype`` for scalar floats: their limits, a number in one or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from llmcalc.cli.dtype import blocks as packed
from llmcalc.cli.dtype.codes import PACKED
from llmcalc.cli.output.pictures import formats
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError
from llmcalc.formats.block import find
from llmcalc.formats.element import dtype, find_dtype
from llmcalc.formats.file_type import file_type
from llmcalc.formats.floats import FLOATS, Float, Value
from llmcalc.text import shorten


def named(name: str) -> Float:
    """The scalar float of that name in any spelling; another format is an InputError."""
    known = find_dtype(name)
    own = name.lower().removeprefix("torch.").replace("-", "_")
    for key in (known.name if known is not None else own, f"float8_{own}"):
        if key in FLOATS:
            return FLOATS[key]
    no_mix(name)
    key = dtype(name).name  # a name that nobody knows is an error here
    raise InputError(
        f"{key} is no scalar float",
        hint=f"`llmcalc list dtypes` has its size; floats: {', '.join(FLOATS)}",
    )


def number(word: str) -> tuple[str, Value]:
    """A number as it was written, exactly: ``0.1`` is a tenth and not the nearest float64."""
    text = word.strip().lower()
    special = text.removeprefix("+")
    if special in ("nan", "inf", "infinity", "-inf", "-infinity", "-nan"):
        return word, "nan" if "nan" in special else "-inf" if special[0] == "-" else "inf"
    if len(text) > 400 or (("e" in text) and len(text.rpartition("e")[2]) > 5):
        raise InputError(f"--value {shorten(word)!r} is out of every format's range")
    try:
        number = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--value {shorten(word)!r} is not a number") from None
    return word, "-0" if not number and text.startswith("-") else number


def from_bits(form: Float, text: str) -> View:
    """A code of the format, or of float32 where it has more bits than the format, as a number."""
    try:
        code = int(text, 0)
    except ValueError:
        raise InputError(
            f"--bits {shorten(text)!r} is not a code such as 0x3f80 or 0b0101"
        ) from None
    if 0 <= code < 1 << form.bits:
        return _shown([_row(form, text, form.decode(code), code)])
    source = FLOATS["float32"]
    if not 0 <= code < 1 << source.bits:
        most = max(form.bits, source.bits)
        raise InputError(f"--bits {shorten(text)} has more bits than {most}, those of a code")
    read = f"{text} has more than {form.bits} bits: it is read as float32 and converted"
    return _shown([_row(form, text, source.decode(code))], [read])


def bits_in_memory(name: str) -> int:
    """The bits that a scalar float takes in memory, which for TF32 are more than its own."""
    return FLOATS[name].stored_bits or FLOATS[name].bits


def every() -> list[Float]:
    """All scalar floats."""
    return list(FLOATS.values())


def no_mix(name: str) -> None:
    """File types and schemes of matrices are no formats of numbers: an InputError says where."""
    mixed = file_type(name)
    if find_dtype(name) is None and mixed is not None:
        raise InputError(
            f"{mixed} is a GGUF file type, a mix of formats by tensor",
            hint=f"llmcalc dtype {mixed} --model gpt2",
        )
    if packed.is_scheme(name.lower()):
        asked = ", --codes or --bits" if name.lower() in PACKED else ""
        raise InputError(
            f"{name.lower()} is a way to store matrices, not a format of single numbers",
            hint=f"llmcalc dtype {name.lower()} with --model{asked}",
        )


def limits(name: str | None) -> View:
    """Bits and limits, one format per row: all that there are, or one and how it is laid out."""
    block = find(name) if name is not None else None
    if block is not None:
        return _single(block.name, packed.row_of(block), packed.facts_of(block))
    if name is not None and packed.is_scheme(name.lower()):
        scheme = name.lower()
        return _single(scheme, packed.scheme_row(scheme), packed.scheme_facts(scheme))
    if name is None:
        rows = [_limits(f) for f in every()] + packed.rows()
        return View(
            kind="dtype/1",
            title=f"{len(rows)} formats",
            columns=_COLUMNS,
            rows=rows,
            picture=partial(formats, "bits", rows),
        )
    no_mix(name)
    f = named(name)
    row = _limits(f)
    return View(
        kind="dtype/1",
        title=f.name,
        columns=_filled(row),
        rows=[row],
        facts=_meaning(f),
        picture=partial(formats, f.name, [row]),
    )


def _single(name: str, row: dict[str, Any], facts: list[Fact]) -> View:
    return View(kind="dtype/1", title=name, columns=_filled(row), rows=[row], facts=facts)


def _meaning(f: Float) -> list[Fact]:
    """How a code is laid out, and the formula of its number."""
    layout = Fact("layout", "s" * f.sign + "e" * f.exponent + "m" * f.mantissa, "layout")
    if f.kind == "scale":
        return [layout, Fact("value", f"2^(e - {f.bias})", "a code means")]
    part = 2**f.mantissa
    normal = f"(-1)^s·2^(e - {f.bias})·(1 + m/{part})"
    subnormal = f"(-1)^s·2^{1 - f.bias}·m/{part}"
    return [
        layout,
        Fact("value", normal, "a code means"),
        Fact("subnormal", subnormal, "where e is 0"),
    ]


def _limits(f: Float) -> dict[str, Any]:
    return {
        "dtype": f.name,
        "bits": bits_in_memory(f.name),
        "block": 1,
        "block_bytes": None,
        "sign": f.sign,
        "exponent": f.exponent,
        "mantissa": f.mantissa,
        "bias": f.bias,
        "max": float(f.largest),
        "min_normal": float(f.smallest_normal),
        "min_subnormal": float(f.smallest),
        "epsilon": float(f.epsilon),
        "digits": f.digits,
        "special": _SPECIAL[f.kind],
    }


_SPECIAL = {
    "ieee": "±0, ±inf, NaN",
    "fn": "±0, NaN, no inf",
    "fnuz": "0, NaN, no inf, no -0",
    "finite": "±0 alone",
    "scale": "NaN; no 0, no sign",
}


_COLUMNS = [
    Column("dtype", "dtype"),
    Column("bits", "bits", lambda b: f"{b:.10g}", right=True),
    Column("block", "block", right=True),
    Column("block_bytes", "bytes", right=True),
    *(Column(k, k, right=True) for k in ("sign", "exponent", "mantissa", "bias")),
    Column("max", "largest", packed.short, right=True),
    Column("min_normal", "smallest normal", packed.short, right=True),
    Column("min_subnormal", "smallest", packed.short, right=True),
    Column("epsilon", "epsilon", packed.short, right=True),
    Column("digits", "digits", right=True),
    Column("special", "special values; a block's layout"),
]


def _filled(row: dict[str, Any]) -> list[Column]:
    """The columns that a single format has something in."""
    return [c for c in _COLUMNS if row[c.key] is not None]


def stored(formats: list[Float], numbers: list[tuple[str, Value]]) -> View:
    """Every number in every format: its code, what is really stored, the error, the neighbours."""
    return _shown([_row(f, word, number) for word, number in numbers for f in formats])


def _shown(rows: list[dict[str, Any]], notes: Sequence[str] = ()) -> View:
    columns = [
        Column("value", "number"),
        Column("dtype", "dtype"),
        Column("bits", "s e m"),
        Column("hex", "code", right=True),
        Column("stored", "stored", packed.short, right=True),
        Column("stored_exact", "exactly", shown=False),
        Column("error", "error", packed.short, right=True),
        Column("relative_error", "relative", packed.short, right=True),
        Column("saturating", "if it saturates", packed.short, right=True),
        Column("below", "next below", packed.short, right=True),
        Column("above", "next above", packed.short, right=True),
        Column("note", "", lambda n: n or ""),
    ]
    return View(
        kind="dtype/1",
        title="numbers as they are stored: to nearest, ties to even",
        columns=columns,
        rows=rows,
        notes=notes,
    )


def _row(f: Float, word: str, number: Value, code: int | None = None) -> dict[str, Any]:
    """A number in a format; ``code`` is its own code where that is what was asked for."""
    row: dict[str, Any] = {"value": word, "dtype": f.name, "note": None}
    try:
        if code is None:
            code = f.encode(number)
        saturated = f.decode(f.encode(number, saturate=True))
    except InputError as refusal:
        return {**row, "note": str(refusal)}
    stored = f.decode(code)
    below, above = f.neighbours(code)
    got = Fraction(0) if stored == "-0" else stored
    error = got - number if isinstance(number, Fraction) and isinstance(got, Fraction) else None
    relative = (
        error / abs(number)
        if error is not None and isinstance(number, Fraction) and number
        else None
    )
    return {
        **row,
        "note": _remark(f, number, stored),
        "bits": _drawn(f, code),
        "hex": f"0x{code:0{-(-f.bits // 4)}x}",
        "stored": _plain(stored),
        "stored_exact": str(stored),
        "error": _plain(error),
        "relative_error": _plain(relative),
        "saturating": _plain(saturated),
        "below": _plain(below),
        "above": _plain(above),
    }


def _remark(f: Float, number: Value, stored: Value) -> str | None:
    """What became of a number where more happened to it than rounding."""
    if number in ("inf", "-inf"):
        if stored == number:
            return None
        return f"no infinity: {'NaN' if stored == 'nan' else 'the largest'}"
    if number == "-0":
        return None if stored == number else f"no -0: {'NaN' if stored == 'nan' else 0}"
    if isinstance(number, str):
        return None
    if stored in ("nan", "inf", "-inf"):
        return "overflow" if abs(number) > f.largest else "not in the format"
    size = Fraction(0) if isinstance(stored, str) else abs(stored)
    if number and not size:
        return "underflow to 0"
    if abs(number) > f.largest and f.kind == "finite":
        return "the largest: more is not there"
    if f.kind == "scale":
        if number < f.smallest:
            return "the smallest: less is not there"
        halfway = 3 * size == 4 * number  # 2^n from 1.5·2^(n - 1)
        return "halfway between two powers: the larger" if halfway else None
    return "subnormal" if size and size < f.smallest_normal else None


def _drawn(f: Float, code: int) -> str:
    text = f"{code:0{f.bits}b}"
    parts = (text[: f.sign], text[f.sign : f.sign + f.exponent], text[f.sign + f.exponent :])
    return " ".join(p for p in parts if p)


def _plain(value: Value | None) -> float | str | None:
    """A value for JSON: a float where it is one exactly or nearly, else its name."""
    return float(value) if isinstance(value, Fraction) else "-0.0" if value == "-0" else value
