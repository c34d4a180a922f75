"""The frame that most decoders share around their attention and their feed-forward."""

from __future__ import annotations

from collections.abc import Callable

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    Windowed,
    attention,
    by_window,
    correction_bias,
    embed,
    experts,
    linear,
    lm_head,
    mix,
    norm,
    swiglu,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim

BLOCK = "model.layers.{layer}"


ATTENTION = f"{BLOCK}.self_attn"


MLP = f"{BLOCK}.mlp"


FeedForward = Callable[[Layers], Parts]


def pre_norm(
    c: Config,
    attend: Windowed,
    feed_forward: FeedForward,
    sliding: frozenset[int] | None = None,
    bias: bool = False,
) -> Parts:
    """Llama's frame: norm, attention, norm, feed-forward, each pair a residual.

    ``bias`` makes the norms LayerNorm.
    """
    layers = Layers.all(c.n_layers)
    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from norm(f"{BLOCK}.input_layernorm", c.d_model, layers, bias)
    yield from by_window(c, layers, c.sliding() if sliding is None else sliding, attend)
    yield from norm(f"{BLOCK}.post_attention_layernorm", c.d_model, layers, bias)
    yield from feed_forward(layers)
    yield from norm("model.norm", c.d_model, bias=bias)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


def post_norm(
    c: Config, attend: Windowed, feed_forward: FeedForward, sliding: frozenset[int] | None = None
) -> Parts:
    """OLMo 2's frame: the norms come after attention and feed-forward, before the residual is
    joined.
    """
    layers = Layers.all(c.n_layers)
    yield from embed("model.embed_tokens", c.vocab, c.d_model)
    yield from by_window(c, layers, c.sliding() if sliding is None else sliding, attend)
    yield from norm(f"{BLOCK}.post_attention_layernorm", c.d_model, layers)
    yield from feed_forward(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", c.d_model, layers)
    yield from norm("model.norm", c.d_model)
    yield from lm_head("lm_head", c.vocab, c.d_model, tie(c))


def gated(c: Config, bias: bool = False) -> FeedForward:
    """The gated MLP of width d_ff."""
    return lambda layers: swiglu(MLP, c.d_model, c.d_ff, layers, bias)


def routed(c: Config, layers: Layers, width: Dim, p: str = MLP, router: str = "gate") -> Parts:
    """A router and its gated experts, one tensor per expert and matrix."""
    yield from linear(f"{p}.{router}", c.n_experts, c.d_model, "router", layers)
    yield from experts(
        swiglu(f"{p}.experts.{{expert}}", c.d_model, width, layers), c.n_experts, c.n_active_experts
    )


def routed_with_shared(
    c: Config,
    layers: Layers,
    correction: str | None = f"{MLP}.gate.e_score_correction_bias",
    bias: bool = False,
    shared: str = f"{MLP}.shared_experts",
) -> Parts:
    """DeepSeek's feed-forward: a router with its correction buffer, routed experts, experts that
    every token passes.
    """
    width = c.d_ff_expert
    yield from linear(f"{MLP}.gate", c.n_experts, c.d_model, "router", layers)
    if correction:
        yield from correction_bias(correction, c.n_experts, layers)
    yield from experts(
        swiglu(f"{MLP}.experts.{{expert}}", c.d_model, width, layers),
        c.n_experts,
        c.n_active_experts,
    )
    if c.n_shared_experts:
        yield from swiglu(shared, c.d_model, c.n_shared_experts * width, layers, bias)


def dense_first(
    c: Config, dense: FeedForward, moe: FeedForward, n_dense: int | None = None
) -> FeedForward:
    """Leading layers with one MLP, experts in the rest."""
    return split(
        lambda i: i < (c.size("n_dense_layers", 0, least=0) if n_dense is None else n_dense),
        dense,
        moe,
    )


def split(is_dense: Callable[[int], bool], dense: FeedForward, moe: FeedForward) -> FeedForward:
    """One MLP in the layers that ``is_dense`` accepts, experts in the others."""

    def feed_forward(layers: Layers) -> Parts:
        plain = layers.where("n_dense_layers", is_dense)
        sparse = layers.where("n_moe_layers", lambda i: not is_dense(i))
        if plain.indices:
            yield from dense(plain)
        if sparse.indices:
            yield from moe(sparse)

    return feed_forward


def joint_attention(p: str, c: Config, layers: Layers, bias: bool) -> Parts:
    """Multi-head attention with q, k and v interleaved by head in one matrix, GPT-NeoX's and
    BLOOM's.
    """
    d = c.d_model
    yield from linear(f"{p}.query_key_value", 3 * d, d, "attn.qkv", layers, bias)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{p}.dense", d, d, "attn.o", layers, bias)


def fused_attention(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Grouped-query attention with q, k and v in one matrix."""
    width = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
    yield from linear(f"{ATTENTION}.qkv_proj", width, c.d_model, "attn.qkv", layers)
    yield mix(c, layers, window)
    yield from linear(f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers)
