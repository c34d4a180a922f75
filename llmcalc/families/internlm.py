"""Shanghai AI Laboratory: InternLM 1 and 2, by remote code."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import W123, attention, embed, gqa, linear, lm_head, norm, swiglu, tie
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.llama import llama
from llmcalc.families.parts.frame import ATTENTION, BLOCK, gated, pre_norm


@family("internlm")
def internlm(c: Config) -> Parts:
    """InternLM 1: Llama with biases in attention."""
    bias = c.flag("bias", True)
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c))


@family("internlm2")
def internlm2(c: Config) -> Parts:
    """InternLM 2 and 2.5 (arXiv 2403.17297): q, k and v of each group side by side."""
    d, layers, bias = c.d_model, Layers.all(c.n_layers), c.flag("bias", True)
    p = f"{BLOCK}.attention"
    yield from embed("model.tok_embeddings", c.vocab, d)
    yield from norm(f"{BLOCK}.attention_norm", d, layers)
    yield from linear(
        f"{p}.wqkv", (c.n_heads + 2 * c.n_kv_heads) * c.head_dim, d, "attn.qkv", layers, bias
    )
    yield attention(layers, c.n_heads, c.n_kv_heads, c.head_dim, c.head_dim)
    yield from linear(f"{p}.wo", d, c.n_heads * c.head_dim, "attn.o", layers, bias)
    yield from norm(f"{BLOCK}.ffn_norm", d, layers)
    yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, names=W123)
    yield from norm("model.norm", d)
    yield from lm_head("output", c.vocab, d, tie(c, "model.tok_embeddings.weight"))


family("internlm3", where=__name__)(llama)
