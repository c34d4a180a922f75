"""Decoders with experts and frames of their own: sandwich norms, gated attention, parallel
residuals, sinks.
"""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    attention,
    by_window,
    correction_bias,
    embed,
    experts,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    norm,
    qk_norm,
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
    gated,
    pre_norm,
    routed,
    split,
)


@family("mimo_v2_flash")
def mimo_v2_flash(c: Config) -> Parts:
    """MiMo-V2-Flash: wider keys than values.

    Layers with a window have twice the key/value heads, and sinks.
    """
    kinds = sparse_layers(c, ["dense"] + ["sparse"] * (c.layers - 1))
    sliding = c.sliding(lambda i: i != 0 and (i + 1) % 6 != 0)
    given = c.optional("window", "sliding_window_size")
    window_size = (
        Dim(given + 1, "window")
        if given and "sliding_window_size" in c.raw
        else c.optional("window", "sliding_window")
    )
    d, d_v = c.d_model, c.v_head_dim

    def attend(layers: Layers, window: Dim | None) -> Parts:
        heads = 2 * c.n_kv_heads if window else c.n_kv_heads
        bias = c.flag("attention_bias")
        yield from linear(f"{ATTENTION}.q_proj", c.n_heads * c.head_dim, d, "attn.q", layers, bias)
        yield from linear(f"{ATTENTION}.k_proj", heads * c.head_dim, d, "attn.k", layers, bias)
        yield from linear(f"{ATTENTION}.v_proj", heads * d_v, d, "attn.v", layers, bias)
        yield attention(layers, c.n_heads, heads, c.head_dim, d_v, window_size if window else None)
        if window:
            yield tensor(
                f"{ATTENTION}.attention_sink_bias", (c.n_heads,), "add", "attn.sinks", layers
            )
        yield from linear(f"{ATTENTION}.o_proj", d, c.n_heads * d_v, "attn.o", layers)

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{MLP}.gate", c.n_experts, d, "router", layers)
        yield from correction_bias(f"{MLP}.gate.e_score_correction_bias", c.n_experts, layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", d, c.d_ff_expert, layers)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(c, attend, split(lambda i: kinds[i] != "sparse", gated(c), moe), sliding)


@family("laguna")
def laguna(c: Config) -> Parts:
    """Laguna: query heads by layer, a gate on attention's output, one shared expert."""
    kinds = sparse_layers(c, ["dense"] + ["sparse"] * (c.layers - 1))
    heads = c.kinds("num_attention_heads_per_layer") or [int(c.n_heads)] * c.layers
    sliding, bias = c.sliding(lambda i: False), c.flag("attention_bias")
    per_head = c.get("gating") is True or c.get("gating") == "per-head"

    def attend(layers: Layers, window: Dim | None) -> Parts:
        for n, group in layers.by("heads", lambda i: heads[i]):
            n_heads = Dim(n, "n_heads" if n == c.n_heads else f"n_heads_{n}")
            yield from linear(
                f"{ATTENTION}.q_proj", n_heads * c.head_dim, c.d_model, "attn.q", group, bias
            )
            for name in ("k", "v"):
                yield from linear(
                    f"{ATTENTION}.{name}_proj",
                    c.n_kv_heads * c.head_dim,
                    c.d_model,
                    f"attn.{name}",
                    group,
                    bias,
                )
            yield from qk_norm(ATTENTION, c, group)
            yield attention(group, n_heads, c.n_kv_heads, c.head_dim, c.head_dim, window)
            gate = n_heads if per_head else n_heads * c.head_dim
            yield from linear(f"{ATTENTION}.g_proj", gate, c.d_model, "attn.gate", group)
            yield from linear(
                f"{ATTENTION}.o_proj", c.d_model, n_heads * c.head_dim, "attn.o", group, bias
            )

    def moe(layers: Layers) -> Parts:
        yield from routed(c, layers, c.d_ff_expert)
        yield tensor(
            f"{MLP}.experts.e_score_correction_bias", (c.n_experts,), "add", "router", layers
        )
        yield from swiglu(
            f"{MLP}.shared_expert", c.d_model, c.size("shared_expert_intermediate_size"), layers
        )

    yield from pre_norm(c, attend, split(lambda i: kinds[i] != "sparse", gated(c), moe), sliding)


@family("afmoe")
def afmoe(c: Config) -> Parts:
    """Trinity: sandwich norms, gated attention, a correction of the router that is a parameter."""
    layers, d, bias = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias")
    every = c.size("global_attn_every_n_layers", 4)
    dense = c.size("num_dense_layers", 0, least=0)

    def attend(group: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, group, window, bias)
        yield from linear(f"{ATTENTION}.gate_proj", c.n_heads * c.head_dim, d, "attn.gate", group)

    def moe(group: Layers) -> Parts:
        yield from routed(c, group, c.d_ff_expert, router="router.gate")
        yield tensor(f"{MLP}.expert_bias", (c.n_experts,), "add", "router", group)
        if c.n_shared_experts:
            yield from swiglu(f"{MLP}.shared_experts", d, c.d_ff_expert * c.n_shared_experts, group)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, c.sliding(lambda i: (i + 1) % every), attend)
    for name in ("post_attention_layernorm", "pre_mlp_layernorm"):
        yield from norm(f"{BLOCK}.{name}", d, layers)
    yield from split(lambda i: i < dense, gated(c), moe)(layers)
    yield from norm(f"{BLOCK}.post_mlp_layernorm", d, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("flint")
def flint(c: Config) -> Parts:
    """Flint: a learned offset per head in the softmax, one shared expert, Qwen's rule for dense
    layers.
    """
    bias, last = c.flag("attention_bias"), c.layers - 1
    listed = c.get("mlp_only_layers")
    dense = [0, 1] if listed is None else listed
    step = c.size("decoder_sparse_step", 1)

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.softmax_offset", (c.n_heads,), "add", "attn.sinks", layers)

    def moe(layers: Layers) -> Parts:
        yield from routed(c, layers, c.d_ff_expert)
        yield from swiglu(
            f"{MLP}.shared_expert", c.d_model, c.size("shared_expert_intermediate_size"), layers
        )

    yield from pre_norm(
        c,
        attend,
        split(lambda i: i in dense or (i + 1) % step != 0, gated(c), moe),
        c.sliding(lambda i: not (i < 2 or i % 4 == 1 or i == last)),
    )


@family("beam")
def beam(c: Config) -> Parts:
    """Beam: sandwich norms, attention with a gate per head, experts after three dense layers."""
    layers, d, bias, last = (
        Layers.all(c.n_layers),
        c.d_model,
        c.flag("attention_bias"),
        c.layers - 1,
    )
    kinds = sparse_layers(c, ["dense" if i < 3 else "sparse" for i in range(c.layers)])

    def attend(group: Layers, window: Dim | None) -> Parts:
        yield from gqa_normed(ATTENTION, c, group, window, bias)
        yield from linear(f"{ATTENTION}.gate_proj", c.n_heads * c.head_dim, d, "attn.gate", group)
        yield tensor(f"{ATTENTION}.gate_bias", (c.n_heads,), "add", "attn.gate", group)

    def moe(group: Layers) -> Parts:
        yield from routed(c, group, c.d_ff_expert)
        yield from correction_bias(f"{MLP}.gate.e_score_correction_bias", c.n_experts, group)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, c.sliding(lambda i: (i + 1) % 6 and i != last), attend)
    for name in ("post_attention_layernorm", "pre_feedforward_layernorm"):
        yield from norm(f"{BLOCK}.{name}", d, layers)
    yield from split(lambda i: kinds[i] != "sparse", gated(c), moe)(layers)
    yield from norm(f"{BLOCK}.post_feedforward_layernorm", d, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("cohere2_moe")
def cohere2_moe(c: Config) -> Parts:
    """Command A with experts: parallel residual, a prefix of dense layers with its own window
    pattern.
    """
    layers, d, bias = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias")
    prefix = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < prefix else "sparse" for i in range(c.layers)])
    every, first = (
        c.size("sliding_window_pattern", 4),
        c.size("prefix_dense_sliding_window_pattern", 1),
    )
    sliding = c.sliding(lambda i: (i + 1) % first if i < prefix else (i - prefix + 1) % every)
    dense_width = c.optional("prefix_dense_intermediate_size") or c.d_ff

    def moe(group: Layers) -> Parts:
        yield from routed(c, group, c.d_ff)
        if c.n_shared_experts:
            yield from swiglu(f"{MLP}.shared_experts", d, c.d_ff * c.n_shared_experts, group)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, sliding, lambda ls, window: gqa(ATTENTION, c, ls, window, bias))
    yield from split(
        lambda i: kinds[i] != "sparse", lambda ls: swiglu(MLP, d, dense_width, ls), moe
    )(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))
