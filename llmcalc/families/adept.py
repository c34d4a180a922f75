"""Adept: Persimmon, and Fuyu with pictures."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, linear, lm_head, mlp, norm, tie
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.wrapper import language, text_of


@family("persimmon")
def persimmon(c: Config) -> Parts:
    """Persimmon: joint q, k, v, LayerNorm on queries and keys, squared ReLU."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "model.layers.{layer}"
    p, d_h = f"{block}.self_attn", c.split_head_dim
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from linear(f"{p}.query_key_value", 3 * d, d, "attn.qkv", layers, True)
    if c.flag("qk_layernorm"):
        yield from norm(f"{p}.q_layernorm", d_h, layers, True, "attn.q_norm")
        yield from norm(f"{p}.k_layernorm", d_h, layers, True, "attn.k_norm")
    yield attention(layers, c.n_heads, c.n_heads, d_h, d_h)
    yield from linear(f"{p}.dense", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, c.d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("model.final_layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("fuyu")
def fuyu(c: Config) -> Parts:
    """Fuyu: patches through one matrix into Persimmon."""
    if isinstance(c.raw.get("text_config"), dict):
        text = text_of(c, "persimmon", c.tied)
    else:
        from llmcalc.families import class_defaults

        text = Config({**c.raw, "model_type": "persimmon"}, defaults=class_defaults("persimmon"))
    pixels = c.size("patch_size", 30) * c.size("patch_size", 30) * c.size("num_channels", 3)
    yield from linear("vision_embed_tokens", text.d_model, pixels, "projector", bias=True)
    yield from language(text)
