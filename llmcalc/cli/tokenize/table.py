"""What ``tokenize`` shows: one row per token, or per file, or per tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.pictures import as_bars
from llmcalc.cli.output.progress import Progress
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError
from llmcalc.text import safe, shorten
from llmcalc.tokens import corpus
from llmcalc.tokens.base import Tokenizer
from llmcalc.tokens.count import Counts, count
from llmcalc.tokens.find import named
from llmcalc.units import exact, parse_count, percent

if TYPE_CHECKING:
    from llmcalc.cli.tokenize.options import CountOptions, TokenOptions


@dataclass(frozen=True, slots=True)
class Subject:
    """A text under a tokenizer.

    The context and embedding rows of the model it is for; what to say about it.
    """

    tokenizer: Tokenizer
    text: str
    special: str
    add: bool
    context: int | None
    embedding: int | None
    notes: Sequence[str]


def visible(piece: bytes | _Piece) -> str:
    """A piece as a person reads it: spaces as dots, controls escaped, bytes that are no whole
    character as bytes.

    >>> visible(b" the"), visible(bytes([0xe2, 0x82])), visible(b"a" + bytes([10]))
    ('·the', '<e2><82>', 'a\\\\n')
    """
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<{b:02x}>" for b in piece)
    return safe(
        text.replace("\\", "\\\\")
        .replace(" ", "·")
        .replace("\n", "\\n")
        .replace("\t", "\\t")
        .replace("\r", "\\r")
    )


def of_text(s: Subject, counting: CountOptions) -> View:
    """One row per token, and what the text holds."""
    ids = s.tokenizer.encode(s.text, s.special, s.add)
    pieces = [s.tokenizer.piece(i) for i in ids]
    n_bytes = len(s.text.encode("utf-8", "surrogatepass"))
    words = len(s.text.split())
    facts = [
        Fact(
            "tokenizer",
            s.tokenizer.name,
            "tokenizer",
            lambda n: f"{safe(n)} ({safe(s.tokenizer.source)})",
        ),
        Fact("n_tokens", len(ids), "tokens", exact),
        Fact("n_bytes", n_bytes, "bytes", exact),
        Fact("n_chars", len(s.text), "characters", exact),
        Fact("n_words", words, "words", exact),
        Fact(
            "bytes_per_token",
            n_bytes / len(ids) if ids else None,
            "bytes per token",
            lambda x: f"{x:.3f}",
        ),
        Fact(
            "tokens_per_word",
            len(ids) / words if words else None,
            "tokens per word",
            lambda x: f"{x:.3f}",
        ),
        Fact("vocabulary", s.tokenizer.n_vocab),
        Fact(
            "distinct",
            len(set(ids)),
            "distinct",
            lambda n: f"{exact(n)} of a vocabulary of {exact(s.tokenizer.n_vocab)}",
        ),
        Fact("n_partial", sum(1 for p in pieces if not _whole(p)), "pieces of a character", exact),
        Fact("special", s.special),
        Fact("ids", ids),
        Fact("pieces", [p.decode("utf-8", "backslashreplace") for p in pieces]),
    ]
    if s.context is not None:
        facts.append(
            Fact(
                "context_share",
                len(ids) / s.context,
                "of the model's context",
                lambda _: percent(len(ids), s.context or 1),
            )
        )
    if counting.live:
        facts += _live(s, ids)
    rows, columns = _rows(ids, pieces, counting)
    notes = [*s.notes, *_notes(s, ids, len(rows), counting)]
    title = f"{exact(len(ids))} tokens under {safe(s.tokenizer.name)}"
    return View(
        kind="tokenize/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        bands=bands(pieces[: counting.rows or None]),
    )


def bands(pieces: Sequence[bytes]) -> list[str]:
    """The text in pieces for a terminal that colours them; pieces of one character stay
    together.
    """
    found, held = [], b""
    for piece in pieces:
        held += piece
        if _whole(held):
            found.append(safe(held.decode(), keep="\n"))
            held = b""
    return found if not held else [*found, safe(held.decode("utf-8", "backslashreplace"))]


def _whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows(
    ids: list[int], pieces: list[bytes], counting: CountOptions
) -> tuple[list[dict[str, Any]], list[Column]]:
    text = Column("piece", "piece", visible)
    if counting.top is not None:
        often = Counter(ids).most_common(counting.top)
        known = dict(zip(ids, pieces, strict=True))
        rows: list[dict[str, Any]] = [
            {"id": i, "piece": _Piece(known[i]), "times": n} for i, n in often
        ]
        return rows, [
            Column("times", "times", exact, right=True),
            Column("id", "id", exact, right=True),
            text,
        ]
    most = counting.rows or len(ids)
    rows = [
        {"index": i, "id": t, "piece": _Piece(p), "bytes": len(p)}
        for i, (t, p) in enumerate(zip(ids[:most], pieces[:most], strict=True))
    ]
    number = Column("index", "#", exact, right=True)
    return rows, [
        number,
        Column("id", "id", exact, right=True),
        text,
        Column("bytes", "bytes", exact, right=True),
    ]


class _Piece(str):
    """A piece in JSON as its text, and on screen made visible from its bytes."""

    raw: bytes

    def __new__(cls, piece: bytes) -> _Piece:
        self = super().__new__(cls, piece.decode("utf-8", "backslashreplace"))
        self.raw = piece
        return self

    def decode(self) -> str:
        """The bytes as text, as bytes decode."""
        return self.raw.decode()

    def __iter__(self) -> Any:
        return iter(self.raw)


def _notes(s: Subject, ids: list[int], shown: int, counting: CountOptions) -> list[str]:
    said = []
    if s.special == "allow" and any(i in set(s.tokenizer.special.values()) for i in ids):
        said.append(
            "special tokens in the text are read as such (--special text reads them as plain text)"
        )
    if s.special == "text" and any(t in s.text for t in s.tokenizer.special):
        said.append(
            "text that spells special tokens is read as plain text (--special allow reads it as"
            " them)"
        )
    first = ids[:2]
    if len(first) == 2 and first[0] == first[1] and first[0] in s.tokenizer.special.values():
        said.append(
            "the text begins with the same special token twice: once written in it and once added"
        )
    if counting.top is None and shown < len(ids):
        said.append(f"{exact(len(ids) - shown)} more tokens are not listed (--rows 0 lists all)")
    if s.text.endswith("\n") and len(s.text) > 1:
        said.append("the newline at the end is part of the text")
    return said


def _live(s: Subject, ids: list[int]) -> list[Fact]:
    """Whether decoding gives the text back."""
    same = s.tokenizer.decode(ids) == s.text.encode("utf-8", "surrogatepass")
    expected = s.tokenizer.lossless
    said = (
        "the same text"
        if same
        else "another text" + ("" if expected else ": this tokenizer normalises")
    )
    inside = s.embedding is None or all(i < s.embedding for i in ids)
    facts = [
        Fact("round_trip", same, "decoded again", lambda _: said),
        Fact("live_same", (same or not expected) and inside),
    ]
    if s.embedding is not None:
        padded = max(s.embedding - s.tokenizer.n_vocab, 0)
        rows = f"{exact(s.embedding)}, of which {exact(padded)} are no token's"
        where = f"; the largest id is {exact(max(ids, default=0))}" + (
            "" if inside else ", which has no row"
        )
        facts.append(
            Fact("embedding_rows", s.embedding, "rows of the embedding", lambda _: rows + where)
        )
    return facts


def priced(view: View, n: int, counting: CountOptions) -> View:
    """The view with what so many tokens cost, where a price is given."""
    if counting.price_in is None:
        return view
    unit = parse_count(counting.unit)
    if unit < 1:
        raise InputError(f"--unit is {counting.unit}; it must be at least 1")
    cost = n * counting.price_in / unit
    said = f"{cost:.6g} at {counting.price_in:g} per {exact(unit)} tokens"
    return replace(view, facts=[*view.facts, Fact("cost", cost, "cost", lambda _: said)])


def decoded(tokenizer: Tokenizer, text: str) -> View:
    """Ids as the text that they stand for."""
    words = text.replace(",", " ").split()
    if not words or not all(w.isdigit() for w in words):
        raise InputError(f"--ids is {shorten(text)!r}; token ids are whole numbers between commas")
    ids = [int(w) for w in words]
    pieces = [tokenizer.piece(i) for i in ids]
    whole = tokenizer.decode(ids)
    shown = whole.decode("utf-8", "backslashreplace")
    facts = [
        Fact("tokenizer", tokenizer.name, "tokenizer"),
        Fact("n_tokens", len(ids)),
        Fact("text", shown, "text", lambda t: safe(repr(t))),
        Fact("valid_utf8", _whole(whole)),
        Fact("ids", ids),
        Fact("pieces", [p.decode("utf-8", "backslashreplace") for p in pieces]),
    ]
    rows = [
        {"index": i, "id": t, "piece": _Piece(p), "bytes": len(p)}
        for i, (t, p) in enumerate(zip(ids, pieces, strict=True))
    ]
    columns = [
        Column("index", "#", exact, right=True),
        Column("id", "id", exact, right=True),
        Column("piece", "piece", visible),
        Column("bytes", "bytes", exact, right=True),
    ]
    return View("tokenize/1", f"{len(ids)} ids under {safe(tokenizer.name)}", columns, rows, facts)


def compared(names: str, text: str, special: str) -> View:
    """One text under several tokenizers: how many tokens, and where they cut otherwise than the
    first.
    """
    tokenizers = [named(n.strip()) for n in names.split(",") if n.strip()]
    if len(tokenizers) < 2:
        raise InputError(
            f"--compare {names!r} names fewer than two tokenizers",
            hint="--compare gpt2,cl100k_base",
        )
    encoded = [t.encode(text, special) for t in tokenizers]
    cuts = [_cuts(t, ids) for t, ids in zip(tokenizers, encoded, strict=True)]
    rows = [
        {
            "tokenizer": t.name,
            "n_tokens": len(ids),
            "ratio": len(ids) / len(encoded[0]) if encoded[0] else None,
            "different_cuts": len(cut ^ cuts[0]),
            "vocabulary": t.n_vocab,
            "pieces": [_Piece(t.piece(i)) for i in ids],
        }
        for t, ids, cut in zip(tokenizers, encoded, cuts, strict=True)
    ]
    columns = [
        Column("tokenizer", "tokenizer"),
        Column("n_tokens", "tokens", exact, right=True),
        Column("ratio", "to the first", lambda r: "-" if r is None else f"{r:.3f}", right=True),
        Column("different_cuts", "other boundaries", exact, right=True),
        Column("vocabulary", "vocabulary", exact, right=True),
        Column(
            "pieces",
            "pieces",
            lambda ps: "|".join(visible(p) for p in ps[:24]) + (" ..." if len(ps) > 24 else ""),
        ),
    ]
    facts = [
        Fact("n_bytes", len(text.encode()), "bytes", exact),
        Fact("n_chars", len(text), "characters", exact),
    ]
    title = f"{len(rows)} tokenizers on one text"
    drawn = partial(
        as_bars, title, rows, "tokenizer", "n_tokens", "tokens", lambda n: exact(round(n))
    )
    return View("tokenize/1", title, columns, rows, facts, picture=drawn)


def _cuts(tokenizer: Tokenizer, ids: Sequence[int]) -> set[int]:
    """Byte offsets at which pieces end."""
    at, found = 0, set()
    for i in ids:
        at += len(tokenizer.piece(i))
        found.add(at)
    return found


def counted(
    tokenizer: Tokenizer, files: Sequence[Path], options: TokenOptions, special: str, words: bool
) -> tuple[View, int]:
    """Files of any size, one row each, and their sum."""
    rows: list[dict[str, Any]] = []
    total, records = Counts(), 0
    progress = Progress(sum(p.stat().st_size for p in files))
    for path in files:
        n_records = None
        if corpus.is_corpus(path):
            counts, n_records = corpus.count(tokenizer, path, options.field, special)
            records += n_records
        else:
            try:
                with path.open("rb") as file:
                    counts = count(
                        tokenizer,
                        file,
                        special,
                        options.errors,
                        shorten(path.name),
                        progress.tell,
                        words,
                    )
            except OSError as error:
                raise InputError(
                    f"{shorten(str(path))} cannot be read: {error.strerror or error}"
                ) from None
        progress.done(path.stat().st_size)
        total += counts
        rows.append(
            {
                "file": str(path),
                "n_tokens": counts.tokens,
                "n_bytes": counts.n_bytes,
                "n_words": counts.words,
                "records": n_records,
            }
        )
    progress.end()
    return _files_view(tokenizer, rows, total, records, special), total.tokens


def _files_view(
    tokenizer: Tokenizer, rows: list[dict[str, Any]], total: Counts, records: int, special: str
) -> View:
    columns = [
        Column("file", "file", safe),
        Column("n_tokens", "tokens", exact, right=True),
        Column("n_bytes", "bytes", exact, right=True),
        Column("n_words", "words", exact, right=True),
        Column(
            "records",
            "records",
            lambda n: "-" if n is None else exact(n),
            right=True,
            shown=records > 0,
        ),
    ]
    each = total.n_bytes / total.tokens if total.tokens else None
    facts = [
        Fact("tokenizer", tokenizer.name, "tokenizer"),
        Fact("n_tokens", total.tokens, "tokens", exact),
        Fact("n_bytes", total.n_bytes, "bytes", exact),
        Fact("n_chars", total.chars, "characters", exact),
        Fact("n_words", total.words, "words", exact),
        Fact("bytes_per_token", each, "bytes per token", lambda x: f"{x:.3f}"),
        Fact("n_records", records, "records" if records else None, exact),
        Fact("special", special),
    ]
    notes = []
    if total.replaced:
        notes.append(
            f"{exact(total.replaced)} characters U+FFFD, which stand for bytes that are no UTF-8"
        )
    if not tokenizer.cuts_before_spaces:
        notes.append(f"{safe(tokenizer.name)} sees every text whole: cutting it could change ids")
    title = f"{exact(total.tokens)} tokens" + (f" in {len(rows)} files" if len(rows) > 1 else "")
    return View(
        kind="tokenize/1", title=title, columns=columns, rows=rows, facts=facts, notes=notes
    )
