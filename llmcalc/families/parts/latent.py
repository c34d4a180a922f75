"""DeepSeek's latent attention, its indexer, and experts behind dense layers."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts, Weight
from llmcalc.blocks import latent_mixer, linear, mla, norm
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families.parts.frame import ATTENTION


def latent(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Latent attention under the usual names."""
    return mla(ATTENTION, c, layers, window, c.flag("attention_bias"))


def sparse_layers(c: Config, fallback: list[str]) -> list[str]:
    """``mlp_layer_types``, else ``fallback``."""
    return c.kinds("mlp_layer_types") or fallback


def indexer(c: Config, layers: Layers) -> Parts:
    """DeepSeek Sparse Attention's indexer: small heads that choose the tokens a query sees."""
    p, heads, width = f"{ATTENTION}.indexer", c.index_n_heads, c.index_head_dim
    yield from linear(f"{p}.wq_b", heads * width, c.q_lora_rank, "attn.index_q", layers)
    yield from linear(f"{p}.wk", width, c.d_model, "attn.index_k", layers)
    yield from norm(f"{p}.k_norm", width, layers, bias=True, role="attn.index_norm")
    yield from linear(f"{p}.weights_proj", heads, c.d_model, "attn.index_weights", layers)


def sparse_attention(c: Config, layers: Layers, indexed: Layers) -> Parts:
    """Latent attention whose layers in ``indexed`` have an indexer and keep its keys."""
    for part in latent(c, layers, None):
        if isinstance(part, Weight):
            yield part
            continue
        yield from indexer(c, indexed)
        others = layers.where("n_plain_layers", lambda i: i not in indexed.indices)
        yield latent_mixer(c, indexed, None, c.index_head_dim)
        if others.indices:
            yield latent_mixer(c, others)
