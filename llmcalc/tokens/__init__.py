"""Text to ids and back, under any tokenizer.

Each library is imported where it is used, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable


def count_texts(texts: Iterable[str], tokenizer: str = "gpt2") -> list[int]:
    """How many tokens each text has.

    One function over a part of a corpus, for an engine that maps it over all parts.

    >>> count_texts(["The weather is", "cat sat"])
    [3, 2]
    """
    from llmcalc.tokens.find import named

    return [len(ids) for ids in named(tokenizer).encode_batch(list(texts), "text")]
