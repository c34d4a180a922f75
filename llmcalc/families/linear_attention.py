"""Hybrids with linear attention: gated delta nets (Qwen3-Next, Kimi Linear, OLMo hybrid), short
convolutions (LFM2).
"""

from __future__ import annotations

from typing import Any

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import (
    W123,
    by_window,
    correction_bias,
    embed,
    experts,
    gqa_normed,
    linear,
    lm_head,
    mix,
    mla,
    norm,
    qk_norm,
    qkv,
    state_mixer,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim, ceil_div
from llmcalc.families import family
from llmcalc.families.deepseek import sparse_layers
from llmcalc.families.frame import (
    ATTENTION,
    BLOCK,
    MLP,
    dense_first,
    gated,
    routed,
    routed_with_shared,
    split,
)
from llmcalc.families.hybrid import two_kinds
from llmcalc.families.qwen import dense_layers

DELTA = f"{BLOCK}.linear_attn"


def delta_state(
    layers: Layers, channels: Dim, d_conv: Dim, heads: Dim, d_k: Dim, d_v: Dim
) -> Parts:
    """What a gated delta net keeps: a convolution window, and one d_k x d_v matrix per head in
    float32.
    """
    yield state_mixer(
        layers,
        State("conv", channels, d_conv),
        State("recurrent", heads * d_k, d_v, "float32"),
        n_heads=heads,
    )


def gated_delta(c: Config, layers: Layers, joint: bool) -> Parts:
    """Gated delta net (arXiv 2412.06464) with Qwen's names.

    ``joint``: q, k, v, z in one projection.
    """
    d, heads = c.d_model, c.size("n_linear_heads", None, "linear_num_value_heads")
    d_k, d_v = c.linear_key_head_dim, c.linear_value_head_dim
    keys, values = c.linear_num_key_heads * d_k, heads * d_v
    channels = 2 * keys + values
    if joint:
        yield from linear(f"{DELTA}.in_proj_qkvz", channels + values, d, "ssm.in", layers)
        yield from linear(f"{DELTA}.in_proj_ba", 2 * heads, d, "ssm.in", layers)
    else:
        sizes = {"qkv": channels, "z": values, "b": heads, "a": heads}
        for name, width in sizes.items():
            yield from linear(f"{DELTA}.in_proj_{name}", width, d, "ssm.in", layers)
    width = c.size("d_conv", None, "linear_conv_kernel_dim")
    yield tensor(f"{DELTA}.conv1d.weight", (channels, 1, width), "conv", "ssm.conv", layers)
    yield tensor(f"{DELTA}.dt_bias", (heads,), "state", "ssm.dt", layers)
    yield tensor(f"{DELTA}.A_log", (heads,), "state", "ssm.a", layers)
    yield from delta_state(layers, channels, width, heads, d_k, d_v)
    yield from norm(f"{DELTA}.norm", d_v, layers, role="ssm.norm")
    yield from linear(f"{DELTA}.out_proj", d, values, "ssm.out", layers)


def gated_attention(c: Config, layers: Layers) -> Parts:
    """Grouped-query attention whose q projection brings an output gate along."""
    kv, bias = c.n_kv_heads * c.head_dim, c.flag("attention_bias")
    yield from linear(
        f"{ATTENTION}.q_proj", 2 * c.n_heads * c.head_dim, c.d_model, "attn.q", layers, bias
    )
    yield from linear(f"{ATTENTION}.k_proj", kv, c.d_model, "attn.k", layers, bias)
    yield from linear(f"{ATTENTION}.v_proj", kv, c.d_model, "attn.v", layers, bias)
    yield from qk_norm(ATTENTION, c, layers)
    yield mix(c, layers)
    yield from linear(
        f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
    )


def qwen_hybrid(c: Config, joint: bool, feed_forward: Any) -> Parts:
    """Three delta-net layers to one of gated attention."""
    d, layers, every = c.d_model, Layers.all(c.n_layers), c.get("full_attention_interval") or 4
    kinds = c.kinds("layer_types") or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(c.layers)
    ]
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        yield from gated_delta(c, linear_layers, joint)
    if full.indices:
        yield from gated_attention(c, full)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from feed_forward(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def qwen_experts(c: Config, layers: Layers) -> Parts:
    """Routed experts beside one shared expert with a gate of its own."""
    yield from routed(c, layers, c.d_ff_expert)
    yield from swiglu(
        f"{MLP}.shared_expert", c.d_model, c.size("shared_expert_intermediate_size"), layers
    )
    yield from linear(f"{MLP}.shared_expert_gate", 1, c.d_model, "router", layers)


@family("qwen3_next")
def qwen3_next(c: Config) -> Parts:
    """Qwen3-Next: gated delta nets, gated attention in every fourth layer, 512 experts."""
    yield from qwen_hybrid(
        c, True, split(dense_layers(c), gated(c), lambda ls: qwen_experts(c, ls))
    )


@family("qwen3_5_text")
def qwen3_5_text(c: Config) -> Parts:
    """Qwen3.5's dense language model."""
    yield from qwen_hybrid(c, False, gated(c))


@family("qwen3_5_moe_text")
def qwen3_5_moe_text(c: Config) -> Parts:
    """Qwen3.5's language model with experts in every layer."""
    yield from qwen_hybrid(c, False, lambda layers: qwen_experts(c, layers))


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
    yield from delta_state(layers, 3 * q, width, heads, d_h, d_h)
    yield from linear(f"{p}.g_a_proj", d_h, d, "attn.gate", layers)
    yield from linear(f"{p}.g_b_proj", q, d_h, "attn.gate", layers)
    yield from norm(f"{p}.o_norm", d_h, layers, role="ssm.norm")
    yield from linear(f"{p}.o_proj", d, q, "attn.o", layers)


@family("bailing_hybrid")
def bailing_hybrid(c: Config) -> Parts:
    """Ling 3:

    Kimi delta attention in five of six layers, latent attention with a gate in the sixth.
    """
    d, layers, p = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.attention"
    every = c.size("layer_group_size", 6)
    kinds = c.kinds("layer_types") or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(c.layers)
    ]
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    heads = c.size("n_linear_heads", int(c.n_heads), "linear_num_heads")
    d_h = c.size("linear_head_dim", None, "linear_head_dim", "head_dim")
    width = c.size("d_conv", None, "linear_conv_kernel_dim", "short_conv_kernel_size")
    q, first = heads * d_h, c.size("n_dense_layers", 0, least=0)
    sparse = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    yield from embed("model.word_embeddings", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        for name in "qkv":
            yield from linear(f"{p}.{name}_proj", q, d, f"attn.{name}", linear_layers)
        for name in "qkv":
            yield tensor(
                f"{p}.{name}_conv1d.weight", (q, 1, width), "conv", "ssm.conv", linear_layers
            )
        yield tensor(f"{p}.A_log", (heads,), "state", "ssm.a", linear_layers)
        yield tensor(f"{p}.dt_bias", (q,), "state", "ssm.dt", linear_layers)
        for name, out, role in (("f", q, "ssm.dt"), ("b", heads, "ssm.in"), ("g", q, "attn.gate")):
            yield from linear(f"{p}.{name}_proj", out, d, role, linear_layers)
        yield from delta_state(linear_layers, 3 * q, width, heads, d_h, d_h)
        yield from norm(f"{p}.o_norm", d_h, linear_layers, role="ssm.norm")
        yield from linear(f"{p}.dense", d, q, "attn.o", linear_layers)
    if full.indices:
        yield from mla(p, c, full, None, c.flag("attention_bias"), "dense")
        yield from linear(f"{p}.g_proj", c.n_heads, d, "attn.gate", full)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    correction = f"{MLP}.gate.expert_bias"
    yield from split(
        lambda i: sparse[i] != "sparse", gated(c), lambda ls: routed_with_shared(c, ls, correction)
    )(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d)


def short_conv(c: Config, layers: Layers) -> Parts:
    """LFM2's mixer: a gated convolution over a few tokens, which are all it keeps."""
    p, d, bias = f"{BLOCK}.conv", c.d_model, c.flag("conv_bias")
    width = c.size("d_conv", None, "conv_L_cache")
    yield from linear(f"{p}.in_proj", 3 * d, d, "ssm.in", layers, bias)
    yield tensor(f"{p}.conv.weight", (d, 1, width), "conv", "ssm.conv", layers)
    if bias:
        yield tensor(f"{p}.conv.bias", (d,), "add", "ssm.conv", layers)
    yield state_mixer(layers, State("conv", d, width))
    yield from linear(f"{p}.out_proj", d, d, "ssm.out", layers, bias)


def lfm_frame(c: Config, feed_forward: Any, attend: Any, convs: Layers, full: Layers) -> Parts:
    """LFM2's frame: an operator, a feed-forward, and the final norm under an embedding's name."""
    d, layers = c.d_model, Layers.all(c.n_layers)
    tied = c.flag("tie_embedding", c.tied)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.operator_norm", d, layers)
    if convs.indices:
        yield from short_conv(c, convs)
    if full.indices:
        yield from attend(full)
    yield from norm(f"{BLOCK}.ffn_norm", d, layers)
    yield from feed_forward(layers)
    yield from norm("model.embedding_norm", d)
    yield from lm_head("lm_head", c.vocab, d, "model.embed_tokens.weight" if tied else None)


def lfm2_attention(c: Config, layers: Layers) -> Parts:
    """LFM2's attention: norms per head, the output projection under another name."""
    yield from qkv(ATTENTION, c, layers)
    yield from qk_norm(ATTENTION, c, layers, names=("q_layernorm", "k_layernorm"))
    yield mix(c, layers)
    yield from linear(f"{ATTENTION}.out_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers)


def lfm2_width(c: Config) -> Dim:
    """LFM2's inner width: two thirds of the given one, scaled and rounded up, unless adjustment is
    off.
    """
    given = c.size("d_ff", None, "block_ff_dim", "intermediate_size")
    if not c.flag("block_auto_adjust_ff_dim", True):
        return given
    width = int(2 * int(given) / 3)
    factor, unit = c.get("block_ffn_dim_multiplier", 1.0), int(c.size("block_multiple_of", 256))
    if factor is not None:
        width = -(-int(factor * width) // unit) * unit
    return Dim(width, "d_ff")


@family("lfm2")
def lfm2(c: Config) -> Parts:
    """LFM2: short convolutions, attention in some layers."""
    listed = c.get("full_attn_idxs")
    kinds = c.kinds("layer_types") or [
        "full_attention" if listed is None or i in listed else "conv" for i in range(c.layers)
    ]
    convs, full = two_kinds(c, lambda i: kinds[i] == "conv")
    width = lfm2_width(c)
    yield from lfm_frame(
        c,
        lambda layers: swiglu(f"{BLOCK}.feed_forward", c.d_model, width, layers, names=W123),
        lambda layers: lfm2_attention(c, layers),
        convs,
        full,
    )


@family("lfm2_moe")
def lfm2_moe(c: Config) -> Parts:
    """LFM2 with experts after the leading dense layers."""
    from llmcalc.errors import ConfigError

    kinds = c.kinds("layer_types")
    if kinds is None:
        raise ConfigError(
            "lfm2_moe: the config has no layer_types, which this family cannot do without"
        )
    convs, full = two_kinds(c, lambda i: kinds[i] == "conv")
    p, d = f"{BLOCK}.feed_forward", c.d_model

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{p}.gate", c.n_experts, d, "router", layers)
        if c.flag("use_expert_bias"):
            yield from correction_bias(f"{p}.expert_bias", c.n_experts, layers)
        one = swiglu(f"{p}.experts.{{expert}}", d, c.d_ff_expert, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    dense = c.size("n_dense_layers", 0, "num_dense_layers", least=0)
    feed_forward = dense_first(
        c, lambda layers: swiglu(p, d, c.d_ff, layers, names=W123), moe, int(dense)
    )
    yield from lfm_frame(c, feed_forward, lambda layers: lfm2_attention(c, layers), convs, full)


@family("lfm3")
def lfm3(c: Config) -> Parts:
    """LFM3: LFM2 with windows, gated attention and norms after."""
    d, bias, sandwich = c.d_model, c.flag("attention_bias"), c.flag("use_sandwich_norm")
    kinds = c.kinds("layer_types") or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv"
        for i in range(c.layers)
    ]
    convs, attending = two_kinds(c, lambda i: kinds[i] == "conv")
    sliding = frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")

    def block(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, layers, window, bias)
        if c.flag("use_attention_gate"):
            yield from linear(f"{ATTENTION}.gate_proj", c.n_heads, d, "attn.gate", layers)

    def feed_forward(layers: Layers) -> Parts:
        if sandwich:
            yield from norm(f"{BLOCK}.post_operator_norm", d, layers)
        yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, names=W123)
        if sandwich:
            yield from norm(f"{BLOCK}.post_ffn_norm", d, layers)

    yield from lfm_frame(
        c, feed_forward, lambda layers: by_window(c, layers, sliding, block), convs, attending
    )


@family("olmo_hybrid")
def olmo_hybrid(c: Config) -> Parts:
    """OLMo hybrid: gated delta nets with a norm before, attention with norms after in every fourth
    layer.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    default = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(c.layers)]
    default[-1] = "full_attention" if "full_attention" not in default else default[-1]
    kinds = c.kinds("layer_types") or default
    linear_layers, full = two_kinds(c, lambda i: kinds[i] == "linear_attention")
    key_heads = c.size("n_linear_key_heads", int(c.n_heads), "linear_num_key_heads")
    heads = c.size("n_linear_heads", int(c.n_heads), "linear_num_value_heads")
    d_k = c.size("linear_key_head_dim", int(0.75 * int(d) / int(key_heads)))
    d_v = c.size("linear_value_head_dim", 2 * int(d_k))
    keys, values, width = (
        key_heads * d_k,
        heads * d_v,
        c.size("d_conv", 4, "linear_conv_kernel_dim"),
    )
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.attention_layer_norm", d, linear_layers)
    for name, out in (
        ("q", keys),
        ("k", keys),
        ("v", values),
        ("a", heads),
        ("b", heads),
        ("g", values),
    ):
        yield from linear(f"{DELTA}.{name}_proj", out, d, "ssm.in", linear_layers)
    channels = 2 * keys + values
    third = ceil_div(
        channels, 3
    )  # the reference writes its joint filter in three chunks of equal size
    for name, share in (("q", third), ("k", third), ("v", channels - 2 * third)):
        yield tensor(
            f"{DELTA}.{name}_conv1d.weight", (share, 1, width), "conv", "ssm.conv", linear_layers
        )
    yield tensor(f"{DELTA}.A_log", (heads,), "state", "ssm.a", linear_layers)
    yield tensor(f"{DELTA}.dt_bias", (heads,), "state", "ssm.dt", linear_layers)
    yield from delta_state(linear_layers, channels, width, heads, d_k, d_v)
    yield from norm(f"{DELTA}.o_norm", d_v, linear_layers, role="ssm.norm")
    yield from linear(f"{DELTA}.o_proj", d, values, "ssm.out", linear_layers)
    yield from gqa_normed(ATTENTION, c, full, None, c.flag("attention_bias"), False)
    yield from norm(f"{BLOCK}.feedforward_layer_norm", d, layers)
    yield from gated(c)(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", d, full)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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
