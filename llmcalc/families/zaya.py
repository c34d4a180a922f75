"""ZAYA1 and Inkling: attention behind short convolutions, routers with a memory, stacked
experts.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts, State
from llmcalc.blocks import (
    attention,
    by_window,
    correction_bias,
    embed,
    linear,
    lm_head,
    mix,
    norm,
    stacked,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.deepseek import sparse_layers
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, split
from llmcalc.families.mamba import conv


@family("zaya")
def zaya(c: Config) -> Parts:
    """ZAYA1 (arXiv 2511.17127): attention in a compressed space behind convolutions, a router with
    a memory.
    """
    layers, d, bias, R = (
        Layers.all(c.n_layers),
        c.d_model,
        c.flag("attention_bias"),
        c.size("router_hidden_size"),
    )
    kinds = c.kinds("layer_types") or ["hybrid"] * c.layers
    p, q, kv = f"{ATTENTION}.qkv_proj", c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    joint, half = q + kv, kv // 2
    yield from embed("model.embed_tokens", c.vocab, d)
    for name in ("scale", "bias"):
        yield tensor(
            f"model.input_hidden_states_{name}",
            (d,),
            "scale" if name == "scale" else "add",
            "residual",
        )
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    for name, out, role in (
        ("q_proj", q, "q"),
        ("k_proj", kv, "k"),
        ("v_proj_current", half, "v"),
        ("v_proj_delayed", half, "v"),
    ):
        yield from linear(f"{p}.{name}", out, d, f"attn.{role}", layers, bias)
    yield from conv(f"{p}.conv_qk_depthwise", joint, c.cca_time0, layers, True)
    yield tensor(
        f"{p}.conv_qk_grouped.weight", (joint, c.head_dim, c.cca_time1), "conv", "ssm.conv", layers
    )
    yield tensor(f"{p}.conv_qk_grouped.bias", (joint,), "add", "ssm.conv", layers)
    yield tensor(f"{ATTENTION}.qk_norm.temp", (c.n_kv_heads,), "scale", "attn.k_norm", layers)
    sliding = frozenset(i for i, kind in enumerate(kinds) if kind == "hybrid_sliding")
    for part in by_window(c, layers, sliding, lambda ls, window: iter((mix(c, ls, window),))):
        states = (
            State("conv", joint, c.cca_time0 + c.cca_time1 - 2),
            State("recurrent", half, Dim(1)),
        )
        yield replace(part, states=states) if isinstance(part, Mixer) else part
    yield from linear(f"{ATTENTION}.o_proj", d, q, "attn.o", layers, bias)
    yield from residual_scale(f"{BLOCK}.post_attention_residual_scale", d, layers)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from zaya_router(c, layers, R)
    up = tensor(
        f"{MLP}.experts.gate_up_proj", (2 * c.d_ff_expert, d), "matmul", "mlp.gate_up", layers
    )
    down = tensor(f"{MLP}.experts.down_proj", (d, c.d_ff_expert), "matmul", "mlp.down", layers)
    yield from stacked(iter((up, down)), c.n_experts, Dim(1, "n_active_experts"))
    yield from residual_scale(f"{BLOCK}.post_mlp_residual_scale", d, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c), c.flag("lm_head_bias"))


def residual_scale(p: str, d: Dim, layers: Layers) -> Parts:
    """ZAYA's learned scale and bias on both sides of a residual."""
    for name in ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"):
        yield tensor(
            f"{p}.{name}", (d,), "add" if name.endswith("bias") else "scale", "residual", layers
        )


def zaya_router(c: Config, layers: Layers, width: Dim) -> Parts:
    """ZAYA's router: a small MLP over a state that passes from layer to layer.

    One class means no expert.
    """
    p, d = f"{MLP}.gate", c.d_model
    yield from linear(f"{p}.down_proj", width, d, "router", layers, True)
    yield tensor(
        f"{p}.router_states_scale",
        (width,),
        "scale",
        "router",
        layers.where("n_later_layers", lambda i: i > 0),
    )
    yield from norm(f"{p}.router_mlp.norm", width, layers, role="router")
    for name in ("fc1", "fc2"):
        yield from linear(f"{p}.router_mlp.{name}", width, width, "router", layers, True)
    yield from linear(f"{p}.router_mlp.out_proj", c.n_experts + 1, width, "router", layers)
    yield from correction_bias(f"{p}.balancing_biases", c.n_experts + 1, layers)


@family("inkling_text")
def inkling(c: Config) -> Parts:
    """Inkling: learned relative positions, short convolutions around attention and MLP, its own
    heads in windows.
    """
    layers, d, k = (
        Layers.all(c.n_layers),
        c.d_model,
        c.size("d_conv", None, "sconv_kernel_size", "conv_kernel_size"),
    )
    local = c.get("local_layer_ids")
    default = [
        "hybrid_sliding" if (i in local if local is not None else (i + 1) % 6) else "hybrid"
        for i in range(c.layers)
    ]
    kinds = c.kinds("layer_types") or default
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm("model.embed_tokens.embed_norm", d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    near = layers.where("n_sliding_layers", lambda i: kinds[i] == "hybrid_sliding")
    far = layers.where("n_full_layers", lambda i: kinds[i] != "hybrid_sliding")
    window = c.optional("window", "sliding_window", "sliding_window_size")
    if near.indices:
        heads = (c.swa_num_attention_heads, c.swa_num_key_value_heads, c.swa_head_dim)
        yield from inkling_attention(c, near, heads, k, window)
    if far.indices:
        yield from inkling_attention(c, far, (c.n_heads, c.n_kv_heads, c.head_dim), k, None)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from inkling_mlp(c, layers)
    yield tensor(f"{BLOCK}.mlp_sconv.conv1d.weight", (d, 1, k), "conv", "ssm.conv", layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d)


def inkling_attention(
    c: Config, layers: Layers, heads: tuple[Dim, Dim, Dim], k: Dim, window: Dim | None
) -> Parts:
    """Attention with convolved keys and values; four convolution windows stay in float32."""
    d, (n, n_kv, d_h) = c.d_model, heads
    kv, extent = n_kv * d_h, window or c.rel_extent
    for name, out, role in (
        ("q", n * d_h, "q"),
        ("k", kv, "k"),
        ("v", kv, "v"),
        ("r", n * c.d_rel, "pos"),
    ):
        yield from linear(f"{ATTENTION}.{name}_proj", out, d, f"attn.{role}", layers)
    for name in "kv":
        yield tensor(
            f"{ATTENTION}.{name}_sconv.conv1d.weight", (kv, 1, k), "conv", "ssm.conv", layers
        )
    for name in "qk":
        yield from norm(f"{ATTENTION}.{name}_norm", d_h, layers, role=f"attn.{name}_norm")
    yield tensor(
        f"{ATTENTION}.rel_logits_proj.proj", (c.d_rel, extent), "matmul", "attn.pos", layers
    )
    states = tuple(State("conv", width, k, "float32") for width in (kv, kv, d, d))
    yield replace(attention(layers, n, n_kv, d_h, d_h, window), states=states)
    yield from linear(f"{ATTENTION}.o_proj", d, n * d_h, "attn.o", layers)
    yield tensor(f"{BLOCK}.attn_sconv.conv1d.weight", (d, 1, k), "conv", "ssm.conv", layers)


def inkling_mlp(c: Config, layers: Layers) -> Parts:
    """Dense layers first, then stacked experts and stacked shared experts behind one router."""
    d, given = c.d_model, c.raw.get("dense_intermediate_size")
    first = c.get("dense_mlp_idx") or 0
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    width = Dim(given, "d_ff") if given else c.d_ff
    inner = Dim(c.d_ff, "d_ff_expert") if given else c.d_ff_expert

    def dense(group: Layers) -> Parts:
        yield from swiglu(MLP, d, width, group)
        yield tensor(f"{MLP}.global_scale", (1,), "scale", "mlp.scale", group)

    def moe(group: Layers) -> Parts:
        n, shared = c.n_experts, c.n_shared_experts
        yield from linear(f"{MLP}.gate", n + shared, d, "router", group)
        yield tensor(f"{MLP}.gate.global_scale", (1,), "scale", "router", group)
        yield from correction_bias(f"{MLP}.gate.e_score_correction_bias", n, group)
        up = tensor(f"{MLP}.experts.gate_up_proj", (2 * inner, d), "matmul", "mlp.gate_up", group)
        down = tensor(f"{MLP}.experts.down_proj", (d, inner), "matmul", "mlp.down", group)
        yield from stacked(iter((up, down)), n, c.n_active_experts)
        for name, shape, role in (
            ("gate", (inner, d), "gate"),
            ("up", (inner, d), "up"),
            ("down", (d, inner), "down"),
        ):
            one = tensor(f"{MLP}.shared_experts.{name}_proj", shape, "matmul", f"mlp.{role}", group)
            yield from stacked(iter((one,)), shared, shared)

    yield from split(lambda i: kinds[i] != "sparse", dense, moe)(layers)
