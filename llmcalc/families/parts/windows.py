"""Which layers of Qwen slide and which are dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmcalc.config import Config


def late_windows(c: Config) -> frozenset[int]:
    """Qwen's windows: off unless ``use_sliding_window``, then from ``max_window_layers`` on."""
    if not (c.flag("use_sliding_window") and c.optional("window")):
        return (
            c.sliding(lambda i: False)
            if c.get("layer_types") and c.optional("window")
            else frozenset()
        )
    first = c.size("max_window_layers", 0, least=0)
    return c.sliding(lambda i: i >= first)


def dense_layers(c: Config) -> Callable[[int], bool]:
    """Qwen's rule for layers without experts: listed ones, and those that the sparse step skips."""
    listed: Any = c.get("mlp_only_layers") or []
    step = c.size("decoder_sparse_step", 1)
    return lambda i: i in listed or (i + 1) % step != 0
