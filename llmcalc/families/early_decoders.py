"""Decoders from before Llama's shape: CTRL, XLNet, BioGPT, XGLM."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts
from llmcalc.blocks import attention, embed, linear, lm_head, mlp, norm, tensor, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.encoder_decoder import cross, feed_forward, self_attention


@family("biogpt")
def biogpt(c: Config) -> Parts:
    """BioGPT: OPT's layers with another head."""
    d, layers, p = c.d_model, Layers.all(c.n_layers), "biogpt"
    block = f"{p}.layers.{{layer}}"
    yield from embed(f"{p}.embed_tokens", c.vocab, d)
    yield from embed(f"{p}.embed_positions", c.max_context + 2, d, "embed.position")
    yield from self_attention(f"{block}.self_attn", d, layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, True)
    yield from feed_forward(block, d, c.d_ff, layers)
    yield from norm(f"{p}.layer_norm", d, bias=True)
    yield from lm_head("output_projection", c.vocab, d, tie(c, f"{p}.embed_tokens.weight"))


@family("xglm")
def xglm(c: Config) -> Parts:
    """XGLM (arXiv 2112.10668): computed positions."""
    d = c.size("d_model", None, "hidden_size", "d_model")
    layers, block = Layers.all(c.n_layers), "model.layers.{layer}"
    heads = c.size("n_heads", None, "num_attention_heads", "attention_heads")
    d_h, d_ff = Dim(int(d) // int(heads), "head_dim"), c.size("d_ff", None, "ffn_dim")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from self_attention(f"{block}.self_attn", d, layers)
    yield attention(layers, heads, heads, d_h, d_h)
    if c.flag("add_cross_attention"):
        yield from self_attention(f"{block}.encoder_attn", d, layers, role="cross")
        yield cross(layers, heads, d_h)
        yield from norm(f"{block}.encoder_attn_layer_norm", d, layers, True)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, True)
    yield from feed_forward(block, d, d_ff, layers)
    yield from norm("model.layer_norm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("ctrl")
def ctrl(c: Config) -> Parts:
    """CTRL (arXiv 1909.05858): computed positions, a bias on the head."""
    d, layers, block, d_ff = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.h.{layer}",
        c.size("d_ff", None, "dff"),
    )
    yield from embed("transformer.w", c.vocab, d)
    for name, role in (("Wq", "q"), ("Wk", "k"), ("Wv", "v")):
        yield from linear(
            f"{block}.multi_head_attention.{name}", d, d, f"attn.{role}", layers, True
        )
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.multi_head_attention.dense", d, d, "attn.o", layers, True)
    yield from mlp(f"{block}.ffn.", d, d_ff, layers, ("0", "2"))
    for name in ("layernorm1", "layernorm2"):
        yield from norm(f"{block}.{name}", d, layers, True)
    yield from norm("transformer.layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.w.weight"), bias=True)


@family("xlnet")
def xlnet(c: Config) -> Parts:
    """XLNet (arXiv 1906.08237): keeps one hidden state per token, of which it makes keys and values
    anew.
    """
    d, layers, block, d_ff = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.layer.{layer}",
        c.size("d_ff", None, "d_inner"),
    )
    heads, d_h = c.n_heads, c.split_head_dim
    p = f"{block}.rel_attn"
    yield tensor("transformer.mask_emb", (1, 1, d), "lookup", "embed.type")
    yield from embed("transformer.word_embedding", c.vocab, d)
    for name in ("q", "k", "v", "o", "r"):
        yield tensor(f"{p}.{name}", (d, heads, d_h), "matmul", f"attn.{name}", layers)
    for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
        yield tensor(f"{p}.{name}", (heads, d_h), "add", "attn.bias", layers)
    yield tensor(f"{p}.seg_embed", (2, heads, d_h), "lookup", "embed.type", layers)
    kept = c.optional("mem_len")
    hidden = Mixer(
        kind="kv",
        layers=layers,
        n_heads=heads,
        n_kv_heads=heads,
        d_qk=d_h,
        d_v=d_h,
        keys=d,
        max_source=kept,
    )
    yield hidden if c.flag("use_mems_eval", True) else replace(hidden, kind="none")
    yield from norm(f"{p}.layer_norm", d, layers, True)
    yield from norm(f"{block}.ff.layer_norm", d, layers, True)
    yield from mlp(f"{block}.ff.", d, d_ff, layers, ("layer_1", "layer_2"))
    yield from lm_head(
        "lm_loss", c.vocab, d, tie(c, "transformer.word_embedding.weight"), bias=True
    )
