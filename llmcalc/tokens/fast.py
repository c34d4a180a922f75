"""Tokenizers of the ``tokenizers`` package: a ``tokenizer.json``, or built of a GGUF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.text import shorten, shown
from llmcalc.tokens.base import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LIMIT = 200_000_000
_CHANGES = ("NFC", "NFD", "NFK", "Lower", "Strip", "Bert", "Precompiled")
"""Normalisers that a text does not come back from."""
_ENDS_OF_RULES = (r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s", r"\p{N}{1,3}")
"""How the rules end that leave a word's space at its beginning."""


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UnavailableError(
            "this tokenizer needs the tokenizers package", hint=install("tokenizers")
        ) from None
    return tokenizers


def byte_characters() -> dict[str, int]:
    """The printable characters that byte-level BPE writes bytes as, to their bytes.

    GPT-2's ``bytes_to_unicode``.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


def _check_ids(text: str, name: str) -> None:
    """Refuses ids far above the number of entries: the package makes room for all below."""
    found = json.loads(text)
    if not isinstance(found, dict):
        return
    model, added = found.get("model"), found.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    entries: list[Any] = []
    if isinstance(vocab, dict):
        entries += vocab.values()
    if isinstance(added, list):
        entries += [token.get("id") for token in added if isinstance(token, dict)]
    largest = max((i for i in entries if isinstance(i, int)), default=0)
    # real files leave gaps for reserved ids; this is far beyond them
    if largest > 4 * len(entries) + 100_000:
        raise InputError(
            f"{shorten(name)} has the id {shown(largest, 40)} among {len(entries)} entries, which"
            " no tokenizer has"
        )


def _added_ids(text: str) -> dict[str, int]:
    """The ids that a file gives to its added tokens."""
    added = json.loads(text).get("added_tokens") or ()
    return {
        token["content"]: token["id"]
        for token in added
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and type(token.get("id")) is int
    }


@contextmanager
def _guarded(what: str) -> Iterator[None]:
    """The package's own errors, and its panics, which are no Exceptions, as one line."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"the tokenizer cannot {what}: {shorten(str(error), 120)}") from None


class Fast(Tokenizer):
    """A ``tokenizers.Tokenizer`` under our interface."""

    cuts_at_special = True

    def __init__(
        self, inner: Any, name: str, source: str, ids: Mapping[str, int] | None = None
    ) -> None:
        self.inner = inner
        self.name = name
        self.source = source
        # the package numbers added tokens on; where the file leaves gaps, its own ids count
        moved = {inner.token_to_id(token): i for token, i in (ids or {}).items()}
        self._there = {here: there for here, there in moved.items() if here != there}
        self._here = {there: here for here, there in self._there.items()}
        # a file may ask for both: a count would then be of something else
        inner.no_truncation()
        inner.no_padding()
        added = inner.get_added_tokens_decoder()
        added = {self._there.get(i, i): token for i, token in added.items()}
        self.special = {token.content: i for i, token in added.items() if token.special}
        self._added = {i: token.content for i, token in added.items()}
        self.n_vocab = max(inner.get_vocab_size(), max(added, default=-1) + 1)
        self.lossless = inner.normalizer is None or self._spaces
        self.cuts_before_spaces = self._cuts()
        with _guarded("read an empty text"):
            self.has_template = inner.post_processor is not None and bool(inner.encode("").ids)

    @classmethod
    def read(cls, path: Path) -> Fast:
        """The tokenizer in a ``tokenizer.json``."""
        package = _package()
        try:
            if path.stat().st_size > _LIMIT:
                raise InputError(
                    f"{shorten(path.name)} has {path.stat().st_size} bytes, more than any tokenizer"
                )
            text = path.read_text(encoding="utf-8")
            _check_ids(text, path.name)
            inner = package.Tokenizer.from_str(text)
        except InputError:
            raise
        except OSError as error:
            raise InputError(
                f"{shorten(path.name)} cannot be read: {error.strerror or error}"
            ) from None
        except BaseException as error:  # the package's own errors, and its panics
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InputError(
                f"{shorten(path.name)} is not a tokenizer.json: {shorten(str(error), 120)}"
            ) from None
        return cls(
            inner,
            path.parent.name or path.name,
            f"{path.name}, {package.__name__} {package.__version__}",
            _added_ids(text),
        )

    @cached_property
    def _state(self) -> dict[str, Any]:
        return dict(json.loads(self.inner.to_str()))

    @property
    def _spaces(self) -> bool:
        """Whether the only normalisation is SentencePiece's marking of spaces."""
        text = json.dumps(self._state.get("normalizer"), ensure_ascii=False)
        return not any(kind in text for kind in _CHANGES)

    def _cuts(self) -> bool:
        """Whether words are cut by GPT's kind of rule and nothing is put before a text."""
        text = json.dumps([self._state.get("pre_tokenizer"), self._state.get("normalizer")])
        kinds = set(re.findall(r'"type": "(\w+)"', text))
        if "ByteLevel" not in kinds or '"add_prefix_space": true' in text:
            return False
        allowed = {"ByteLevel", "Split", "Digits", "Sequence", "NFC"}
        splits = re.findall(r'"Regex": "((?:[^"\\]|\\.)*)"', text)
        rules = [split.replace("\\\\", "\\") for split in splits]
        return kinds <= allowed and all(rule.endswith(_ENDS_OF_RULES) for rule in rules)

    @cached_property
    def _byte_level(self) -> bool:
        stages = [self._state.get("pre_tokenizer"), self._state.get("decoder")]
        return "ByteLevel" in json.dumps(stages)

    @cached_property
    def _bytes_of(self) -> dict[str, int]:
        return byte_characters()

    def _encode(self, text: str, special: str, add: bool) -> list[int]:
        self.inner.encode_special_tokens = special == "text"
        with _guarded("read this text"):
            return self._as_filed(self.inner.encode(text, add_special_tokens=add).ids)

    def _as_filed(self, ids: Sequence[int]) -> list[int]:
        """The package's ids as the file has them."""
        if not self._there:
            return list(ids)
        return [self._there.get(i, i) for i in ids]

    def encode_batch(self, texts: Sequence[str], special: str = "refuse") -> list[list[int]]:
        """Ids of many texts, with all cores."""
        if special == "refuse":
            for text in texts:
                self._refuse(text)
        self.inner.encode_special_tokens = special == "text"
        with _guarded("read these texts"):
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
            return [self._as_filed(each.ids) for each in encoded]

    def piece(self, token: int) -> bytes:
        """The bytes of one id, by the byte alphabet, byte pieces, or SentencePiece's marks."""
        self.check(token)
        # added tokens are text already, not in the byte alphabet
        if token in self._added:
            return str(self._added[token]).encode()
        found = None if token in self._there else self.inner.id_to_token(token)
        if found is None and self._here:
            raise InputError(f"id {token} is not used by {self.name}")
        if found is None:
            return b""
        text = str(found)
        if self._byte_level:
            known = self._bytes_of
            return bytes(known[c] for c in text) if all(c in known for c in text) else text.encode()
        one = _BYTE.fullmatch(text)
        if one:
            return bytes([int(one[1], 16)])
        if text.startswith("##"):  # WordPiece: it goes on with a word
            return text[2:].encode()
        return text.replace("▁", " ").encode()

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of a row of ids, by the file's own decoder where pieces are not just joined."""
        for token in ids:
            self.check(token)
        if self._byte_level:
            return b"".join(self.piece(token) for token in ids)
        with _guarded("decode these ids"):
            own = [self._here.get(i, i) for i in ids]
            return str(self.inner.decode(own, skip_special_tokens=False)).encode()
