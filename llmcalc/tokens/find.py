"""Which tokenizer somebody means: an encoding, an OpenAI model, a file, or a model's own."""

from __future__ import annotations

import re
from pathlib import Path

from llmcalc.errors import InputError, UnavailableError
from llmcalc.sources import Model
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten
from llmcalc.tokens import encodings
from llmcalc.tokens.base import Tokenizer

_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")
_OWN = {"gpt2": "gpt2", "gpt_oss": "o200k_harmony"}
"""Families that have one tokenizer, under an encoding's name."""
_VARIANT = (
    "latest|mini|nano|pro|chat|turbo|preview|audio|realtime|search|codex|instruct|16k|32k|vision"
)
_DATED = re.compile(rf"-(\d{{4}}(-\d{{2}}-\d{{2}})?|{_VARIANT})|\.\d+(?!\d)")


def named(name: str) -> Tokenizer:
    """The tokenizer of that name: an encoding, a file or directory, or an OpenAI model."""
    if name in encodings.ENCODINGS:
        return encodings.load(name)
    path = Path(name).expanduser()
    if path.exists():
        return of_path(path)
    if name.endswith((".json", ".model", ".gguf", "/")) or name.startswith((".", "/", "~")):
        raise InputError(f"no file is called {shorten(name)}")
    encoding = openai(name)
    if encoding is not None:
        return encodings.load(encoding)
    raise _unknown(name)


def openai(name: str) -> str | None:
    """The encoding of an OpenAI model, by tiktoken's table.

    What only begins like a known name is not one.
    """
    from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

    if name in MODEL_TO_ENCODING:
        return str(MODEL_TO_ENCODING[name])
    if name == "gpt-4.5":  # the table has its dated variants alone
        return "o200k_base"
    for prefix, encoding in MODEL_PREFIX_TO_ENCODING.items():
        if name.startswith(prefix):
            anything_follows = prefix.startswith(("ft:", "gpt-oss-"))
            rest = name[len(prefix.rstrip("-")) :]
            return str(encoding) if anything_follows or _known_ending(rest) else None
    return None


def _known_ending(rest: str) -> bool:
    """Whether what follows a model's name are variants and dates, and nothing else."""
    while rest:
        found = _DATED.match(rest)
        if not found:
            return False
        rest = rest[found.end() :]
    return True


def _unknown(name: str) -> InputError:
    import difflib

    from tiktoken.model import MODEL_TO_ENCODING

    close = difflib.get_close_matches(name, [*encodings.ENCODINGS, *MODEL_TO_ENCODING], 4, 0.3)
    near = f"close: {', '.join(close)}; " if close else ""
    known = f"encodings: {', '.join(encodings.ENCODINGS)}"
    return InputError(
        f"no tokenizer is called {shorten(name)!r}",
        hint=f"{near}{known}; or name a tokenizer.json, tokenizer.model or .gguf",
    )


def of_path(path: Path) -> Tokenizer:
    """The tokenizer in a file, or the one that a directory holds."""
    if path.is_dir():
        found = next((path / name for name in _FILES if (path / name).is_file()), None)
        ggufs = sorted(path.glob("*.gguf"))
        # several files have several vocabularies: somebody has to say which
        found = found or (ggufs[0] if len(ggufs) == 1 else None)
        if found is None:
            raise InputError(f"{shorten(path.name)} holds no {', '.join(_FILES)} or .gguf")
        path = found
    if path.suffix == ".gguf":
        from llmcalc.tokens import vocabulary

        return vocabulary.read(path)
    if path.suffix == ".tiktoken":
        raise InputError(
            f"{path.name} has ranks alone: how text is cut is not in it",
            hint="name the encoding: --tokenizer cl100k_base",
        )
    if path.suffix == ".json":
        if path.name.startswith("tekken"):
            return encodings.tekken(read_json(path, 100_000_000), path.name)
        from llmcalc.tokens.fast import Fast

        return Fast.read(path)
    if ".model" in path.name:
        from llmcalc.tokens.sentencepiece import Pieces

        return Pieces.read(path)
    raise InputError(
        f"{shorten(path.name)} is no kind of tokenizer that is known",
        hint=f"known: {', '.join(_FILES)}, .gguf",
    )


def gguf_file(model: Model) -> str:
    """The file that holds a GGUF's vocabulary: the first of its parts."""
    tensors = model.header.tensors.values() if model.header is not None else ()
    files = sorted({tensor.file for tensor in tensors})
    if not files:
        raise InputError(f"{model.name} has no tensors")
    return files[0]


def of_model(model: Model) -> Tokenizer:
    """The tokenizer of a model: beside its files, inside its GGUF, or its family's.

    Else an UnavailableError.
    """
    folder = model.folder
    if model.header is not None and model.header.format == "gguf" and folder is not None:
        return of_path(folder / gguf_file(model))
    if model.fetch_vocabulary is not None:
        from llmcalc.tokens import vocabulary

        return vocabulary.built(model.fetch_vocabulary(), model.name.rpartition("/")[2])
    if folder is not None and any((folder / name).is_file() for name in _FILES):
        return of_path(folder)
    if model.fetch_file is not None:
        for name in _FILES:
            brought = model.fetch_file(name)
            if brought:
                return of_path(brought)
    if model.source.startswith("preset") and model.anatomy.family in _OWN:
        return encodings.load(_OWN[model.anatomy.family])
    raise UnavailableError(
        f"{model.name} has no tokenizer beside its files",
        hint="put its tokenizer.json there, or name one: --tokenizer FILE",
    )
