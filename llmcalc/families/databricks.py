"""Databricks and MosaicML: MPT, DBRX."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, linear, lm_head, mlp, norm, tensor, tie
from llmcalc.config import Config
from llmcalc.families import family


@family("dbrx")
def dbrx(c: Config) -> Parts:
    """DBRX: joint q, k, v, and experts as two-dimensional tensors of all of them."""
    from llmcalc.blocks import attention, embed, lm_head, tie

    inner, ffn = c.nested("attn_config"), c.nested("ffn_config")
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.blocks.{layer}"
    d_h, n_kv = c.split_head_dim, inner.size("n_kv_heads", 1, "kv_n_heads")
    n, k = ffn.size("n_experts", 4, "moe_num_experts"), ffn.size("n_active_experts", 1, "moe_top_k")
    width = ffn.size("d_ff", 3584, "ffn_hidden_size")
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.norm_attn_norm.norm_1", d, layers)
    yield from linear(
        f"{block}.norm_attn_norm.attn.Wqkv", d + 2 * n_kv * d_h, d, "attn.qkv", layers
    )
    yield attention(layers, c.n_heads, n_kv, d_h, d_h)
    yield from linear(f"{block}.norm_attn_norm.attn.out_proj", d, d, "attn.o", layers)
    yield from norm(f"{block}.norm_attn_norm.norm_2", d, layers)
    yield from linear(f"{block}.ffn.router.layer", n, d, "router", layers)
    for name, role in (("w1", "mlp.gate"), ("v1", "mlp.up"), ("w2", "mlp.down")):
        # stored [n_experts·d_ff, d]: every expert's rows one below the other
        yield tensor(
            f"{block}.ffn.experts.mlp.{name}",
            (width, d),
            "matmul",
            role,
            layers,
            experts=n,
            active=k,
            rows=True,
        )
    yield from norm("transformer.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


@family("mpt")
def mpt(c: Config) -> Parts:
    """MPT: ALiBi, no biases, four times the width in the MLP."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.blocks.{layer}"
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.norm_1", d, layers)
    yield from linear(f"{block}.attn.Wqkv", 3 * d, d, "attn.qkv", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.attn.out_proj", d, d, "attn.o", layers)
    yield from norm(f"{block}.norm_2", d, layers)
    yield from mlp(f"{block}.ffn.", d, 4 * d, layers, ("up_proj", "down_proj"), False)
    yield from norm("transformer.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))
