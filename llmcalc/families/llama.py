"""Llama and the dense models that follow it: RMSNorm, grouped-query attention, gated MLP."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    by_window,
    embed,
    fused_swiglu,
    gqa,
    linear,
    lm_head,
    mix,
    mlp,
    norm,
    qk_norm,
    qkv,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, gated, pre_norm


@family("llama", "internlm3", "iquestcoder", "cwm", "granite")
def llama(c: Config) -> Parts:
    """Llama 1 to 3.3 (arXiv 2302.13971, 2407.21783) and the models that share its class."""
    bias = c.flag("qkv_bias", c.flag("attention_bias"))
    feed_forward = gated(c, c.flag("bias", c.flag("mlp_bias")))
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward
    )


@family("mistral", "ministral3", "ministral")
def mistral(c: Config) -> Parts:
    """Mistral (arXiv 2310.06825): no biases; every layer slides where a window is set."""
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c))


@family("seed_oss")
def seed_oss(c: Config) -> Parts:
    """Seed-OSS: biases on q, k and v; that of o has its own flag."""
    bias, o_bias = c.flag("attention_bias"), c.flag("attention_out_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias, o_bias),
        gated(c, c.flag("mlp_bias")),
    )


@family("smollm3")
def smollm3(c: Config) -> Parts:
    """SmolLM3: every fourth layer without rotary positions, which is where a window goes if one is
    used.
    """
    every = c.size("no_rope_layer_interval", 4)
    no_rope = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(c.layers)]
    slides = c.flag("use_sliding_window") and c.optional("window")
    sliding = c.sliding(lambda i: slides and not no_rope[i])
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        gated(c, c.flag("mlp_bias")),
        sliding,
    )


@family("granite_swa")
def granite_swa(c: Config) -> Parts:
    """Granite with windows and a learned sink per head in every layer."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    yield from pre_norm(c, attend, gated(c, c.flag("mlp_bias")), c.sliding(lambda i: i % 4 != 0))


@family("helium")
def helium(c: Config) -> Parts:
    """Helium: the output projection is square and never has a bias."""

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, c.flag("attention_bias"))
        yield mix(c, layers, window)
        yield from linear(f"{ATTENTION}.o_proj", c.d_model, c.d_model, "attn.o", layers)

    yield from pre_norm(c, attend, gated(c, c.flag("mlp_bias")))


@family("hyperclovax")
def hyperclovax(c: Config) -> Parts:
    """HyperCLOVA X: Granite with further norms after attention and MLP, unless switched off."""
    post = c.flag("use_post_norm")
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        if post:
            yield from norm(f"{BLOCK}.post_norm1", c.d_model, layers)

    def feed_forward(layers: Layers) -> Parts:
        yield from gated(c, c.flag("mlp_bias"))(layers)
        if post:
            yield from norm(f"{BLOCK}.post_norm2", c.d_model, layers)

    yield from pre_norm(c, attend, feed_forward)


@family("hunyuan_v1_dense")
def hunyuan(c: Config) -> Parts:
    """Hunyuan dense: norms on queries and keys, after the rotation."""
    yield from pre_norm(c, lambda layers, window: hunyuan_attention(c, layers, window), gated(c))


def hunyuan_attention(c: Config, layers: Layers, window: Dim | None) -> Parts:
    """Grouped-query attention with Hunyuan's names for the norms on queries and keys."""
    bias = c.flag("attention_bias")
    yield from qkv(ATTENTION, c, layers, bias)
    yield from qk_norm(ATTENTION, c, layers, names=("query_layernorm", "key_layernorm"))
    yield mix(c, layers, window)
    yield from linear(
        f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
    )


@family("nemotron")
def nemotron(c: Config) -> Parts:
    """Nemotron 3 and 4: LayerNorm, squared ReLU, two matrices (arXiv 2402.16819)."""
    bias = c.flag("attention_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from mlp(
            f"{MLP}.", c.d_model, c.d_ff, layers, ("up_proj", "down_proj"), c.flag("mlp_bias")
        )

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )


@family("starcoder2")
def starcoder2(c: Config) -> Parts:
    """StarCoder2 (arXiv 2402.19173): LayerNorm and biases around grouped-query attention."""
    bias = c.flag("use_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from mlp(f"{MLP}.", c.d_model, c.d_ff, layers, ("c_fc", "c_proj"), bias)

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )


@family("stablelm")
def stablelm(c: Config) -> Parts:
    """StableLM 2: LayerNorm, optional norms per head, optional parallel residual with one norm."""
    layers, d, d_h = Layers.all(c.n_layers), c.d_model, c.split_head_dim
    kv = c.n_kv_heads * d_h
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers, bias=True)
    for name, width, role in (("q", d, "attn.q"), ("k", kv, "attn.k"), ("v", kv, "attn.v")):
        yield from linear(
            f"{ATTENTION}.{name}_proj", width, d, role, layers, c.flag("use_qkv_bias")
        )
    if c.flag("qk_layernorm"):
        for name, heads in (("q", c.n_heads), ("k", c.n_kv_heads)):
            p = f"{ATTENTION}.{name}_layernorm.norms.{{expert}}.weight"
            yield tensor(
                p, (d_h,), "scale", f"attn.{name}_norm", layers, experts=heads, active=heads
            )
    yield from by_window(c, layers, c.sliding(), lambda ls, w: iter((mix(c, ls, w),)))
    yield from linear(f"{ATTENTION}.o_proj", d, d, "attn.o", layers)
    if not c.flag("use_parallel_residual"):
        yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers, bias=True)
    yield from gated(c)(layers)
    yield from norm("model.norm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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
