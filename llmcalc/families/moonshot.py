"""Moonshot: Kimi Linear, and Kimi K2.5 with pictures (K2 is DeepSeek-V3's structure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmcalc.anatomy import Layers, Parts, Weight
from llmcalc.blocks import (
    W123,
    correction_bias,
    embed,
    experts,
    linear,
    lm_head,
    mla,
    norm,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.parts.delta import delta_state
from llmcalc.families.parts.frame import ATTENTION, BLOCK
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.latent import sparse_layers
from llmcalc.families.parts.towers import named
from llmcalc.families.parts.wrapper import language, text_of


@family("kimi_linear")
def kimi_linear(c: Config) -> Parts:
    """Kimi Linear (arXiv 2510.26692): delta attention, latent attention without positions in every
    fourth layer.
    """
    d, layers, own = c.d_model, Layers.all(c.n_layers), c.raw.get("linear_attn_config") or {}
    kinds = c.kinds("layer_types") or kimi_kinds(c, own)
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    first = c.size("n_dense_layers", 1, least=0)
    sparse = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        yield from kimi_delta(c, linear_layers, own)
    if full.indices:
        yield from mla(ATTENTION, c, full, None, c.flag("attention_bias"))
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    p = f"{BLOCK}.block_sparse_moe"
    yield from swiglu(p, d, c.d_ff, layers.where("n_dense_layers", lambda i: sparse[i] != "sparse"))
    moe = layers.where("n_moe_layers", lambda i: sparse[i] == "sparse")
    yield from linear(f"{p}.gate", c.n_experts, d, "router", moe)
    yield from correction_bias(f"{p}.gate.e_score_correction_bias", c.n_experts, moe)
    one = swiglu(f"{p}.experts.{{expert}}", d, c.d_ff_expert, moe, names=W123)
    yield from experts(one, c.n_experts, c.n_active_experts)
    if c.n_shared_experts:
        yield from swiglu(f"{p}.shared_experts", d, c.d_ff_expert * c.n_shared_experts, moe)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d)


def kimi_kinds(c: Config, own: dict[str, Any]) -> list[str]:
    """Kimi's layer kinds: lists that count from one, else every fourth layer after the first."""
    if own.get("kda_layers") is not None and own.get("full_attn_layers") is not None:
        return [
            "linear_attention" if i + 1 in own["kda_layers"] else "full_attention"
            for i in range(c.layers)
        ]
    return [
        "full_attention" if i > 0 and i % 4 == 0 else "linear_attention" for i in range(c.layers)
    ]


def kimi_delta(c: Config, layers: Layers, own: dict[str, Any]) -> Parts:
    """Kimi delta attention: a decay per channel through a low-rank projection."""
    p, d = ATTENTION, c.d_model
    heads = Dim(own.get("num_heads") or c.get("linear_num_heads", 32), "n_linear_heads")
    d_h = Dim(own.get("head_dim") or c.get("linear_head_dim", 128), "linear_head_dim")
    width = Dim(own.get("short_conv_kernel_size") or c.get("linear_conv_kernel_dim", 4), "d_conv")
    q = heads * d_h
    for name in "qkv":
        yield from linear(f"{p}.{name}_proj", q, d, f"attn.{name}", layers)
    for name in "qkv":
        yield tensor(f"{p}.{name}_conv1d.weight", (q, 1, width), "conv", "ssm.conv", layers)
    yield from linear(f"{p}.f_a_proj", d_h, d, "ssm.dt", layers)
    yield from linear(f"{p}.f_b_proj", q, d_h, "ssm.dt", layers)
    yield tensor(f"{p}.dt_bias", (q,), "state", "ssm.dt", layers)
    yield tensor(f"{p}.A_log", (1, 1, heads, 1), "state", "ssm.a", layers)
    yield from linear(f"{p}.b_proj", heads, d, "ssm.in", layers)
    yield from delta_state(layers, 3 * q, width, heads, d_h, d_h, always=True)
    yield from linear(f"{p}.g_a_proj", d_h, d, "attn.gate", layers)
    yield from linear(f"{p}.g_b_proj", q, d_h, "attn.gate", layers)
    yield from norm(f"{p}.o_norm", d_h, layers, role="ssm.norm")
    yield from linear(f"{p}.o_proj", d, q, "attn.o", layers)


@family("kimi_k25")
def kimi_k25(c: Config) -> Parts:
    """Kimi K2.5: MoonViT before Kimi K2."""
    vision, text = inner(c, "vision_config"), text_of(c, "deepseek_v3", c.tied)
    h, d_ff, merge = (
        named(vision, "hidden_size"),
        named(vision, "intermediate_size"),
        vision.get("merge_kernel_size") or [2, 2],
    )
    p, block = "vision_tower", "vision_tower.encoder.blocks.{layer}"
    layers, patch = Layers.all(named(vision, "n_layers", "num_hidden_layers")), vision.patch_size
    yield tensor(
        f"{p}.encoder.patch_embed.proj.weight",
        (h, vision.size("num_channels", 3), patch, patch),
        "conv",
        "vision.patch",
    )
    yield tensor(f"{p}.encoder.patch_embed.proj.bias", (h,), "add", "vision.patch")
    rows = (vision.pos_emb_height, vision.pos_emb_width, h)
    yield tensor(f"{p}.patch_embed.pos_emb.weight", rows, "lookup", "vision.position")
    for name in ("norm0", "norm1"):
        yield from norm(f"{block}.{name}", h, layers, True, "vision.norm")
    yield from linear(f"{block}.wqkv", 3 * h, h, "vision.qkv", layers, True)
    yield from linear(f"{block}.wo", h, h, "vision.o", layers, True)
    yield from linear(f"{block}.mlp.fc0", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.fc1", h, d_ff, "vision.down", layers, True)
    yield from norm(f"{p}.encoder.final_layernorm", h, bias=True, role="vision.norm")
    joined = h * merge[0] * merge[1]
    yield from norm("mm_projector.pre_norm", c.projection_hidden_size, bias=True, role="projector")
    yield from linear("mm_projector.proj.0", joined, joined, "projector", bias=True)
    yield from linear("mm_projector.proj.2", text.d_model, joined, "projector", bias=True)
    for part in language(
        text
    ):  # the reference writes the layers as ``blocks``, Moonshot's own files as ``layers``
        if isinstance(part, Weight) and ".layers." in part.name:
            part = replace(part, name=part.name.replace(".layers.", ".blocks."), also=part.name)
        yield part
