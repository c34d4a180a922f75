"""Decoders whose feed-forward is a router and experts, one way or another."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    W123,
    experts,
    gqa,
    linear,
    mix,
    norm,
    qkv,
    stacked,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, pre_norm, routed
from llmcalc.families.llama import hunyuan_attention

SPARSE = f"{BLOCK}.block_sparse_moe"


@family("mixtral")
def mixtral(c: Config) -> Parts:
    """Mixtral (arXiv 2401.04088): every layer routes to two of eight MLPs."""

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{SPARSE}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), feed_forward)


@family("olmoe")
def olmoe(c: Config) -> Parts:
    """OLMoE (arXiv 2409.02060): small experts, norms on whole queries and keys."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, bias)
        yield from norm(f"{ATTENTION}.q_norm", c.d_model, layers, role="attn.q_norm")
        yield from norm(
            f"{ATTENTION}.k_norm", c.split_head_dim * c.n_kv_heads, layers, role="attn.k_norm"
        )
        yield mix(c, layers, window)
        yield from linear(
            f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
        )

    yield from pre_norm(c, attend, lambda layers: routed(c, layers, c.d_ff))


@family("hunyuan_v1_moe")
def hunyuan_moe(c: Config) -> Parts:
    """Hunyuan-A13B: routed experts and one shared MLP of the same width."""

    def feed_forward(layers: Layers) -> Parts:
        k = c.get("moe_topk", c.get("num_experts_per_tok"))
        active = (
            Dim(max(k), "n_active_experts") if isinstance(k, list) and k else c.n_active_experts
        )
        yield from linear(f"{MLP}.gate.wg", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff, layers)
        yield from experts(one, c.n_experts, active)
        yield from swiglu(f"{MLP}.shared_mlp", c.d_model, c.d_ff, layers)

    yield from pre_norm(
        c, lambda layers, window: hunyuan_attention(c, layers, window), feed_forward
    )


def granite_experts(c: Config, layers: Layers) -> Parts:
    """Granite's experts: gate and up in one tensor, all experts stacked."""
    p, d, n, k = SPARSE, c.d_model, c.n_experts, c.n_active_experts
    yield from linear(f"{p}.router.layer", n, d, "router", layers)
    yield from stacked(linear(f"{p}.input_linear", 2 * c.d_ff, d, "mlp.gate_up", layers), n, k)
    yield from stacked(linear(f"{p}.output_linear", d, c.d_ff, "mlp.down", layers), n, k)
    shared = c.optional("shared_intermediate_size")
    if shared:
        yield from shared_mlp(c, shared, layers)


def shared_mlp(c: Config, width: Dim, layers: Layers) -> Parts:
    """Granite's MLP that every token passes, gate and up in one matrix."""
    yield from linear(
        f"{BLOCK}.shared_mlp.input_linear", 2 * width, c.d_model, "mlp.gate_up", layers
    )
    yield from linear(f"{BLOCK}.shared_mlp.output_linear", c.d_model, width, "mlp.down", layers)


@family("granitemoe", "granitemoeshared")
def granitemoe(c: Config) -> Parts:
    """Granite with experts, and with a shared one where its width is not zero."""
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        lambda layers: granite_experts(c, layers),
    )


@family("granitemoe_swa")
def granitemoe_swa(c: Config) -> Parts:
    """Granite with experts, windows and a learned sink per head."""
    bias, n, k = c.flag("attention_bias"), c.n_experts, c.n_active_experts

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.router", n, c.d_model, "router", layers)
        gate_up = tensor(
            f"{SPARSE}.experts.gate_up_proj",
            (2 * c.d_ff, c.d_model),
            "matmul",
            "mlp.gate_up",
            layers,
        )
        down = tensor(
            f"{SPARSE}.experts.down_proj", (c.d_model, c.d_ff), "matmul", "mlp.down", layers
        )
        yield from stacked(iter((gate_up, down)), n, k)
        if c.optional("shared_intermediate_size"):
            yield from shared_mlp(c, c.shared_intermediate_size, layers)

    yield from pre_norm(c, attend, feed_forward, c.sliding(lambda i: i % 4 != 0))


@family("gpt_oss")
def gpt_oss(c: Config) -> Parts:
    """gpt-oss (arXiv 2508.10925): sinks, biases, stacked and transposed experts, windows in every
    other layer.
    """
    bias, n, k, d = c.flag("attention_bias"), c.n_experts, c.n_active_experts, c.d_model

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    def feed_forward(layers: Layers) -> Parts:
        p = f"{MLP}.experts"
        yield from linear(f"{MLP}.router", n, d, "router", layers, True)
        gate_up = tensor(
            f"{p}.gate_up_proj", (d, 2 * c.d_ff), "matmul", "mlp.gate_up", layers, transposed=True
        )
        gate_up_bias = tensor(f"{p}.gate_up_proj_bias", (2 * c.d_ff,), "add", "mlp.gate_up", layers)
        down = tensor(f"{p}.down_proj", (c.d_ff, d), "matmul", "mlp.down", layers, transposed=True)
        down_bias = tensor(f"{p}.down_proj_bias", (d,), "add", "mlp.down", layers)
        yield from stacked(iter((gate_up, gate_up_bias, down, down_bias)), n, k)

    yield from pre_norm(c, attend, feed_forward, c.sliding(lambda i: i % 2 == 0))


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
