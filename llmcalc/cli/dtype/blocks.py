"""``llmcalc dtype`` for integers and block formats: what they are, numbers in them, memory piece by
piece.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.block import BLOCKS, INTEGERS, Block, Integer
from llmcalc.formats.element import GGUF_DTYPES, find_dtype
from llmcalc.formats.floats import Value
from llmcalc.formats.scheme import SCHEMES
from llmcalc.text import safe, shorten
from llmcalc.units import exact

if TYPE_CHECKING:
    from llmcalc.formats.codecs.block import Coded

Number = tuple[str, Value]


def rows() -> list[dict[str, Any]]:
    """Every integer, block format and scheme of matrices, for the table of all."""
    schemes = [scheme_row(n) for n in SCHEMES if is_scheme(n)]
    return [*map(row_of, INTEGERS.values()), *map(row_of, BLOCKS.values()), *schemes]


_KEYS = (
    "dtype bits block block_bytes sign exponent mantissa bias max min_normal min_subnormal epsilon"
    " digits special"
)
_BLANK: dict[str, Any] = dict.fromkeys(_KEYS.split())


def row_of(found: Integer | Block) -> dict[str, Any]:
    """One format's row: bits per weight, block, bytes of it, limits or layout."""
    if isinstance(found, Integer):
        return _BLANK | {
            "dtype": found.name,
            "bits": found.bits,
            "block": 1,
            "max": found.highest,
            "special": f"{found.lowest} to {found.highest}",
        }
    return _BLANK | {
        "dtype": found.name,
        "bits": found.bits,
        "block": found.block,
        "block_bytes": found.size,
        "special": found.layout,
    }


def is_scheme(name: str) -> bool:
    """Whether the name is a way to store matrices and not a format of their elements."""
    return (
        name in SCHEMES
        and name not in BLOCKS
        and find_dtype(name) is None
        and not name.startswith("mx")
    )


def scheme_row(name: str) -> dict[str, Any]:
    """A scheme's row: bits per weight of a 4096 x 4096 matrix, and its formula."""
    n_bytes = int(SCHEMES[name].n_bytes(4096, 4096))
    return _BLANK | {
        "dtype": name,
        "bits": 8 * n_bytes / 4096**2,
        "special": SCHEMES[name].formula,
    }


def scheme_facts(name: str) -> list[Fact]:
    """What a scheme stores of a 4096 x 4096 matrix, piece by piece."""
    facts = [Fact("formula", SCHEMES[name].formula, "bits per weight")]
    for ending, n_bytes in piece_bytes(name, 4096, 4096).items():
        key = ending.removeprefix("weight.").removeprefix("_")
        label = f"{key}, 4096 x 4096"
        facts.append(Fact(f"{key}_bytes", n_bytes, label, lambda n: f"{exact(n)} B"))
    return facts


def piece_bytes(name: str, inputs: int, outputs: int) -> dict[str, int]:
    """Bytes of every piece of one matrix, under the ending of its name."""
    scheme = SCHEMES[name]
    pieces = scheme.pieces(Dim(inputs), Dim(outputs), scheme.packing)
    return {ending: int(piece.n_bytes) for ending, piece in pieces.items()}


def facts_of(found: Integer | Block) -> list[Fact]:
    """What a single format's page says under its row."""
    if isinstance(found, Integer):
        levels = Fact("levels", found.highest - found.lowest + 1, "levels")
        if found.name == "ternary":
            return [levels]  # no one rule makes numbers of it
        rule = "q = round(x/s) + z;  x̂ = (q - z)·s;  s = (max - min)/(q_max - q_min)"
        return [levels, Fact("affine", rule, "affine quantisation")]
    formula = f"8·{found.size}/{found.block} = {found.bits:.10g}"
    facts = [
        Fact("layout", found.layout, "one block"),
        Fact("value", found.meaning, "a code means"),
        Fact("bits_per_weight", found.bits, "bits per weight", lambda _: formula),
    ]
    if found.per_tensor:
        facts.append(Fact("bytes_per_tensor", found.per_tensor, "bytes more per tensor"))
    return facts


def stored(found: Integer | Block, numbers: list[Number], only: str | None) -> View:
    """Numbers as one tensor in the format, by every rule it is made with.

    ``only`` keeps symmetric or affine ones.
    """
    import numpy as np

    words = [safe(shorten(word.strip())) for word, _ in numbers]
    finite = [_finite(word, value, found.name) for word, value in numbers]
    array = np.array([float(x) for x in finite])
    result: list[dict[str, Any]] = []
    facts: list[Fact] = []
    for rule, coded in _coded(found, array, only):
        result += [
            _row(found, rule, word, x, coded, i)
            for i, (word, x) in enumerate(zip(words, finite, strict=True))
        ]
        facts.append(Fact(f"clipped_{rule or 'values'}", coded.clipped))
    return View(
        kind="dtype/1",
        title=f"{len(numbers)} number{'' if len(numbers) == 1 else 's'} in {found.name}",
        columns=_columns(found, result),
        rows=result,
        facts=facts,
        notes=_notes(found, {row["rule"] for row in result}, set(finite)),
    )


def _columns(found: Integer | Block, rows: list[dict[str, Any]]) -> list[Column]:
    """The columns, without those that nothing is known for."""
    ruled = any(row["rule"] for row in rows)
    known = any(row["scale"] is not None for row in rows)
    point = Column("zero_point", "zero point", short, right=True)
    return [
        Column("value", "number"),
        Column("dtype", "dtype"),
        Column("rule", "rule", lambda r: r or "", shown=ruled),
        Column("scale", "scale", short, right=True, shown=known),
        *([point] if isinstance(found, Integer) else []),
        Column("scaled", "x / scale", short, right=True, shown=known),
        Column("code", "code", short, right=True, shown=known),
        Column("stored", "stored", short, right=True),
        Column("error", "error", short, right=True),
        Column("note", "", lambda n: n or ""),
    ]


def _finite(word: str, value: Value, name: str) -> Fraction:
    number = Fraction(0) if value == "-0" else value
    if not isinstance(number, Fraction):
        raise InputError(f"{safe(shorten(word))} has no code in {name}: every code is a number")
    if abs(number) > 10**38:
        raise InputError(f"{safe(shorten(word))} is beyond what is quantised: float32's range")
    return number


def _coded(found: Integer | Block, array: Any, only: str | None) -> list[tuple[str, Coded]]:
    """The numbers by every rule in use: its name, and what comes of it."""
    from llmcalc.formats.codecs import block as blocks
    from llmcalc.formats.codecs import ggml
    from llmcalc.formats.codecs import integer as integers

    if isinstance(found, Integer):
        if found.name == "ternary":
            raise InputError(
                f"numbers are not stored as {found.name} by one rule",
                hint="int8, int4, int2 and their unsigned kin are",
            )
        ways = integers.ways(found.bits, signed=found.lowest < 0)
        chosen = [w for w in ways if only is None or w.name.startswith(only)]
        if not chosen:
            raise InputError(f"{found.name} has no code below 0, so nothing lies around it")
        return [(w.name, integers.quantise(array, w)) for w in chosen]
    if only is not None:
        raise InputError(f"--{only} is a question about integers, and {found.name} is none")
    if found.name.startswith("mx"):
        return [(rule, blocks.micro(array, found.name, rule)) for rule in blocks.RULES]
    quantise = blocks.quantiser(found.name)
    if quantise is not None:
        return [("", quantise(array))]
    form = next((d for d in GGUF_DTYPES.values() if d.name == found.name), None)
    if form is None:
        raise InputError(
            f"{found.name} rounds as nf4 does, its scales once more",
            hint="llmcalc dtype nf4 --value ...",
        )
    return [("", ggml.round_trip(array, form))]


def _row(
    found: Integer | Block, rule: str, word: str, x: Fraction, coded: Coded, i: int
) -> dict[str, Any]:
    at = i // coded.block
    scale, code, value = float(coded.scales[at]), float(coded.codes[i]), float(coded.values[i])
    known = scale == scale  # ggml's own quantisers keep theirs
    scaled = float(x) / scale if known and scale else None
    row = {
        "value": word,
        "dtype": found.name,
        "rule": rule,
        "block": at,
        "scale": scale if known else None,
        "scaled": scaled,
        "code": code if known else None,
        "stored": value,
        "error": value - float(x),
        "note": _note(found, scaled),
    }
    if isinstance(found, Integer) and coded.zeros is not None:
        row |= {"zero_point": int(coded.zeros[at]), "code": int(code)}
        if scaled is not None and round(scaled) + int(coded.zeros[at]) != int(code):
            row["note"] = "clipped"
    return row


def _note(found: Integer | Block, scaled: float | None) -> str | None:
    from llmcalc.formats.codecs.block import largest

    if (
        scaled is None
        or not found.name.startswith(("mx", "nvfp4"))
        or abs(scaled) <= largest(found.name)
    ):
        return None
    top = largest(found.name)
    return f"clipped to {top if scaled > 0 else -top:g}"


_SAID = {
    "symmetric": "symmetric: s = max|x| / ((q_max - q_min)/2), z = 0",
    "affine": "affine: s = (max - min)/(q_max - q_min), z = round(q_min - min/s), the range "
    "widened to hold 0",
    "affine, range not widened": "range not widened: the same of the numbers alone, "
    "z clamped into the codes",
    "floor": "floor: scale 2^(floor(log2 max|x|) - emax), the OCP rule, which may clip",
    "ceil": "ceil: the least power of two that clips nothing",
}
"""What each rule does, under its name in the rows."""


def _notes(found: Integer | Block, rules: set[str], numbers: set[Fraction]) -> list[str]:
    """What the rules that are shown do, and no others."""
    shown = {"symmetric" if rule.startswith("symmetric") else rule for rule in rules}
    notes = [text for rule, text in _SAID.items() if rule in shown]
    if isinstance(found, Integer):
        notes.insert(0, "q = round(x/s) + z, halves to even, x̂ = (q - z)·s")
        return notes + _without_range(rules, numbers)
    if found.name == "nvfp4":
        notes.append("scale: an e4m3 number per 16, times the tensor's float32 max|x|/(448·6)")
    elif found.name in ("nf4", "bnb_fp4"):
        notes.append("scale: max|x| of 64 numbers; code: the nearest of the table's 16 levels")
    elif not found.name.startswith("mx"):
        notes.append(
            "rounded by the gguf package's quantiser, which tells neither codes nor scales"
        )
    return notes


def _without_range(rules: set[str], numbers: set[Fraction]) -> list[str]:
    """Which rules had no range to divide, so that their scale is 1 by no formula."""
    from llmcalc.formats.codecs.integer import NARROW

    if numbers == {0}:
        return ["zeros have no range: s = 1"]
    if len(numbers) == 1 and NARROW in rules:
        return ["one value has no range of its own: there s = 1"]
    return []


def short(x: Any) -> str:
    """A number in nine digits, a special one by its name."""
    if x is None:
        return "-"
    return x if isinstance(x, str) else f"{x:.9g}"


def memory(found: Block, n: int) -> list[tuple[str, int]]:
    """The bytes of so many weights piece by piece, as the writer names them.

    The tables of a tensor together.
    """
    scheme = {"nf4": "nf4", "bnb_fp4": "nf4", "nf4_double": "nf4_double"}.get(found.name)
    if scheme is None:
        pieces = [("blocks", -(-n // found.block) * found.size)]
    else:
        found_pieces = piece_bytes(scheme, n, 1)
        names = {ending: ending.removeprefix("weight.") for ending in found_pieces}
        pieces = [(names[e], b) for e, b in found_pieces.items() if not e.endswith("_map")]
    return [*pieces, *([("per_tensor", found.per_tensor)] if found.per_tensor else [])]
