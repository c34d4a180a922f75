"""What vLLM prints of its pool at start-up: blocks, tokens, how many sequences at a time."""

from __future__ import annotations

from llmcalc.engines.cache import Cache


def blocks_in(memory: int, cache: Cache) -> int | None:
    """Blocks of a pool of so many bytes: whole ones only."""
    size = cache.facts.get("bytes_per_block")
    return memory // int(size) if size else None


def concurrency(memory: int, cache: Cache) -> float | None:
    """How many sequences of the cache's context fit: blocks over blocks per sequence."""
    blocks, each = blocks_in(memory, cache), cache.facts.get("blocks_per_sequence")
    return blocks / int(each) if blocks is not None and each else None


def tokens_by_concurrency(memory: int, cache: Cache, context: int) -> int | None:
    """Tokens as printed since 0.20.2: concurrency times the context, whole ones."""
    blocks, each = blocks_in(memory, cache), cache.facts.get("blocks_per_sequence")
    return blocks * context // int(each) if blocks is not None and each else None


def tokens_of_blocks(memory: int, cache: Cache, context: int) -> int | None:
    """Tokens as printed to 0.20: the blocks shared by the groups, in tokens of one block."""
    blocks, groups = blocks_in(memory, cache), cache.facts.get("groups")
    block = cache.facts.get("block_size")
    return blocks // int(groups) * int(block) if blocks is not None and groups and block else None
