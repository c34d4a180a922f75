"""Special tokens that somebody adds to a tokenizer: ``<|im_start|>=100264``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from llmcalc.errors import InputError
from llmcalc.text import shorten
from llmcalc.tokens.base import Tokenizer


def parse(texts: Sequence[str]) -> dict[str, int]:
    """Tokens with their ids.

    >>> parse(["<|im_start|>=100264", "a=b=7"])
    {'<|im_start|>': 100264, 'a=b': 7}
    """
    found: dict[str, int] = {}
    for text in texts:
        token, equals, number = text.rpartition("=")
        if not equals or not token or not number.isdecimal() or len(number) > 9:
            raise InputError(
                f"--add-special {shorten(text)!r} is not TOKEN=ID",
                hint="--add-special '<|im_start|>=100264'; --bos-eos puts the file's own tokens"
                " around a text",
            )
        found[token] = int(number)
    return found


class Extended(Tokenizer):
    """A tokenizer with more special tokens, which cut a text as its own do."""

    def __init__(self, inner: Tokenizer, more: Mapping[str, int]) -> None:
        if not inner.cuts_at_special:
            raise InputError(
                f"{inner.name} sees a text whole, and special tokens would cut it",
                hint="--add-special is for byte-level tokenizers",
            )
        for token, number in more.items():
            _check_free(inner, token, number)
        if len(set(more.values())) != len(more):
            raise InputError("--add-special gives one id to two tokens")
        self.inner = inner
        self.name = inner.name
        self.source = f"{inner.source}, {len(more)} special tokens added"
        self.special = {**inner.special, **more}
        self.n_vocab = max(inner.n_vocab, max(more.values(), default=-1) + 1)
        self.lossless = inner.lossless
        self.has_template = inner.has_template
        self._more = dict(more)
        self._spelt = {number: token.encode() for token, number in more.items()}
        longest_first = sorted(more, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first)))

    def _encode(self, text: str, special: str, add: bool) -> list[int]:
        if special == "text":
            return self.inner.encode(text, "text", add)
        ids: list[int] = []
        for part in self._parts(text):
            ids += [self._more[part]] if part in self._more else self.inner.encode(part, special)
        around = self.inner.encode("", special, add) if add else []
        return [*around[:1], *ids, *around[1:]]

    def _parts(self, text: str) -> Iterator[str]:
        at = 0
        for found in self._cut.finditer(text):
            if found.start() > at:
                yield text[at : found.start()]
            yield found[0]
            at = found.end()
        if at < len(text):
            yield text[at:]

    def piece(self, token: int) -> bytes:
        """The bytes of one id."""
        return self._spelt[token] if token in self._spelt else self.inner.piece(token)

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of a row of ids."""
        whole = b""
        for own, group in groupby(ids, key=self._spelt.__contains__):
            row = list(group)
            whole += b"".join(map(self.piece, row)) if own else self.inner.decode(row)
        return whole


def _check_free(inner: Tokenizer, token: str, number: int) -> None:
    """An id or a spelling that stands for something else already is an InputError."""
    known = inner.special.get(token)
    if known is not None and known != number:
        raise InputError(
            f"{shorten(token)} is special in {inner.name} already, with the id {known}"
        )
    if number >= inner.n_vocab or known == number:
        return
    try:
        held = inner.piece(number)
    except InputError:  # an id that no token has
        return
    if held:
        shown = shorten(held.decode("utf-8", "backslashreplace"))
        raise InputError(
            f"the id {number} is {shown!r} in {inner.name}: {shorten(token)} needs another"
        )
