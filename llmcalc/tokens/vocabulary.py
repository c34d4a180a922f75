"""The vocabulary inside a GGUF as a tokenizer: BPE by merges over bytes, or by scores of pieces.

How a text is cut before merging is named by ``tokenizer.ggml.pre`` (llama.cpp's
``llama_vocab_pre_type``); a name whose rule is not here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError
from llmcalc.sources import gguf
from llmcalc.text import shorten, shown
from llmcalc.tokens.fast import Fast, _package

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_CUTS: Mapping[str, str | None] = {
    **dict.fromkeys(
        ("default", "gpt-2", "gpt2", "phi-2", "jina-es", "jina-de", "olmo", "mpt"), None
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), "digits"
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "pixtral", "falcon3"), _LLAMA3
    ),
    **dict.fromkeys(
        ("qwen2", "stablelm2", "megrez", "deepseek-r1-qwen"),
        _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    ),
}
_MOST_MERGES = 3_000_000
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6


def read(path: Path) -> Fast:
    """The tokenizer of a GGUF file."""
    return built(gguf.read_vocabulary(path), path.name)


def built(found: Mapping[str, Any], name: str) -> Fast:
    """The tokenizer that a GGUF's metadata describes; ``name`` is the file's."""
    kind, tokens = found.get("ggml.model"), found.get("ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise InputError(f"{shorten(name)} holds no vocabulary")
    package = _package()
    if kind == "gpt2":
        inner = _byte_level(package, found, tokens)
    elif kind == "llama":
        inner = _by_scores(package, found, tokens)
    else:
        raise UnavailableError(
            f"{shorten(name)} has a tokenizer of kind {shown(kind)}, which is not built here"
        )
    types = _list(found, "token_type", int) or [1] * len(tokens)
    typed = list(zip(tokens, types, strict=False))
    inner.add_special_tokens([token for token, type_ in typed if type_ == _CONTROL])
    inner.add_tokens([token for token, type_ in typed if type_ == _USER_DEFINED])
    fast = Fast(inner, name.removesuffix(".gguf"), f"the vocabulary of {name}")
    fast.n_vocab = len(tokens)
    return fast


def _list(found: Mapping[str, Any], key: str, kind: Any) -> list[Any]:
    """A list of that kind from the metadata, empty where it is absent."""
    value = found.get(f"ggml.{key}") or []
    if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
        raise InputError(
            f"the vocabulary's {key} is no list of {getattr(kind, '__name__', 'number')}s"
        )
    return value


def _byte_level(package: Any, found: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    """GPT-2's BPE: pieces are merged in the order of the list."""
    pre = str(found.get("ggml.pre", "default"))
    if pre not in _CUTS:
        raise UnavailableError(
            f"how {shorten(pre)!r} cuts text before merging is not known here",
            hint="name the model's tokenizer.json with --tokenizer",
        )
    merges = [tuple(merge.split(" ", 1)) for merge in _list(found, "merges", str)]
    if not all(len(merge) == 2 for merge in merges):
        raise InputError("the vocabulary has a merge that is not two pieces")
    vocab = {token: i for i, token in enumerate(tokens)}
    cut = _CUTS[pre]
    whole = cut is not None and cut != "digits"
    try:
        # a word that Llama 3's vocabulary holds is one token, whatever the merges make of it
        model = package.models.BPE(vocab, merges, ignore_merges=pre in ("llama-bpe", "llama3"))
        inner = package.Tokenizer(model)
    except Exception as error:
        raise InputError(f"the vocabulary contradicts itself: {shorten(str(error), 120)}") from None
    level = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    inner.pre_tokenizer = level
    if cut is not None:
        if whole:
            first = package.pre_tokenizers.Split(package.Regex(cut), "isolated")
        else:
            first = package.pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = package.pre_tokenizers.Sequence([first, level])
    inner.decoder = package.decoders.ByteLevel()
    return inner


def _by_scores(package: Any, found: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    """SentencePiece's BPE: the pair whose joined piece has the best score is merged first."""
    scores = _list(found, "scores", float | int)
    if len(scores) != len(tokens):
        raise InputError("the vocabulary has no scores, by which its pieces are joined")
    vocab = {token: i for i, token in enumerate(tokens)}
    merges: list[tuple[float, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        if len(token) > 64:
            continue
        # every way to make the token of two that the vocabulary has
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += [(-score, pair) for pair in halves if pair[0] in vocab and pair[1] in vocab]
        if len(merges) > _MOST_MERGES:
            raise InputError(
                f"the vocabulary has more than {_MOST_MERGES:,} ways to join its pieces"
            )
    # the sort is stable: of equal scores the first token's pair goes first
    merges.sort(key=lambda merge: merge[0])
    unknown = found.get("ggml.unknown_token_id", 0)
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise InputError(
            f"the vocabulary's unknown token is {shown(unknown, 40)}, none of its {len(tokens)}"
        )
    model = package.models.BPE(
        vocab,
        [pair for _, pair in merges],
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = package.Tokenizer(model)
    normalizers, decoders = package.normalizers, package.decoders
    to_marks = [normalizers.Replace(" ", "▁")]
    to_text = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if found.get("ggml.add_space_prefix", True):
        to_marks.insert(0, normalizers.Prepend("▁"))
        to_text.append(decoders.Strip(" ", 1, 0))
    inner.normalizer = normalizers.Sequence(to_marks)
    inner.decoder = decoders.Sequence(to_text)
    return inner
