"""Further decoders with experts, each with its own rule for which layers have them and what stands
beside them.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    W123,
    by_window,
    correction_bias,
    embed,
    experts,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    mix,
    norm,
    qk_norm,
    qkv,
    stacked,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.deepseek import sparse_layers
from llmcalc.families.frame import (
    ATTENTION,
    BLOCK,
    MLP,
    dense_first,
    gated,
    post_norm,
    pre_norm,
    routed,
    routed_with_shared,
    split,
)

SPARSE = f"{BLOCK}.block_sparse_moe"


def o_proj(c: Config, layers: Layers, bias: bool = False) -> Parts:
    """The output projection of grouped-query attention."""
    return linear(f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias)


@family("glm4_moe")
def glm4_moe(c: Config) -> Parts:
    """GLM-4.5 to 4.7 (arXiv 2508.06471): biases on q, k and v, norms on queries and keys where
    switched on.
    """

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, c.flag("attention_bias"))
        if c.flag("use_qk_norm"):
            yield from qk_norm(ATTENTION, c, layers)
        yield mix(c, layers, window)
        yield from o_proj(c, layers)

    yield from pre_norm(
        c, attend, dense_first(c, gated(c), lambda layers: routed_with_shared(c, layers))
    )


@family("solar_open")
def solar_open(c: Config) -> Parts:
    """Solar Open: GLM-4.5 with experts in every layer."""
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias, False),
        lambda layers: routed_with_shared(c, layers),
    )


@family("sarvam_moe")
def sarvam_moe(c: Config) -> Parts:
    """Sarvam: GLM-4.5's structure under names of its own, q, k and v in one matrix."""
    d, layers, p = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.attention"
    width = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
    correction = f"{MLP}.gate.expert_bias"
    feed_forward = dense_first(c, gated(c), lambda group: routed_with_shared(c, group, correction))
    yield from embed("model.word_embeddings", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from linear(
        f"{p}.query_key_value",
        width,
        d,
        "attn.qkv",
        layers,
        c.flag("use_qkv_bias", c.flag("attention_bias")),
    )
    if c.flag("use_qk_norm"):
        yield from qk_norm(p, c, layers, names=("query_layernorm", "key_layernorm"))
    yield from by_window(c, layers, c.sliding(), lambda ls, window: iter((mix(c, ls, window),)))
    yield from linear(f"{p}.dense", d, c.n_heads * c.head_dim, "attn.o", layers)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from feed_forward(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "model.word_embeddings.weight"))


@family("dots1")
def dots1(c: Config) -> Parts:
    """dots.llm1 (arXiv 2506.05767): norms on queries and keys, DeepSeek's experts."""
    bias, last = c.flag("attention_bias"), c.size("max_window_layers", 0, least=0)
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        dense_first(c, gated(c), lambda layers: routed_with_shared(c, layers)),
        c.sliding(lambda i: c.optional("window") and i >= last),
    )


@family("ernie4_5")
def ernie(c: Config) -> Parts:
    """ERNIE 4.5 dense: one flag for every bias."""
    bias = c.flag("use_bias")
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c, bias)
    )


@family("ernie4_5_moe")
def ernie_moe(c: Config) -> Parts:
    """ERNIE 4.5 with experts between two layers, at an interval.

    The router's correction is a parameter.
    """
    bias, n = c.flag("use_bias"), c.n_experts
    first, last = c.size("moe_layer_start_index", 0, least=0), c.get("moe_layer_end_index", -1)
    last, every = c.layers - 1 if last in (None, -1) else last, c.size("moe_layer_interval", 1)

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{MLP}.gate", n, c.d_model, "router", layers)
        yield tensor(f"{MLP}.moe_statics.e_score_correction_bias", (1, n), "add", "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff_expert, layers)
        yield from experts(one, n, c.n_active_experts)
        if c.n_shared_experts:
            yield from swiglu(
                f"{MLP}.shared_experts", c.d_model, c.d_ff_expert * c.n_shared_experts, layers, bias
            )

    is_dense = lambda i: not ((i + 1) % every == 0 and first <= i <= last)
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        split(is_dense, gated(c, bias), moe),
    )
    if bias:
        yield tensor("lm_head.bias", (c.vocab,), "add", "head")


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


@family("hy_v3")
def hy_v3(c: Config) -> Parts:
    """Hunyuan 3: norms on queries and keys, a shared MLP, biases by flag."""
    kinds = sparse_layers(c, ["dense"] + ["sparse"] * (c.layers - 1))
    bias, mlp_bias, p = c.flag("attention_bias"), c.flag("mlp_bias"), f"{MLP}.shared_mlp"

    def moe(layers: Layers) -> Parts:
        yield from routed(c, layers, c.d_ff_expert, router="router.gate")
        yield from correction_bias(f"{MLP}.expert_bias", c.n_experts, layers)
        width = c.d_ff_expert * c.n_shared_experts if c.n_shared_experts else c.d_ff
        yield from swiglu(p, c.d_model, width, layers, mlp_bias)

    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        split(lambda i: kinds[i] != "sparse", gated(c, mlp_bias), moe),
    )


@family("phimoe")
def phimoe(c: Config) -> Parts:
    """Phi-3.5-MoE: LayerNorm, biases by flag, Mixtral's names."""
    bias = c.flag("attention_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{SPARSE}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )
    if c.flag("lm_head_bias"):
        yield tensor("lm_head.bias", (c.vocab,), "add", "head")


@family("aria_text")
def aria_text(c: Config) -> Parts:
    """Aria's language model: stacked, transposed experts beside shared ones."""
    d, bias = c.d_model, c.flag("attention_bias")

    def feed_forward(layers: Layers) -> Parts:
        n, k, p = c.n_experts, c.n_active_experts, f"{MLP}.experts"
        yield from linear(f"{MLP}.router", n, d, "router", layers)
        up = tensor(
            f"{p}.fc1.weight", (d, 2 * c.d_ff), "matmul", "mlp.gate_up", layers, transposed=True
        )
        down = tensor(f"{p}.fc2.weight", (c.d_ff, d), "matmul", "mlp.down", layers, transposed=True)
        yield from stacked(iter((up, down)), n, k)
        yield from swiglu(
            f"{MLP}.shared_experts", d, c.d_ff * c.n_shared_experts, layers, c.flag("mlp_bias")
        )

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward
    )


@family("flex_olmo")
def flex_olmo(c: Config) -> Parts:
    """FlexOlmo: OLMo 2's frame around experts."""
    bias = c.flag("attention_bias")
    yield from post_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias, False),
        lambda layers: routed(c, layers, c.d_ff),
    )


@family("exaone_moe")
def exaone_moe(c: Config) -> Parts:
    """K-EXAONE: norms on queries and keys, windows, experts after the leading dense layers."""
    first = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    every, correction = c.get("sliding_window_pattern") or 4, f"{MLP}.e_score_correction_bias"
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window),
        split(
            lambda i: kinds[i] != "sparse",
            gated(c),
            lambda layers: routed_with_shared(c, layers, correction),
        ),
        c.sliding(lambda i: (i + 1) % every),
    )
