"""Counting the tokens of texts of any size: read in pieces, cut where that changes no id."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from llmcalc.errors import InputError
from llmcalc.tokens.base import Tokenizer

PIECE = 1 << 18
"""Bytes that are read at a time; a piece is cut a little before its end."""
WHOLE = 1024 * PIECE
"""Bytes of the longest text that is encoded in one piece where it must not be cut."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a text holds.

    ``words`` stand between white space, ``replaced`` are characters for broken bytes.
    """

    tokens: int = 0
    n_bytes: int = 0
    chars: int = 0
    words: int = 0
    replaced: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            tokens=self.tokens + other.tokens,
            n_bytes=self.n_bytes + other.n_bytes,
            chars=self.chars + other.chars,
            words=self.words + other.words,
            replaced=self.replaced + other.replaced,
        )


def decode(data: bytes, errors: str = "strict", name: str = "the input", offset: int = 0) -> str:
    """Bytes as UTF-8.

    Where they are not, an InputError that names the byte and its offset, or a replacement.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if errors == "replace":
            return data.decode(errors="replace")
        raise not_text(name, data[error.start], offset + error.start) from None


def not_text(name: str, byte: int, offset: int) -> InputError:
    """The error for a byte that is no UTF-8."""
    return InputError(
        f"{name} is not UTF-8: byte 0x{byte:02x} at offset {offset}",
        hint="--errors replace counts it as U+FFFD",
    )


def pieces(
    file: BinaryIO, errors: str = "strict", name: str = "the input", size: int = PIECE
) -> Iterator[str]:
    """The text of a file in pieces, each cut before a space, so that words stay whole."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    held = ""
    read = 0
    while True:
        data = file.read(size)
        try:
            held += decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            # the decoder may have kept the beginning of a character from the piece before
            kept = len(error.object) - len(data)
            offset = read - kept + error.start
            raise not_text(name, error.object[error.start], offset) from None
        read += len(data)
        if not data:
            break
        at = cut(held)
        if at:
            yield held[:at]
            held = held[at:]
    if held:
        yield held


def cut(text: str) -> int:
    """The last place where a text may be cut: before a space between a character and a character.

    0 if there is none.

    >>> cut("one two  three four"), cut("nothing")
    (14, 0)
    """
    at = len(text)
    while True:
        at = text.rfind(" ", 1, at)
        if at < 1:
            return 0
        followed = at + 1 < len(text) and not text[at + 1].isspace()
        if followed and not text[at - 1].isspace():
            return at


def count(
    tokenizer: Tokenizer,
    file: BinaryIO,
    special: str = "refuse",
    errors: str = "strict",
    name: str = "the input",
    tell: Callable[[int], None] | None = None,
    words: bool = True,
) -> Counts:
    """How many tokens a file holds, at constant memory where its tokenizer lets a text be cut.

    ``tell`` is told the bytes that are done. A text that must not be cut is encoded whole, up to
    256 MiB.
    """
    if not tokenizer.cuts_before_spaces:
        # one byte more tells a file that is too long
        data = file.read(WHOLE + 1)
        if len(data) > WHOLE:
            raise InputError(
                f"{name} has more than {WHOLE} bytes, and {tokenizer.name} must see a text whole"
            )
        return of_texts(tokenizer, [decode(data, errors, name)], special, words)
    total = Counts()
    for group in _groups(pieces(file, errors, name)):
        total += of_texts(tokenizer, group, special, words)
        if tell is not None:
            tell(total.n_bytes)
    return total


def _groups(found: Iterable[str]) -> Iterator[list[str]]:
    """Sixteen pieces for each core at a time: few to hold, and enough that no core waits long."""
    many = 16 * (os.cpu_count() or 1)
    group: list[str] = []
    for piece in found:
        group.append(piece)
        if len(group) == many:
            yield group
            group = []
    if group:
        yield group


def of_texts(
    tokenizer: Tokenizer, texts: list[str], special: str = "refuse", words: bool = True
) -> Counts:
    """The counts of some texts together; each is encoded by itself.

    Counting words takes time, and can be left out.
    """
    encoded = tokenizer.encode_batch(texts, special)
    return Counts(
        tokens=sum(map(len, encoded)),
        n_bytes=sum(len(text.encode("utf-8", "surrogatepass")) for text in texts),
        chars=sum(map(len, texts)),
        words=sum(len(text.split()) for text in texts) if words else 0,
        replaced=sum(text.count("\ufffd") for text in texts),
    )


def truncate(tokenizer: Tokenizer, text: str, n: int, special: str = "refuse") -> tuple[str, int]:
    """The longest beginning of a text that is at most n tokens, and how many it has.

    It ends with a whole character.
    """
    ids = tokenizer.encode(text, special)[:n]
    while ids:
        shown = tokenizer.decode(ids)
        whole = shown.decode("utf-8", "ignore")
        if text.startswith(whole) and whole.encode() == shown:
            return whole, len(ids)
        # the last token ended inside a character
        ids = ids[:-1]
    return "", 0
