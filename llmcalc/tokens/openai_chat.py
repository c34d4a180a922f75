"""What OpenAI counts for a conversation, by the rule that it publishes.

The text that its models see is not published. The rule is: so many tokens for every message, the
tokens of every value in it, one more for a name, and three that open the answer (OpenAI Cookbook,
"How to count tokens with tiktoken", ``num_tokens_from_messages``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmcalc.errors import InputError
from llmcalc.text import shorten
from llmcalc.tokens.base import Tokenizer

ANSWER = 3
"""Tokens that open the answer."""
_OLD = re.compile(r"gpt-3[.]5-turbo-0301")
_KNOWN = re.compile(r"gpt-3[.]5-turbo|gpt-4o|gpt-4(?![.\d])")


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of the content and those that the rule adds."""

    content: int
    overhead: int
    per_message: int
    per_name: int

    @property
    def total(self) -> int:
        """All tokens."""
        return self.content + self.overhead


def count(tokenizer: Tokenizer, messages: Sequence[dict[str, Any]], model: str) -> Counted:
    """The tokens of a conversation; a model without a published rule is an InputError."""
    if not _KNOWN.match(model):
        raise InputError(
            f"OpenAI publishes no rule for what {shorten(model)} adds to messages",
            hint="published for gpt-3.5-turbo, gpt-4, gpt-4o and gpt-4o-mini",
        )
    per_message, per_name = (4, -1) if _OLD.match(model) else (3, 1)
    content = overhead = 0
    for message in messages:
        overhead += per_message + (per_name if "name" in message else 0)
        for key, value in message.items():
            if not isinstance(value, str):
                raise InputError(
                    f"the rule is for texts, and a message's {shorten(str(key))} is none",
                    hint="tools, pictures and parts are counted by no published rule",
                )
            content += len(tokenizer.encode(value, "text"))
    return Counted(content, overhead + ANSWER, per_message, per_name)
