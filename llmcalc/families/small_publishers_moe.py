"""Decoders with experts of publishers with one structure each."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts, State
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
    mix,
    mla,
    norm,
    qk_norm,
    stacked,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.delta import delta_state
from llmcalc.families.parts.frame import (
    ATTENTION,
    BLOCK,
    MLP,
    dense_first,
    gated,
    pre_norm,
    routed,
    routed_with_shared,
    split,
)
from llmcalc.families.parts.hybrid import two_kinds
from llmcalc.families.parts.latent import sparse_layers


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
        yield from delta_state(linear_layers, 3 * q, width, heads, d_h, d_h, always=True)
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


@family("jetmoe")
def jetmoe(c: Config) -> Parts:
    """JetMoE (arXiv 2404.07413): experts in attention as well as in the MLP."""
    d, layers, n, k = c.d_model, Layers.all(c.n_layers), c.n_experts, c.n_active_experts
    kv, d_h = (
        c.size("n_kv_heads", None, "num_key_value_heads"),
        c.size("head_dim", None, "kv_channels", "head_dim"),
    )
    q, p, m = d_h * kv, f"{BLOCK}.self_attention", f"{BLOCK}.mlp"
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from linear(f"{p}.experts.router.layer", n, d, "router", layers)
    yield from stacked(linear(f"{p}.experts.input_linear", q, d, "attn.q", layers), n, k)
    yield from linear(f"{p}.kv_proj", 2 * q, d, "attn.kv", layers)
    yield attention(layers, kv * k, kv, d_h, d_h)
    yield from stacked(linear(f"{p}.experts.output_linear", d, q, "attn.o", layers), n, k)
    yield tensor(f"{p}.experts.bias", (d,), "add", "attn.o", layers)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from linear(f"{m}.router.layer", n, d, "router", layers)
    yield from stacked(linear(f"{m}.input_linear", 2 * c.d_ff, d, "mlp.gate_up", layers), n, k)
    yield from stacked(linear(f"{m}.output_linear", d, c.d_ff, "mlp.down", layers), n, k)
    yield tensor(f"{m}.bias", (d,), "add", "mlp.down", layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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
