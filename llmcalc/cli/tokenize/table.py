"""What ``tokenize`` shows: one row per token, or per file, or per tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.pictures import as_bars
from llmcalc.cli.output.progress import Counting, Progress
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
    """A piece as a person reads it: spaces as dots, controls escaped.

    Bytes that are no whole character stay bytes.

    >>> visible(b" the"), visible(bytes([0xe2, 0x82])), visible(b"a" + bytes([10]))
    ('·the', '<e2><82>', 'a\\\\n')
    """
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<{b:02x}>" for b in piece)
    return safe(text.translate(_VISIBLE))


def of_text(s: Subject, counting: CountOptions) -> View:
    """One row per token, and what the text holds."""
    ids = s.tokenizer.encode(s.text, s.special, s.add)
    pieces = [s.tokenizer.piece(i) for i in ids]
    facts = _facts(s, ids, pieces)
    if s.context is not None:
        share = percent(len(ids), s.context or 1)
        label = "of the model's context"
        facts.append(Fact("context_share", len(ids) / s.context, label, lambda _: share))
    if counting.live:
        facts += _live(s, ids)
    rows, columns = _rows(ids, pieces, counting)
    return View(
        kind="tokenize/1",
        title=f"{exact(len(ids))} tokens under {safe(s.tokenizer.name)}",
        columns=columns,
        rows=rows,
        facts=facts,
        notes=[*s.notes, *_notes(s, ids, len(rows), counting)],
        bands=bands(pieces[: counting.rows or None]),
    )


def _facts(s: Subject, ids: list[int], pieces: list[bytes]) -> list[Fact]:
    tokenizer = s.tokenizer
    n = len(ids)
    n_bytes = len(s.text.encode("utf-8", "surrogatepass"))
    n_words = len(s.text.split())
    n_partial = sum(1 for piece in pieces if not _whole(piece))

    def known_as(name: str) -> str:
        return f"{safe(name)} ({safe(tokenizer.source)})"

    def of_vocabulary(count: int) -> str:
        return f"{exact(count)} of a vocabulary of {exact(tokenizer.n_vocab)}"

    return [
        Fact("tokenizer", tokenizer.name, "tokenizer", known_as),
        Fact("n_tokens", n, "tokens", exact),
        Fact("n_bytes", n_bytes, "bytes", exact),
        Fact("n_chars", len(s.text), "characters", exact),
        Fact("n_words", n_words, "words", exact),
        Fact("bytes_per_token", n_bytes / n if n else None, "bytes per token", _three),
        Fact("tokens_per_word", n / n_words if n_words else None, "tokens per word", _three),
        Fact("vocabulary", tokenizer.n_vocab),
        Fact("distinct", len(set(ids)), "distinct", of_vocabulary),
        Fact("n_partial", n_partial, "pieces of a character", exact),
        Fact("special", s.special),
        Fact("ids", ids),
        Fact("pieces", _texts(pieces)),
    ]


def _three(x: float) -> str:
    return f"{x:.3f}"


def _texts(pieces: Sequence[bytes]) -> list[str]:
    """Pieces as text, for JSON: what is no UTF-8 is escaped."""
    return [piece.decode("utf-8", "backslashreplace") for piece in pieces]


def bands(pieces: Sequence[bytes]) -> list[str]:
    """The text in pieces for a terminal that colours them; those of one character are one."""
    found: list[str] = []
    held = b""
    for piece in pieces:
        held += piece
        if _whole(held):
            found.append(safe(held.decode(), keep="\n"))
            held = b""
    if held:
        found.append(safe(held.decode("utf-8", "backslashreplace")))
    return found


def _whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows(
    ids: list[int], pieces: list[bytes], counting: CountOptions
) -> tuple[list[dict[str, Any]], list[Column]]:
    """The tokens in order, or the most frequent ones."""
    if counting.top is None:
        # --rows 0 is all
        most = counting.rows or len(ids)
        return _in_order(ids[:most], pieces[:most]), _IN_ORDER
    known = dict(zip(ids, pieces, strict=True))
    often = Counter(ids).most_common(counting.top)
    rows = [{"id": token, "piece": _Piece(known[token]), "times": n} for token, n in often]
    return rows, [Column("times", "times", exact, right=True), _ID, _PIECE]


def _in_order(ids: Sequence[int], pieces: Sequence[bytes]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        rows.append({"index": i, "id": token, "piece": _Piece(piece), "bytes": len(piece)})
    return rows


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


_VISIBLE = str.maketrans({"\\": "\\\\", " ": "·", "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_ID = Column("id", "id", exact, right=True)
_PIECE = Column("piece", "piece", visible)
_IN_ORDER = [
    Column("index", "#", exact, right=True),
    _ID,
    _PIECE,
    Column("bytes", "bytes", exact, right=True),
]


def _notes(s: Subject, ids: list[int], shown: int, counting: CountOptions) -> list[str]:
    """What of the text or of its reading a person may not expect."""
    said = []
    special = set(s.tokenizer.special.values())
    if s.special == "allow" and any(i in special for i in ids):
        said.append(
            "special tokens in the text are read as such (--special text reads them as plain text)"
        )
    if s.special == "text" and any(spelt in s.text for spelt in s.tokenizer.special):
        said.append(
            "text that spells special tokens is read as plain text (--special allow reads it as"
            " them)"
        )
    first = ids[:2]
    if len(first) == 2 and first[0] == first[1] and first[0] in special:
        said.append(
            "the text begins with the same special token twice: once written in it and once added"
        )
    if counting.top is None and shown < len(ids):
        said.append(f"{exact(len(ids) - shown)} more tokens are not listed (--rows 0 lists all)")
    if s.text.endswith("\n") and len(s.text) > 1:
        said.append("the newline at the end is part of the text")
    return said


def _live(s: Subject, ids: list[int]) -> list[Fact]:
    """Whether decoding gives the text back, and whether every id has a row."""
    same = s.tokenizer.decode(ids) == s.text.encode("utf-8", "surrogatepass")
    expected = s.tokenizer.lossless
    said = "the same text" if same else "another text"
    if not same and not expected:
        said += ": this tokenizer normalises"
    inside = s.embedding is None or all(i < s.embedding for i in ids)
    facts = [
        Fact("round_trip", same, "decoded again", lambda _: said),
        Fact("live_same", (same or not expected) and inside),
    ]
    if s.embedding is not None:
        padded = max(s.embedding - s.tokenizer.n_vocab, 0)
        rows = (
            f"{exact(s.embedding)}, of which {exact(padded)} are no token's; the largest id is"
            f" {exact(max(ids, default=0))}"
        )
        if not inside:
            rows += ", which has no row"
        facts.append(Fact("embedding_rows", s.embedding, "rows of the embedding", lambda _: rows))
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
    if not words or not all(word.isdigit() for word in words):
        raise InputError(f"--ids is {shorten(text)!r}; token ids are whole numbers between commas")
    ids = [int(word) for word in words]
    pieces = [tokenizer.piece(i) for i in ids]
    whole = tokenizer.decode(ids)
    shown = whole.decode("utf-8", "backslashreplace")
    facts = [
        Fact("tokenizer", tokenizer.name, "tokenizer"),
        Fact("n_tokens", len(ids)),
        Fact("text", shown, "text", lambda t: safe(repr(t))),
        Fact("valid_utf8", _whole(whole)),
        Fact("ids", ids),
        Fact("pieces", _texts(pieces)),
    ]
    title = f"{len(ids)} ids under {safe(tokenizer.name)}"
    return View("tokenize/1", title, _IN_ORDER, _in_order(ids, pieces), facts)


def compared(names: str, text: str, special: str) -> View:
    """One text under several tokenizers: how many tokens, and where they cut otherwise."""
    tokenizers = [named(name.strip()) for name in names.split(",") if name.strip()]
    if len(tokenizers) < 2:
        raise InputError(
            f"--compare {names!r} names fewer than two tokenizers",
            hint="--compare gpt2,cl100k_base",
        )
    encoded = [tokenizer.encode(text, special) for tokenizer in tokenizers]
    cuts = [_cuts(tokenizer, ids) for tokenizer, ids in zip(tokenizers, encoded, strict=True)]
    # all are compared with the first
    n_first, first_cuts = len(encoded[0]), cuts[0]
    rows: list[dict[str, Any]] = []
    for tokenizer, ids, own_cuts in zip(tokenizers, encoded, cuts, strict=True):
        rows.append(
            {
                "tokenizer": tokenizer.name,
                "n_tokens": len(ids),
                "ratio": len(ids) / n_first if n_first else None,
                "different_cuts": len(own_cuts ^ first_cuts),
                "vocabulary": tokenizer.n_vocab,
                "pieces": [_Piece(tokenizer.piece(i)) for i in ids],
            }
        )
    columns = [
        Column("tokenizer", "tokenizer"),
        Column("n_tokens", "tokens", exact, right=True),
        Column("ratio", "to the first", lambda r: "-" if r is None else f"{r:.3f}", right=True),
        Column("different_cuts", "other boundaries", exact, right=True),
        Column("vocabulary", "vocabulary", exact, right=True),
        Column("pieces", "pieces", _first_pieces),
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


def _first_pieces(pieces: Sequence[_Piece], most: int = 24) -> str:
    shown = "|".join(visible(piece) for piece in pieces[:most])
    return shown + (" ..." if len(pieces) > most else "")


def _cuts(tokenizer: Tokenizer, ids: Sequence[int]) -> set[int]:
    """Byte offsets at which pieces end."""
    lengths = (len(tokenizer.piece(i)) for i in ids)
    return set(accumulate(lengths))


def counted(
    tokenizer: Tokenizer, files: Sequence[Path], options: TokenOptions, special: str, words: bool
) -> tuple[View, int]:
    """Files of any size, one row each, and their sum."""
    rows: list[dict[str, Any]] = []
    total = Counts()
    records = 0
    progress = Progress(sum(path.stat().st_size for path in files))
    for path in files:
        n_records = None
        if corpus.is_corpus(path):
            with path.open("rb") as file:
                counts, n_records = corpus.count(tokenizer, file, options.field, special, path.name)
            records += n_records
        else:
            counts = _count_file(tokenizer, path, options, special, progress, words)
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


def counted_far(
    tokenizer: Tokenizer, words: Sequence[str], options: TokenOptions, special: str
) -> tuple[View, int]:
    """Files at addresses, counted on a cluster or here: one row each, and their sum."""
    from llmcalc.tokens import cluster

    files = cluster.expanded(words)
    ask = cluster.Ask(options.spelt, options.field, special, options.errors)
    progress = Counting("files")
    try:
        found = cluster.counted(files, ask, options.cluster, progress.tell)
    finally:
        progress.end()
    rows = [
        {
            "file": file,
            "n_tokens": counts.tokens,
            "n_bytes": counts.n_bytes,
            "n_words": counts.words,
            "records": n,
        }
        for file, counts, n in found
    ]
    total = Counts()
    for _, counts, _ in found:
        total += counts
    records = sum(n or 0 for _, _, n in found)
    return _files_view(tokenizer, rows, total, records, special), total.tokens


def _count_file(
    tokenizer: Tokenizer,
    path: Path,
    options: TokenOptions,
    special: str,
    progress: Progress,
    words: bool,
) -> Counts:
    shown = shorten(path.name)
    try:
        with path.open("rb") as file:
            return count(tokenizer, file, special, options.errors, shown, progress.tell, words)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{shorten(str(path))} cannot be read: {reason}") from None


def _files_view(
    tokenizer: Tokenizer, rows: list[dict[str, Any]], total: Counts, records: int, special: str
) -> View:
    """One row per file, and what they hold together."""

    def counted_records(n: int | None) -> str:
        return "-" if n is None else exact(n)

    columns = [
        Column("file", "file", safe),
        Column("n_tokens", "tokens", exact, right=True),
        Column("n_bytes", "bytes", exact, right=True),
        Column("n_words", "words", exact, right=True),
        Column("records", "records", counted_records, right=True, shown=records > 0),
    ]
    each = total.n_bytes / total.tokens if total.tokens else None
    facts = [
        Fact("tokenizer", tokenizer.name, "tokenizer"),
        Fact("n_tokens", total.tokens, "tokens", exact),
        Fact("n_bytes", total.n_bytes, "bytes", exact),
        Fact("n_chars", total.chars, "characters", exact),
        Fact("n_words", total.words, "words", exact),
        Fact("bytes_per_token", each, "bytes per token", _three),
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
    title = f"{exact(total.tokens)} tokens"
    if len(rows) > 1:
        title += f" in {len(rows)} files"
    return View(
        kind="tokenize/1", title=title, columns=columns, rows=rows, facts=facts, notes=notes
    )


def by_rule(tokenizer: Tokenizer, path: str, model: str) -> tuple[View, int]:
    """A conversation by OpenAI's published rule: what the messages hold, and what it adds."""
    from llmcalc.tokens import chat, openai_chat

    talk = chat.conversation(Path(path))
    if talk.variables:
        raise InputError(f"no published rule counts {', '.join(map(shorten, talk.variables))}")
    found = openai_chat.count(tokenizer, talk.messages, model)
    n = len(talk.messages)
    rows = [
        {"what": "values of the messages", "n_tokens": found.content},
        {"what": f"{found.per_message} for each message", "n_tokens": found.per_message * n},
        {
            "what": f"{found.per_name} for each name",
            "n_tokens": found.overhead - openai_chat.ANSWER - found.per_message * n,
        },
        {"what": "what opens the answer", "n_tokens": openai_chat.ANSWER},
    ]
    facts = [
        Fact("tokenizer", tokenizer.name, "tokenizer"),
        Fact("n_tokens", found.total, "tokens", exact),
        Fact("content_tokens", found.content, "of the messages", exact),
        Fact("overhead_tokens", found.overhead, "that the rule adds", exact),
    ]
    note = "the overhead is OpenAI's published rule; the text that its models see is not published"
    columns = [Column("what", "what"), Column("n_tokens", "tokens", exact, right=True)]
    title = f"{exact(found.total)} tokens of {n} messages for {safe(model)}"
    view = View(
        kind="tokenize/1",
        title=title,
        columns=columns,
        rows=[row for row in rows if row["n_tokens"]],
        facts=facts,
        notes=[note],
    )
    return view, found.total
