"""MiniMax: lightning attention first, then full."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts, State, rename
from llmcalc.blocks import (
    W123,
    correction_bias,
    embed,
    experts,
    gqa_normed,
    linear,
    lm_head,
    mix,
    norm,
    qk_norm,
    qkv,
    stacked,
    state_mixer,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, pre_norm, split
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.latent import sparse_layers
from llmcalc.families.parts.routing import SPARSE, o_proj


@family("minimax")
def minimax(c: Config) -> Parts:
    """MiniMax-01 (arXiv 2501.08313): lightning attention, full attention at intervals, experts
    everywhere.
    """
    d, layers, p = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.block_sparse_moe"
    kinds = c.kinds("layer_types") or [
        "full_attention" if (i + 1) % 2 else "linear_attention" for i in range(c.layers)
    ]
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    q, n, block = c.n_heads * c.head_dim, c.n_heads, c.size("block_size", 256)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        yield from linear(f"{ATTENTION}.qkv_proj", 3 * q, d, "attn.qkv", linear_layers)
        for name, shape in {
            "slope_rate": (n, 1, 1),
            "query_decay": (n, block, 1),
            "key_decay": (n, block, 1),
            "diagonal_decay": (1, n, block, block),
        }.items():
            yield tensor(f"{ATTENTION}.{name}", shape, "state", "ssm.a", linear_layers, buffer=True)
        yield state_mixer(linear_layers, State("recurrent", q, c.head_dim), n_heads=n)
        yield from norm(f"{ATTENTION}.norm", q, linear_layers, role="ssm.norm")
        yield from linear(f"{ATTENTION}.output_gate", q, d, "attn.gate", linear_layers)
        yield from linear(f"{ATTENTION}.out_proj", d, q, "attn.o", linear_layers)
    if full.indices:
        yield from qkv(ATTENTION, c, full)
        yield mix(c, full)
        yield from linear(f"{ATTENTION}.o_proj", d, q, "attn.o", full)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from linear(f"{p}.gate", c.n_experts, d, "router", layers)
    one = swiglu(f"{p}.experts.{{expert}}", d, c.d_ff, layers, names=W123)
    yield from experts(one, c.n_experts, c.n_active_experts)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("minimax_m2")
def minimax_m2(c: Config) -> Parts:
    """MiniMax-M2: norms on whole queries and keys, experts everywhere."""

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.gate", c.n_experts, c.d_model, "router", layers)
        yield from correction_bias(f"{SPARSE}.e_score_correction_bias", c.n_experts, layers)
        one = swiglu(f"{SPARSE}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, False, False),
        feed_forward,
    )


@family("minimax_m3_vl_text")
def minimax_m3(c: Config) -> Parts:
    """MiniMax-M3's language model: block-sparse layers with a small indexer, fused MLPs."""
    types = c.kinds("layer_types")
    sparse_config = c.raw.get("sparse_attention_config") or {}
    if types is None:
        freq = sparse_config.get("sparse_attention_freq") or [0] * c.layers
        types = ["minimax_m3_sparse" if freq[i] else "full_attention" for i in range(c.layers)]
    moe_freq = c.get("moe_layer_freq")
    kinds = sparse_layers(
        c, ["sparse" if f else "dense" for f in moe_freq] if moe_freq else ["sparse"] * c.layers
    )
    heads = Dim(sparse_config.get("sparse_num_index_heads") or c.index_n_heads, "index_n_heads")
    width = Dim(sparse_config.get("sparse_index_dim") or c.index_head_dim, "index_head_dim")
    d, layers = c.d_model, Layers.all(c.n_layers)
    indexed = layers.where("n_sparse_layers", lambda i: types[i] == "minimax_m3_sparse")
    plain = layers.where("n_full_layers", lambda i: types[i] != "minimax_m3_sparse")

    def attend(_: Layers, __: Dim | None) -> Parts:
        p = f"{ATTENTION}.indexer"
        yield from qkv(ATTENTION, c, layers)
        yield from qk_norm(ATTENTION, c, layers)
        if indexed.indices:
            yield from linear(f"{p}.q_proj", heads * width, d, "attn.index_q", indexed)
            yield from linear(f"{p}.k_proj", width, d, "attn.index_k", indexed)
            yield from norm(f"{p}.q_norm", width, indexed, role="attn.index_norm")
            yield from norm(f"{p}.k_norm", width, indexed, role="attn.index_norm")
            yield replace(mix(c, indexed), index_keys=width)
        if plain.indices:
            yield mix(c, plain)
        yield from o_proj(c, layers)

    def dense(group: Layers) -> Parts:
        yield from linear(
            f"{MLP}.gate_up_proj", 2 * c.dense_intermediate_size, d, "mlp.gate_up", group
        )
        yield from linear(f"{MLP}.down_proj", d, c.dense_intermediate_size, "mlp.down", group)

    def moe(group: Layers) -> Parts:
        n, k, p = c.n_experts, c.n_active_experts, f"{MLP}.shared_experts"
        yield from linear(f"{MLP}.gate", n, d, "router", group)
        yield from correction_bias(f"{MLP}.gate.e_score_correction_bias", n, group)
        up = tensor(f"{MLP}.experts.gate_up_proj", (2 * c.d_ff, d), "matmul", "mlp.gate_up", group)
        down = tensor(f"{MLP}.experts.down_proj", (d, c.d_ff), "matmul", "mlp.down", group)
        yield from stacked(iter((up, down)), n, k)
        yield from linear(
            f"{p}.gate_up_proj", 2 * c.shared_intermediate_size, d, "mlp.gate_up", group
        )
        yield from linear(f"{p}.down_proj", d, c.shared_intermediate_size, "mlp.down", group)

    yield from pre_norm(c, attend, split(lambda i: kinds[i] != "sparse", dense, moe), frozenset())


@family("minimax_m3")
def minimax_m3_text(c: Config) -> Parts:
    """MiniMax-M3's language model under its published names.

    The vision tower of its files is not counted.
    """

    c.notes.append(
        "the published file also holds a vision tower, which this config does not describe and"
        " which is not counted"
    )
    fused = minimax_m3(c)
    yield from rename(fused, (".self_attn.indexer.", ".self_attn.index_"))
