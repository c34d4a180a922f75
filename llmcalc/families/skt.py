"""SK Telecom: A.X K1 and K2."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts, Weight
from llmcalc.blocks import embed, linear, lm_head, norm, tie
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.frame import BLOCK, gated, pre_norm, routed_with_shared, split
from llmcalc.families.parts.latent import latent, sparse_attention, sparse_layers


def first_dense(c: Config) -> list[str]:
    """Leading dense layers, then experts every ``moe_layer_freq`` layers."""
    first, freq = c.size("n_dense_layers", 1, least=0), c.size("moe_layer_freq", 1)
    return ["sparse" if i >= first and i % freq == 0 else "dense" for i in range(c.layers)]


@family("axk1")
def axk1(c: Config) -> Parts:
    """A.X K1: DeepSeek-V3 with one more norm after the experts."""
    kinds = sparse_layers(c, first_dense(c))

    def moe(layers: Layers) -> Parts:
        yield from routed_with_shared(c, layers)
        yield from norm(f"{BLOCK}.post_mlp_layernorm", c.d_model, layers)

    yield from pre_norm(
        c,
        lambda layers, window: latent(c, layers, window),
        split(lambda i: kinds[i] != "sparse", gated(c), moe),
    )


@family("axk2")
def axk2(c: Config) -> Parts:
    """A.X K2: sparse attention with an output gate, and norms with a low-rank gate."""
    d, layers, ql = c.d_model, Layers.all(c.n_layers), c.q_lora_rank
    kinds = sparse_layers(c, first_dense(c))
    sparse = layers.where("n_moe_layers", lambda i: kinds[i] == "sparse")
    dense = layers.where("n_dense_layers", lambda i: kinds[i] != "sparse")
    width = c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from gated_norm(c, f"{BLOCK}.input_layernorm", layers)
    for part in sparse_attention(c, layers, layers):
        if isinstance(part, Weight) and part.role == "attn.q_b":
            part = replace(part, shape=(width, 2 * ql))
        yield part
    yield from gated_norm(c, f"{BLOCK}.post_attention_layernorm", sparse)
    if dense.indices:
        yield from norm(f"{BLOCK}.post_attention_layernorm", d, dense)
        yield from gated(c)(dense)
    yield from routed_with_shared(c, sparse)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def gated_norm(c: Config, p: str, layers: Layers) -> Parts:
    """A norm multiplied by a low-rank sigmoid gate of itself."""
    yield from norm(f"{p}.norm", c.d_model, layers)
    yield from linear(f"{p}.W_down", c.gated_norm_rank, c.d_model, "norm.gate", layers)
    yield from linear(f"{p}.W_up", c.d_model, c.gated_norm_rank, "norm.gate", layers)
