"""StepFun: Step 3.7 with pictures."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    attention,
    by_window,
    correction_bias,
    embed,
    linear,
    lm_head,
    norm,
    qk_norm,
    stacked,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.parts.frame import BLOCK
from llmcalc.families.parts.towers import named


def step_vision(c: Config, p: str) -> Parts:
    """Step 3's tower: OpenCLIP's names, two strided convolutions at its end."""
    h, layers, block = (
        named(c, "hidden_size", "hidden_size", "width"),
        Layers.all(named(c, "n_layers", "num_hidden_layers", "layers")),
        f"{p}.transformer.resblocks.{{layer}}",
    )
    d_ff, patch = Dim(int(int(h) * c.get("mlp_ratio", 8960 / 1536)), "v_d_ff"), c.patch_size
    yield tensor(
        f"{p}.conv1.weight", (h, c.size("num_channels", 3), patch, patch), "conv", "vision.patch"
    )
    side = int(c.image_size) // int(patch)
    yield tensor(
        f"{p}.positional_embedding", (Dim(side * side, "n_patches"), h), "lookup", "vision.position"
    )
    yield from norm(f"{p}.ln_pre", h, bias=True, role="vision.norm")
    for name in ("ls_1", "ls_2"):
        yield tensor(f"{block}.{name}.gamma", (h,), "scale", "vision.norm", layers)
    yield tensor(f"{block}.attn.in_proj_weight", (3 * h, h), "matmul", "vision.qkv", layers)
    yield tensor(f"{block}.attn.in_proj_bias", (3 * h,), "add", "vision.qkv", layers)
    yield from linear(f"{block}.attn.out_proj", h, h, "vision.o", layers, True)
    yield from linear(f"{block}.mlp.c_fc", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.c_proj", h, d_ff, "vision.down", layers, True)
    for name in ("ln_1", "ln_2"):
        yield from norm(f"{block}.{name}", h, layers, True, "vision.norm")
    for name, out, inn in (("vit_downsampler1", 2 * h, h), ("vit_downsampler2", 4 * h, 2 * h)):
        yield tensor(f"{p}.{name}.weight", (out, inn, 3, 3), "conv", "vision.merge")
        yield tensor(f"{p}.{name}.bias", (out,), "add", "vision.merge")


@family("step3p7")
def step3p7(c: Config) -> Parts:
    """Step 3.7: its tower, one matrix, the language model under its own names."""
    vision, text = (
        inner(c, "vision_config", "step3p7_vision"),
        inner(c, "text_config", "step3p7_text"),
    )
    yield from step_vision(vision, "vision_model")
    yield from step_text(text, bool(c.raw.get("tie_word_embeddings")))
    h = named(vision, "hidden_size", "hidden_size", "width")
    yield from linear(
        "vit_large_projector", text.d_model, 4 * h, "projector", bias=c.flag("projector_bias")
    )


def step_sparse(c: Config) -> list[bool]:
    """Which of Step 3's layers have experts."""
    kinds = c.get("mlp_layer_types")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds[: c.layers]]
    listed = c.raw.get("moe_layers_enum")
    if isinstance(listed, str):
        listed = [int(i) for i in listed.split(",") if i.strip()]
    return [i in listed if listed is not None else i >= 3 for i in range(c.layers)]


def step_text(c: Config, tied: bool) -> Parts:
    """Step 3's language model: more heads in windows, gated heads, stacked experts beside a shared
    one.
    """
    layers, d, bias, d_h = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias"), c.head_dim
    kinds, sparse = (
        (c.get("layer_types") or ["full_attention"] * c.layers)[: c.layers],
        step_sparse(c),
    )
    other = c.raw.get("attention_other_setting") or {}
    near_heads = (
        c.raw.get("num_sliding_attention_heads")
        or other.get("num_attention_heads")
        or int(c.n_heads)
    )
    n_kv, attn = (
        c.size("n_kv_heads", int(c.n_heads), "num_attention_groups", "num_key_value_heads"),
        f"{BLOCK}.self_attn",
    )
    sliding = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")

    def attend(group: Layers, window: Dim | None) -> Parts:
        heads = Dim(near_heads, "n_sliding_heads") if window else c.n_heads
        for name, out in (("q", heads * d_h), ("k", n_kv * d_h), ("v", n_kv * d_h)):
            yield from linear(f"{attn}.{name}_proj", out, d, f"attn.{name}", group, bias)
        yield from qk_norm(attn, c, group)
        yield attention(group, heads, n_kv, d_h, d_h, window)
        yield from linear(f"{attn}.g_proj", heads, d, "attn.gate", group)
        yield from linear(f"{attn}.o_proj", d, heads * d_h, "attn.o", group, bias)

    moe = layers.where("n_moe_layers", lambda i: sparse[i])
    dense = layers.where("n_dense_layers", lambda i: not sparse[i])
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, sliding, attend)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from swiglu(f"{BLOCK}.mlp", d, c.d_ff, dense, c.flag("mlp_bias"))
    if moe.indices:
        yield from step_experts(c, moe)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, "model.embed_tokens.weight" if tied else None)


def step_experts(c: Config, layers: Layers) -> Parts:
    """Step 3's router, stacked experts and shared expert."""
    d, n, p = (
        c.d_model,
        c.size("n_experts", None, "moe_num_experts", "n_routed_experts"),
        f"{BLOCK}.moe",
    )
    k = c.size("n_active_experts", None, "moe_top_k", "num_experts_per_tok")
    yield from linear(f"{p}.gate", n, d, "router", layers)
    yield from correction_bias(f"{p}.router_bias", n, layers)
    yield from stacked(swiglu(p, d, c.d_ff_expert, layers), n, k)
    yield from swiglu(
        f"{BLOCK}.share_expert",
        d,
        c.size("share_expert_dim", None, "share_expert_dims", "share_expert_dim"),
        layers,
        c.flag("mlp_bias"),
    )
