"""What every tokenizer can do, whatever library stands behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from os.path import commonprefix

from llmcalc.errors import InputError
from llmcalc.text import shorten

SPECIAL = ("refuse", "allow", "text")
"""What to do with text that spells a special token: refuse it, read it as the token, or read it as
plain text.
"""


class Tokenizer(ABC):
    """A tokenizer: ``encode`` gives ids, ``decode`` bytes, ``piece`` the bytes of one id."""

    name: str
    source: str
    n_vocab: int
    special: Mapping[str, int]
    """Special tokens with their ids."""
    lossless: bool = True
    """Whether decoding gives the text back byte for byte."""
    cuts_before_spaces: bool = False
    """Whether a text may be cut before a space that follows a character, and each part encoded
    alone, with the same ids: so with rules that cut words themselves and begin them with their
    space.
    """
    cuts_at_special: bool = False
    """Whether special tokens cut a text into parts that are encoded each by itself."""
    has_template: bool = False
    """Whether the file has a rule of its own for what stands before and behind a text (BOS, EOS).
    """

    @abstractmethod
    def _encode(self, text: str, special: str, add: bool) -> list[int]:
        """Ids of a text."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """The bytes that one id stands for; an id outside the vocabulary is an InputError."""

    def encode(self, text: str, special: str = "refuse", add: bool = False) -> list[int]:
        """Ids of a text; ``add`` puts the file's own special tokens around it (BOS, EOS).

        ``special`` says what to do with text that spells a special token; refusing is an InputError
        that names it.
        """
        if special == "refuse":
            self._refuse(text)
        return self._encode(text, special, add)

    def encode_batch(self, texts: Sequence[str], special: str = "refuse") -> list[list[int]]:
        """Ids of many texts, with all cores where the library can."""
        return [self.encode(t, special) for t in texts]

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes that a row of ids stands for."""
        return b"".join(self.piece(i) for i in ids)

    @cached_property
    def _begin(self) -> str:
        """What all special tokens begin with.

        Nothing where they differ from the first character on.
        """
        return commonprefix([min(self.special), max(self.special)])  # noqa: RUF071

    def _refuse(self, text: str) -> None:
        if self.special and self._begin not in text:  # they begin alike, so one look finds them all
            return
        found = next((s for s in self.special if s in text), None)
        if found is not None:
            raise InputError(
                f"the text holds {shorten(found)!r}, a special token of {self.name}: as input of a"
                " user it could steer a model, so it is not read either way unasked",
                hint="`--special allow` reads it as the token, `--special text` as plain text",
            )

    def check(self, token: int) -> None:
        """An id outside the vocabulary is an InputError."""
        if not 0 <= token < self.n_vocab:
            raise InputError(
                f"id {token} is not in the vocabulary of {self.name}: 0 to {self.n_vocab - 1}"
            )
