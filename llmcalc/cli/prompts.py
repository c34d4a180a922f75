"""The prompt of a model that is run, as ids, and its tokens as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmcalc.errors import InputError
from llmcalc.live.load import Live
from llmcalc.text import safe
from llmcalc.tokens.base import Tokenizer
from llmcalc.tokens.find import of_model

if TYPE_CHECKING:
    pass

TOY_PROMPT = "The weather is"
_SMALL = 1024
"""Vocabularies up to this size have all their logits in JSON."""


def prompt_ids(
    live: Live, prompt: str | None, ids: str | None
) -> tuple[list[int], Tokenizer | None]:
    """The tokens to run, and the tokenizer they came from where there is one."""
    if ids is not None:
        if prompt is not None:
            raise InputError("--prompt and --ids are two ways to say the same")
        words = ids.replace(",", " ").split()
        if not words or not all(w.isdigit() for w in words):
            raise InputError(f"--ids is {ids!r}; token ids are whole numbers between commas")
        try:
            return [int(w) for w in words], of_model(live.model)
        except Exception:
            return [int(w) for w in words], None
    tokenizer = of_model(live.model)
    text = prompt if prompt is not None else TOY_PROMPT
    found = tokenizer.encode(text, "allow", add=True)
    if not found:
        raise InputError("the prompt is empty", hint="a model continues from at least one token")
    return found, tokenizer


def label(tokenizer: Tokenizer | None, token: int) -> str:
    """A token as a person reads it: its text in quotes, or its id."""
    if tokenizer is None or token >= tokenizer.n_vocab:
        return str(token)
    return safe(repr(tokenizer.piece(token).decode("utf-8", "backslashreplace")))
