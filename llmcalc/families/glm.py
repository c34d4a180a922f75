"""Zhipu: ChatGLM, GLM-4 and 5."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    attention,
    embed,
    fused_swiglu,
    gqa,
    linear,
    lm_head,
    mix,
    norm,
    qk_norm,
    qkv,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.parts.checks import refuse
from llmcalc.families.parts.frame import (
    ATTENTION,
    BLOCK,
    MLP,
    dense_first,
    gated,
    pre_norm,
    routed_with_shared,
    split,
)
from llmcalc.families.parts.latent import latent, sparse_attention, sparse_layers
from llmcalc.families.parts.routing import o_proj


@family("glm4_moe_lite")
def glm4_moe_lite(c: Config) -> Parts:
    """GLM-4.7-Flash:

    DeepSeek's blocks; only the first layer is dense unless the config lists others.
    """
    kinds = sparse_layers(c, ["dense"] + ["sparse"] * (c.layers - 1))
    moe = split(
        lambda i: kinds[i] != "sparse", gated(c), lambda layers: routed_with_shared(c, layers)
    )
    yield from pre_norm(c, lambda layers, window: latent(c, layers, window), moe)


@family("glm_moe_dsa")
def glm_moe_dsa(c: Config) -> Parts:
    """GLM-5: DeepSeek-V3.2 whose indexer is shared by runs of layers."""
    first = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    moe = split(
        lambda i: kinds[i] != "sparse", gated(c), lambda layers: routed_with_shared(c, layers)
    )
    own = index_owners(c)

    def attend(layers: Layers, _: Dim | None) -> Parts:
        return sparse_attention(c, layers, layers.where("n_indexed_layers", lambda i: own[i]))

    yield from pre_norm(c, attend, moe, frozenset())


def index_owners(c: Config) -> list[bool]:
    """Which layers compute their own index, by list, by pattern or by frequency."""
    kinds = c.kinds("indexer_types")
    if kinds:
        return [kind != "shared" for kind in kinds]
    pattern = c.get("index_topk_pattern")
    if pattern:
        return [pattern[i] not in ("S", "shared") for i in range(c.layers)]
    offset, freq = c.get("index_skip_topk_offset", 2), max(c.get("index_topk_freq", 1) or 1, 1)
    offset = 2 if offset is None else offset
    return [max(i - offset + 1, 0) % freq == 0 for i in range(c.layers)]


@family("glm")
def glm(c: Config) -> Parts:
    """GLM-4 9B and GLM-edge: gate and up in one matrix, biases on q, k and v."""
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias, False),
        lambda layers: fused_swiglu(MLP, c.d_model, c.d_ff, layers),
    )


@family("glm4")
def glm4(c: Config) -> Parts:
    """GLM-4-0414: GLM with norms after attention and MLP too."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias, False)
        yield from norm(f"{BLOCK}.post_self_attn_layernorm", c.d_model, layers)

    def feed_forward(layers: Layers) -> Parts:
        yield from fused_swiglu(MLP, c.d_model, c.d_ff, layers)
        yield from norm(f"{BLOCK}.post_mlp_layernorm", c.d_model, layers)

    yield from pre_norm(c, attend, feed_forward)


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


@family("chatglm")
def chatglm(c: Config) -> Parts:
    """ChatGLM 2 and 3, GLM-4 9B in its first form: fused gate and up, two key/value groups."""
    refuse(c, "vision_config", "vision towers")
    refuse(c, "pre_seq_len", "prefix encoders")
    if "ffn_hidden_size" not in c.raw:
        raise ConfigError(
            "chatglm: the first ChatGLM (inner_hidden_size) is not described",
            hint="name its checkpoint file",
        )
    d, layers, p = c.d_model, Layers.all(c.n_layers), "transformer.encoder.layers.{layer}"
    d_h, ln = c.size("head_dim", 128, "kv_channels"), not c.flag("rmsnorm", True)
    n_kv = (
        c.size("n_kv_heads", 1, "multi_query_group_num")
        if c.flag("multi_query_attention")
        else c.n_heads
    )
    bias, qkv_bias = c.flag("add_bias_linear"), c.flag("add_bias_linear") or c.flag("add_qkv_bias")
    yield from embed("transformer.embedding.word_embeddings", c.vocab, d)
    yield from norm(f"{p}.input_layernorm", d, layers, ln)
    yield from linear(
        f"{p}.self_attention.query_key_value",
        (c.n_heads + 2 * n_kv) * d_h,
        d,
        "attn.qkv",
        layers,
        qkv_bias,
    )
    yield attention(layers, c.n_heads, n_kv, d_h, d_h)
    yield from linear(f"{p}.self_attention.dense", d, c.n_heads * d_h, "attn.o", layers, bias)
    yield from norm(f"{p}.post_attention_layernorm", d, layers, ln)
    yield from linear(f"{p}.mlp.dense_h_to_4h", 2 * c.d_ff, d, "mlp.gate_up", layers, bias)
    yield from linear(f"{p}.mlp.dense_4h_to_h", d, c.d_ff, "mlp.down", layers, bias)
    if c.flag("post_layer_norm", True):
        yield from norm("transformer.encoder.final_layernorm", d, bias=ln)
    yield from lm_head("transformer.output_layer", c.vocab, d)
    from llmcalc.blocks import tensor

    yield tensor(
        "transformer.rotary_pos_emb.inv_freq", (d_h // 4,), "state", "position", buffer=True
    )
