"""Zyphra: Zamba, Zamba2, ZAYA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmcalc.anatomy import Layers, Mixer, Parts, State
from llmcalc.blocks import (
    by_window,
    correction_bias,
    embed,
    linear,
    lm_head,
    mix,
    norm,
    stacked,
    state_mixer,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP
from llmcalc.families.parts.scan import Scan, conv, dt_rank, expanded, mamba2


def zamba_blocks(
    c: Config, kinds: list[str], shared: Callable[[Layers, int], Parts], blocks: int
) -> Parts:
    """The shared transformer blocks: stored once per block where weights are tied, else in every
    hybrid layer.
    """
    layers = Layers.all(c.n_layers)
    hybrid = [i for i in layers.indices if kinds[i] == "hybrid"]
    for number, _ in enumerate(hybrid[:blocks]):
        users = hybrid[number::blocks]
        owner = users[:1] if c.tied else users
        name = "n_shared_blocks" if c.tied else "n_hybrid_layers"
        yield from shared(layers.only(name, owner), number)


def zamba_kinds(c: Config, fallback: list[str]) -> list[str]:
    """Which layers are hybrid, in either spelling."""
    given: Any = c.get("layers_block_type") or c.get("layer_types")
    if isinstance(given, list) and len(given) != c.n_layers:
        raise ConfigError(
            f"{c.family}: the layer types have {len(given)} entries for {int(c.n_layers)} layers"
        )
    return given or fallback


def kv_in(c: Config, layers: Layers, d_h: Dim) -> Parts:
    """The caches of attention in some layers, whose weights are shared but whose tokens are not."""
    from llmcalc.blocks import attention

    yield attention(layers, c.n_heads, c.n_kv_heads, d_h, d_h)


@family("zamba")
def zamba(c: Config) -> Parts:
    """Zamba (arXiv 2405.16712): one transformer block shared by every sixth layer, Mamba heads
    beneath it.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    period, offset = c.size("attn_layer_period", 6), c.size("attn_layer_offset", 4, least=0)
    pattern = ["linear", "linear", "hybrid"] + [
        "hybrid" if i % period == offset else "linear" for i in range(c.layers - 3)
    ]
    kinds = zamba_kinds(c, pattern)
    wide = c.optional("attention_hidden_size") or 2 * d
    d_h = c.optional("attention_head_dim", "attention_head_dim", "head_dim") or Dim(
        2 * int(d) // int(c.n_heads), "head_dim"
    )
    hybrid = layers.where("n_hybrid_layers", lambda i: kinds[i] == "hybrid")
    plain = layers.where("n_linear_layers", lambda i: kinds[i] != "hybrid")

    def shared(owners: Layers, _: int) -> Parts:
        p = f"{BLOCK}.shared_transf"
        kv = c.n_kv_heads * d_h
        yield from norm(f"{p}.input_layernorm", wide, owners)
        for name, out in (("q", c.n_heads * d_h), ("k", kv), ("v", kv)):
            yield from linear(f"{p}.self_attn.{name}_proj", out, wide, f"attn.{name}", owners)
        yield from linear(f"{p}.self_attn.o_proj", d, c.n_heads * d_h, "attn.o", owners)
        yield from norm(f"{p}.pre_ff_layernorm", d, owners)
        yield from swiglu(f"{p}.feed_forward", d, c.d_ff, owners)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, plain)
    yield from zamba_heads(c, f"{BLOCK}.mamba", plain)
    yield from zamba_blocks(c, kinds, shared, 1)
    yield from kv_in(c, hybrid, d_h)
    yield from linear(f"{BLOCK}.linear", d, d, "attn.join", hybrid)
    yield from norm(f"{BLOCK}.mamba_decoder.input_layernorm", d, hybrid)
    yield from zamba_heads(c, f"{BLOCK}.mamba_decoder.mamba", hybrid)
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def zamba_heads(c: Config, p: str, layers: Layers) -> Parts:
    """Zamba's Mamba 1 with the inner width cut into heads, each with its own projections."""
    d, n, d_inner = c.d_model, c.n_mamba_heads, expanded(c, "mamba_expand")
    width, rank, bias = d_inner // n, dt_rank(c, "mamba_dt_rank"), c.flag("mamba_proj_bias")
    yield from linear(f"{p}.in_proj", 2 * d_inner, d, "ssm.in", layers, bias)
    yield from conv(f"{p}.conv1d", d_inner, c.d_conv, layers, c.flag("mamba_conv_bias"))
    yield tensor(f"{p}.x_proj_weight", (n, rank + 2 * c.d_state, width), "matmul", "ssm.x", layers)
    yield tensor(f"{p}.dt_proj_weight", (n, width, rank), "matmul", "ssm.dt", layers)
    yield tensor(f"{p}.dt_proj_bias", (n, width), "add", "ssm.dt", layers)
    yield tensor(f"{p}.A_log", (n, width, c.d_state), "state", "ssm.a", layers)
    yield tensor(f"{p}.D", (n, width), "scale", "ssm.d", layers)
    yield state_mixer(
        layers, State("conv", d_inner, c.d_conv), State("recurrent", d_inner, c.d_state, "float32")
    )
    yield from linear(f"{p}.out_proj", d, d_inner, "ssm.out", layers, bias)


@family("zamba2")
def zamba2(c: Config) -> Parts:
    """Zamba2 (arXiv 2411.15242): shared blocks in turn, each with an adapter per use,
    over Mamba 2.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    default = [*"m" * 6, *"hmmmmm" * 6, "h", *"mmmm", "h", *"mmm", "h", *"mm"]
    kinds = zamba_kinds(c, ["hybrid" if k == "h" else "mamba" for k in default])
    hybrid = layers.where("n_hybrid_layers", lambda i: kinds[i] == "hybrid")
    plain = layers.where("n_linear_layers", lambda i: kinds[i] != "hybrid")
    blocks, rank, bias = c.num_mem_blocks, c.adapter_rank, c.flag("add_bias_linear")
    wide, d_h = 2 * d, Dim(2 * int(d) // int(c.n_heads), "head_dim")
    d_ff = c.optional("d_ff") or 4 * d
    d_inner = expanded(c, "mamba_expand")
    heads, groups = (
        c.size("n_ssm_heads", None, "n_mamba_heads"),
        c.size("n_groups", None, "mamba_ngroups"),
    )
    scan = Scan(d_inner, c.d_state, c.d_conv, heads=heads, groups=groups)

    def shared(owners: Layers, block: int) -> Parts:
        p, kv = f"{BLOCK}.shared_transformer", c.n_kv_heads * d_h
        uses = range(block, len(hybrid.indices), int(blocks))
        yield from norm(f"{p}.input_layernorm", wide, owners)
        for name, out in (("q", c.n_heads * d_h), ("k", kv), ("v", kv)):
            yield from linear(f"{p}.self_attn.{name}_proj", out, wide, f"attn.{name}", owners)
        yield from linear(f"{p}.self_attn.o_proj", d, c.n_heads * d_h, "attn.o", owners)
        if c.flag("use_shared_attention_adapter"):
            for name in "qkv":
                for use in uses:
                    adapter = f"{p}.self_attn.linear_{name}_adapter_list.{use}"
                    yield from linear(f"{adapter}.0", rank, wide, "adapter", owners)
                    yield from linear(f"{adapter}.1", wide, rank, "adapter", owners)
        yield from norm(f"{p}.pre_ff_layernorm", d, owners)
        yield from linear(
            f"{p}.feed_forward.gate_up_proj", 2 * d_ff, d, "mlp.gate_up", owners, bias
        )
        yield from linear(f"{p}.feed_forward.down_proj", d, d_ff, "mlp.down", owners, bias)
        for use in uses:
            adapter = f"{p}.feed_forward.gate_up_proj_adapter_list.{use}"
            yield from linear(f"{adapter}.0", rank, d, "adapter", owners)
            yield from linear(f"{adapter}.1", 2 * d_ff, rank, "adapter", owners)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, plain)
    yield from mamba2(f"{BLOCK}.mamba", d, scan, plain, True, bias, bias)
    yield from zamba_blocks(c, kinds, shared, int(blocks))
    yield from kv_in(c, hybrid, d_h)
    yield from linear(f"{BLOCK}.linear", d, d, "attn.join", hybrid)
    yield from norm(f"{BLOCK}.mamba_decoder.input_layernorm", d, hybrid)
    yield from mamba2(f"{BLOCK}.mamba_decoder.mamba", d, scan, hybrid, True, bias, bias)
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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
