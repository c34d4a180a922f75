"""Gemma 1 to 3: wide heads, GeGLU, tied embeddings, and from the second on windows in
most layers.
"""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import by_window, embed, gqa, gqa_normed, lm_head, norm, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, BLOCK, gated, pre_norm


@family("gemma")
def gemma(c: Config) -> Parts:
    """Gemma (arXiv 2403.08295)."""
    bias = c.flag("attention_bias")
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c))


@family("gemma2")
def gemma2(c: Config) -> Parts:
    """Gemma 2 (arXiv 2408.00118): norms before and after, every other layer with a window."""
    yield from sandwich(c, False, c.sliding(lambda i: i % 2 == 0))


@family("gemma3_text")
def gemma3_text(c: Config) -> Parts:
    """Gemma 3's language model (arXiv 2503.19786): five layers with a window to one without, norms
    on q and k.
    """
    every = c.get("sliding_window_pattern") or 6
    yield from sandwich(c, True, c.sliding(lambda i: (i + 1) % every))


def sandwich(c: Config, qk: bool, sliding: frozenset[int]) -> Parts:
    """Gemma's frame: a norm before and after attention and MLP."""
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")
    attend = gqa_normed if qk else gqa

    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers)
    yield from by_window(
        c, layers, sliding, lambda ls, window: attend(ATTENTION, c, ls, window, bias)
    )
    yield from norm(f"{BLOCK}.post_attention_layernorm", c.d_model, layers)
    yield from norm(f"{BLOCK}.pre_feedforward_layernorm", c.d_model, layers)
    yield from gated(c)(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", c.d_model, layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


@family("vaultgemma")
def vaultgemma(c: Config) -> Parts:
    """VaultGemma: Gemma 2 without the norms after."""
    layers, bias = Layers.all(c.n_layers), c.flag("attention_bias")

    def attend(group: Layers, window: Dim | None) -> Parts:
        return gqa(ATTENTION, c, group, window, bias)

    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers)
    yield from by_window(c, layers, c.sliding(lambda i: i % 2 == 0), attend)
    yield from norm(f"{BLOCK}.pre_feedforward_layernorm", c.d_model, layers)
    yield from gated(c)(layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))
