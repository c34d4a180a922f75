"""DeepSeek's line: latent attention, routed experts with shared ones, leading dense layers.

Later a sparse indexer.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts, Weight
from llmcalc.blocks import embed, latent_mixer, linear, lm_head, mla, norm, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.frame import (
    ATTENTION,
    BLOCK,
    FeedForward,
    dense_first,
    gated,
    pre_norm,
    routed_with_shared,
    split,
)


def latent(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Latent attention under the usual names."""
    return mla(ATTENTION, c, layers, window, c.flag("attention_bias"))


@family("deepseek_v2")
def deepseek_v2(c: Config) -> Parts:
    """DeepSeek-V2 (arXiv 2405.04434): latent attention, shared experts, no correction of the
    router.
    """
    bias = c.flag("mlp_bias")
    moe: FeedForward = lambda layers: routed_with_shared(c, layers, None, bias)
    yield from pre_norm(
        c, lambda layers, window: latent(c, layers, window), dense_first(c, gated(c, bias), moe)
    )


@family("deepseek_v3", "kimi_k2", "sarvam_mla")
def deepseek_v3(c: Config) -> Parts:
    """DeepSeek-V3, R1 (arXiv 2412.19437) and Kimi K2; multi-token-prediction layers are
    left out.
    """
    feed_forward = dense_first(c, gated(c), lambda layers: routed_with_shared(c, layers))
    yield from pre_norm(c, lambda layers, window: latent(c, layers, window), feed_forward)


def sparse_layers(c: Config, fallback: list[str]) -> list[str]:
    """``mlp_layer_types``, else ``fallback``."""
    return c.kinds("mlp_layer_types") or fallback


def first_dense(c: Config) -> list[str]:
    """Leading dense layers, then experts every ``moe_layer_freq`` layers."""
    first, freq = c.size("n_dense_layers", 1, least=0), c.size("moe_layer_freq", 1)
    return ["sparse" if i >= first and i % freq == 0 else "dense" for i in range(c.layers)]


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


@family("axk1")
def axk1(c: Config) -> Parts:
    """A.X K1: DeepSeek-V3 with one more norm after the experts."""
    kinds = sparse_layers(c, first_dense(c))

    def moe(layers: Layers) -> Parts:
        yield from routed_with_shared(c, layers)
        yield from norm(f"{BLOCK}.post_mlp_layernorm", c.d_model, layers)

    yield from pre_norm(
        c,
        lambda layers, window: latent(c, layers, window),
        split(lambda i: kinds[i] != "sparse", gated(c), moe),
    )


@family("youtu")
def youtu(c: Config) -> Parts:
    """Youtu-LLM: latent attention with a dense MLP."""
    yield from pre_norm(c, lambda layers, window: latent(c, layers, window), gated(c))


@family("minicpm3")
def minicpm3(c: Config) -> Parts:
    """MiniCPM3: latent attention, value heads of d_model / n_heads unless given."""
    if c.get("v_head_dim") is None:
        c = Config({**c.raw, "v_head_dim": int(c.d_model) // int(c.n_heads)}, defaults=c.defaults)
    yield from pre_norm(
        c, lambda layers, window: latent(c, layers, window), gated(c, c.flag("mlp_bias"))
    )


def indexer(c: Config, layers: Layers) -> Parts:
    """DeepSeek Sparse Attention's indexer: small heads that choose the tokens a query sees."""
    p, heads, width = f"{ATTENTION}.indexer", c.index_n_heads, c.index_head_dim
    yield from linear(f"{p}.wq_b", heads * width, c.q_lora_rank, "attn.index_q", layers)
    yield from linear(f"{p}.wk", width, c.d_model, "attn.index_k", layers)
    yield from norm(f"{p}.k_norm", width, layers, bias=True, role="attn.index_norm")
    yield from linear(f"{p}.weights_proj", heads, c.d_model, "attn.index_weights", layers)


def sparse_attention(c: Config, layers: Layers, indexed: Layers) -> Parts:
    """Latent attention whose layers in ``indexed`` have an indexer and keep its keys."""
    for part in latent(c, layers, None):
        if isinstance(part, Weight):
            yield part
            continue
        yield from indexer(c, indexed)
        others = layers.where("n_plain_layers", lambda i: i not in indexed.indices)
        yield latent_mixer(c, indexed, None, c.index_head_dim)
        if others.indices:
            yield latent_mixer(c, others)


@family("deepseek_v32")
def deepseek_v32(c: Config) -> Parts:
    """DeepSeek-V3.2: V3 with an indexer in every layer."""
    first = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    moe = split(
        lambda i: kinds[i] != "sparse", gated(c), lambda layers: routed_with_shared(c, layers)
    )
    yield from pre_norm(c, lambda layers, _: sparse_attention(c, layers, layers), moe, frozenset())


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


@family("axk2")
def axk2(c: Config) -> Parts:
    """A.X K2: sparse attention with an output gate, and norms with a low-rank gate."""
    d, layers, ql = c.d_model, Layers.all(c.n_layers), c.q_lora_rank
    kinds = sparse_layers(c, first_dense(c))
    sparse = layers.where("n_moe_layers", lambda i: kinds[i] == "sparse")
    dense = layers.where("n_dense_layers", lambda i: kinds[i] != "sparse")
    width = c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from gated_norm(c, f"{BLOCK}.input_layernorm", layers)
    for part in sparse_attention(c, layers, layers):
        if isinstance(part, Weight) and part.role == "attn.q_b":
            part = replace(part, shape=(width, 2 * ql))
        yield part
    yield from gated_norm(c, f"{BLOCK}.post_attention_layernorm", sparse)
    if dense.indices:
        yield from norm(f"{BLOCK}.post_attention_layernorm", d, dense)
        yield from gated(c)(dense)
    yield from routed_with_shared(c, sparse)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def gated_norm(c: Config, p: str, layers: Layers) -> Parts:
    """A norm multiplied by a low-rank sigmoid gate of itself."""
    yield from norm(f"{p}.norm", c.d_model, layers)
    yield from linear(f"{p}.W_down", c.gated_norm_rank, c.d_model, "norm.gate", layers)
    yield from linear(f"{p}.W_up", c.d_model, c.gated_norm_rank, "norm.gate", layers)
