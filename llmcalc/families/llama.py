"""Llama, and those who publish the same structure under their own name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmcalc.anatomy import Parts
from llmcalc.blocks import gqa
from llmcalc.config import Config
from llmcalc.errors import UnavailableError
from llmcalc.families import family, runs
from llmcalc.families.parts.frame import ATTENTION, gated, pre_norm
from llmcalc.families.parts.running import common, first_given, in_pairs, rotary

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("llama", "iquestcoder")
def llama(c: Config) -> Parts:
    """Llama 1 to 3.3 (arXiv 2302.13971, 2407.21783) and the models that share its class."""
    bias = c.flag("qkv_bias", c.flag("attention_bias"))
    feed_forward = gated(c, c.flag("bias", c.flag("mlp_bias")))
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward
    )


@runs("llama")
def llama_runs(c: Config) -> Forward:
    """Llama, Mistral, Qwen 2 and 3; OLMo 2 and 3 join after the norms."""
    base = {"olmo3": 500_000.0}.get(c.family, 10_000.0)
    if first_given(c, ("clip_qkv",), None) is not None:
        raise UnavailableError(f"running {c.family} with clip_qkv is not supported")
    turn = rotary(c, int(c.head_dim), base, interleaved=in_pairs(c))
    local = rotary(c, int(c.head_dim), base, "sliding_attention") if c.family == "olmo3" else None
    return common(
        c, rotary=turn, local_rotary=local, join="post" if c.family in ("olmo2", "olmo3") else "pre"
    )
