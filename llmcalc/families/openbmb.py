"""OpenBMB: MiniCPM and CPM-Ant."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    W123,
    attention,
    embed,
    experts,
    gqa,
    linear,
    lm_head,
    norm,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, MLP, gated, pre_norm
from llmcalc.families.parts.latent import latent


@family("minicpm3")
def minicpm3(c: Config) -> Parts:
    """MiniCPM3: latent attention, value heads of d_model / n_heads unless given."""
    if c.get("v_head_dim") is None:
        c = Config({**c.raw, "v_head_dim": int(c.d_model) // int(c.n_heads)}, defaults=c.defaults)
    yield from pre_norm(
        c, lambda layers, window: latent(c, layers, window), gated(c, c.flag("mlp_bias"))
    )


@family("cpmant")
def cpmant(c: Config) -> Parts:
    """CPM-Ant: soft prompts before the text, which stay in the cache; a head that is never tied."""
    d, layers, heads, d_h = (
        c.d_model,
        Layers.all(c.n_layers),
        c.n_heads,
        c.size("head_dim", None, "dim_head"),
    )
    block, a, d_ff = "cpmant.encoder.layers.{layer}", heads * d_h, c.size("d_ff", None, "dim_ff")
    p = f"{block}.self_att.self_attention"
    yield from embed("cpmant.segment_embedding", c.segment_types, d, "embed.type")
    yield from embed("cpmant.input_embedding", c.vocab + c.prompt_types * c.prompt_length, d)
    rows = c.segment_types * c.segment_types + c.position_bias_num_buckets
    yield tensor(
        "cpmant.position_bias.relative_attention_bias", (rows, heads), "lookup", "embed.position"
    )
    yield from norm(f"{block}.self_att.layernorm_before_attention", d, layers)
    for name in "qkv":
        yield from linear(f"{p}.project_{name}", a, d, f"attn.{name}", layers)
    yield replace(attention(layers, heads, heads, d_h, d_h), extra_tokens=c.prompt_length)
    yield from linear(f"{p}.attention_out", d, a, "attn.o", layers)
    yield from norm(f"{block}.ffn.layernorm_before_ffn", d, layers)
    for name, role in (("w_0", "mlp.gate"), ("w_1", "mlp.up")):
        yield from linear(f"{block}.ffn.ffn.w_in.{name}", d_ff, d, role, layers)
    yield from linear(f"{block}.ffn.ffn.w_out", d, d_ff, "mlp.down", layers)
    yield from norm("cpmant.encoder.output_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d)


@family("minicpm")
def minicpm(c: Config) -> Parts:
    """MiniCPM 1 (arXiv 2404.06395):

    Llama's structure, tied unless the config says otherwise; Mixtral-like experts.
    """
    bias = c.flag("attention_bias")
    tied = Config({"tie_word_embeddings": True, **c.raw}, defaults=c.defaults)

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{MLP}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    feed_forward = moe if c.size("n_experts", 0, least=0) else gated(c)
    yield from pre_norm(
        tied, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward
    )
