"""``llmcalc dtype`` for scalar floats: their limits, a number in one or all of them."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

from llmcalc.cli.dtype import blocks as packed
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
    key = known.name if known is not None else name.lower()
    if key in FLOATS:
        return FLOATS[key]
    dtype(name)  # a name that nobody knows is an error here
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


def from_bits(form: Float, text: str) -> tuple[str, Value]:
    """A code of the format, or of float32 where it has more bits than the format."""
    try:
        code = int(text, 0)
    except ValueError:
        raise InputError(
            f"--bits {shorten(text)!r} is not a code such as 0x3f80 or 0b0101"
        ) from None
    source = form if 0 <= code < 1 << form.bits else FLOATS["float32"]
    if not 0 <= code < 1 << source.bits:
        raise InputError(f"--bits {text} has more bits than {source.name}")
    return text, source.decode(code)


def every() -> list[Float]:
    """All scalar floats."""
    return list(FLOATS.values())


def no_mix(name: str) -> None:
    """A GGUF file type is no format of numbers: an InputError that says where it is one."""
    mixed = file_type(name)
    if find_dtype(name) is None and mixed is not None:
        raise InputError(
            f"{mixed} is a GGUF file type, a mix of formats by tensor",
            hint=f"llmcalc dtype {mixed} --model gpt2",
        )


def limits(name: str | None) -> View:
    """Bits and limits, one format per row: all that there are, or one and how it is laid out."""
    block = find(name) if name is not None else None
    if block is not None:
        row = packed.row_of(block)
        return View("dtype/1", block.name, _filled(row), [row], packed.facts_of(block))
    if name is not None and packed.is_scheme(name.lower()):
        row = packed.scheme_row(name.lower())
        return View("dtype/1", name.lower(), _filled(row), [row], packed.scheme_facts(name.lower()))
    if name is None:
        rows = [_limits(f) for f in every()] + packed.rows()
        return View(
            "dtype/1",
            f"{len(rows)} formats",
            _COLUMNS,
            rows,
            picture=partial(formats, "bits", rows),
        )
    no_mix(name)
    f = named(name)
    facts = [Fact("layout", "s" * f.sign + "e" * f.exponent + "m" * f.mantissa, "layout")]
    facts.append(Fact("value", f"(-1)^s·2^(e - {f.bias})·(1 + m/{2**f.mantissa})", "a code means"))
    if f.kind != "scale":
        facts.append(Fact("subnormal", f"(-1)^s·2^{1 - f.bias}·m/{2**f.mantissa}", "where e is 0"))
    row = _limits(f)
    return View(
        "dtype/1", f.name, _filled(row), [row], facts, picture=partial(formats, f.name, [row])
    )


def _limits(f: Float) -> dict[str, Any]:
    return {
        "dtype": f.name,
        "bits": f.stored_bits or f.bits,
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
    rows = [_row(f, word, number) for word, number in numbers for f in formats]
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
    return View("dtype/1", "numbers as they are stored: to nearest, ties to even", columns, rows)


def _row(f: Float, word: str, number: Value) -> dict[str, Any]:
    row: dict[str, Any] = {"value": word, "dtype": f.name, "note": None}
    try:
        code, saturated = f.encode(number), f.decode(f.encode(number, saturate=True))
    except InputError as refusal:
        return {**row, "note": str(refusal)}
    stored = f.decode(code)
    below, above = f.neighbours(code)
    if isinstance(number, Fraction):
        if isinstance(stored, str) and stored != "-0":
            row["note"] = (
                "overflow" if number > f.largest or number < -f.largest else "not in the format"
            )
        elif number and (stored == "-0" or not stored):
            row["note"] = "underflow to 0"
        elif isinstance(stored, Fraction) and abs(stored) == f.largest and abs(number) > f.largest:
            row["note"] = "the largest: more is not there" if f.kind == "finite" else None
        elif isinstance(stored, Fraction) and stored and abs(stored) < f.smallest_normal:
            row["note"] = "subnormal"
    got = Fraction(0) if stored == "-0" else stored
    error = got - number if isinstance(number, Fraction) and isinstance(got, Fraction) else None
    relative = (
        error / abs(number)
        if error is not None and isinstance(number, Fraction) and number
        else None
    )
    return {
        **row,
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


def _drawn(f: Float, code: int) -> str:
    text = f"{code:0{f.bits}b}"
    parts = (text[: f.sign], text[f.sign : f.sign + f.exponent], text[f.sign + f.exponent :])
    return " ".join(p for p in parts if p)


def _plain(value: Value | None) -> float | str | None:
    """A value for JSON: a float where it is one exactly or nearly, else its name."""
    return float(value) if isinstance(value, Fraction) else "-0.0" if value == "-0" else value
