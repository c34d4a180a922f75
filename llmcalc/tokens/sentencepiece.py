"""SentencePiece models (``tokenizer.model``), by the sentencepiece package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.text import shorten
from llmcalc.tokens.base import Tokenizer


class Pieces(Tokenizer):
    """A ``SentencePieceProcessor`` under our interface; control pieces are never read from text."""

    def __init__(self, inner: Any, name: str, source: str) -> None:
        self.inner = inner
        self.name = name
        self.source = source
        self.n_vocab = int(inner.vocab_size())
        self.pieces = [str(inner.id_to_piece(i)) for i in range(self.n_vocab)]
        self.special = {self.pieces[i]: i for i in range(self.n_vocab) if inner.is_control(i)}
        self.has_template = inner.bos_id() >= 0

    @classmethod
    def read(cls, path: Path) -> Pieces:
        """The model in a file."""
        try:
            import sentencepiece
        except ImportError:
            raise UnavailableError(
                "this tokenizer needs the sentencepiece package",
                hint=install("tokenizers"),
            ) from None
        try:
            inner = sentencepiece.SentencePieceProcessor(model_file=str(path))
            return cls(inner, path.name, f"{path.name}, sentencepiece {sentencepiece.__version__}")
        except (RuntimeError, OSError, ValueError) as error:
            raise InputError(
                f"{shorten(path.name)} is not a SentencePiece model: {shorten(str(error), 80)}"
            ) from None

    def _encode(self, text: str, special: str, add: bool) -> list[int]:
        if special == "allow" and any(spelt in text for spelt in self.special):
            raise InputError(
                "SentencePiece never reads special tokens from text: their pieces are control"
                " symbols",
                hint="--special text reads them as plain text",
            )
        begins = add and self.inner.bos_id() >= 0
        return list(self.inner.encode(text, add_bos=begins))

    def encode_batch(self, texts: Sequence[str], special: str = "refuse") -> list[list[int]]:
        """Ids of many texts, with all cores."""
        if special != "text":
            return [self.encode(t, special) for t in texts]
        return [list(ids) for ids in self.inner.encode(list(texts))]

    def piece(self, token: int) -> bytes:
        """The bytes of one id: a byte piece is its byte, the mark of a space is a space."""
        self.check(token)
        text = self.pieces[token]
        if self.inner.is_byte(token):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of a row of ids: the space that is put before a text is taken away again."""
        whole = super().decode(ids)
        first = ids[0] if ids else -1
        marked = first >= 0 and not self.inner.is_control(first) and whole.startswith(b" ")
        return whole[1:] if marked else whole
