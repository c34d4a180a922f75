"""Which tokenizer belongs to a model: the one that lies beside its weights, or inside them."""

from __future__ import annotations

from pathlib import Path

from llmcalc.errors import UnavailableError
from llmcalc.sources import Model
from llmcalc.tokens.base import Tokenizer


def of_model(model: Model) -> Tokenizer:
    """The tokenizer of a model's own files; a model without one is an UnavailableError."""
    folder = model.folder
    if model.header is not None and model.header.format == "gguf" and folder is not None:
        from llmcalc.tokens import vocabulary

        return vocabulary.read(folder / _only_file(model))
    if folder is not None and (folder / "tokenizer.json").is_file():
        from llmcalc.tokens.fast import Fast

        return Fast.read(folder / "tokenizer.json")
    raise UnavailableError(
        f"{model.name} has no tokenizer beside its files", hint="put its tokenizer.json there, or give --ids"
    )


def _only_file(model: Model) -> Path:
    assert model.header is not None
    return Path(next(t.file for t in model.header.tensors.values()))
