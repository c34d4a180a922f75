"""Dense decoders of publishers with one structure each, by the publisher's name."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    attention,
    by_window,
    correction_bias,
    embed,
    gqa,
    gqa_normed,
    linear,
    lm_head,
    mix,
    mlp,
    norm,
    qkv,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family, inner, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.checks import refuse
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, gated, pre_norm, routed, split
from llmcalc.families.parts.towers import named, two_matrices, vision_tower
from llmcalc.families.parts.wrapper import language, n_features, text_of


@family("seed_oss")
def seed_oss(c: Config) -> Parts:
    """Seed-OSS: biases on q, k and v; that of o has its own flag."""
    bias, o_bias = c.flag("attention_bias"), c.flag("attention_out_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias, o_bias),
        gated(c, c.flag("mlp_bias")),
    )


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


@family("llava")
def llava(c: Config) -> Parts:
    """LLaVA 1.5 (arXiv 2310.03744): CLIP, two matrices, any language model."""
    inside = inner(c, "text_config", "llama")
    text, vision = (
        text_of(c, "llama", c.tied or bool(inside.raw.get("tie_word_embeddings"))),
        inner(c, "vision_config", "clip_vision_model"),
    )
    bias = c.flag("multimodal_projector_bias")
    yield from vision_tower(vision, "vision_tower")
    yield from two_matrices(
        "multi_modal_projector", text.d_model, n_features(c) * named(vision, "hidden_size"), bias
    )
    yield from language(text)


@family("apertus", "apertus1p5_text")
def apertus(c: Config) -> Parts:
    """Apertus: xIELU with two learned slopes, norms on queries and keys."""
    layers, d, bias = Layers.all(c.n_layers), c.d_model, c.flag("attention_bias")
    rows = c.optional("output_vocab_size") if c.family == "apertus1p5_text" and not c.tied else None
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.attention_layernorm", d, layers)
    yield from by_window(
        c, layers, c.sliding(), lambda ls, window: gqa_normed(ATTENTION, c, ls, window, bias)
    )
    yield from norm(f"{BLOCK}.feedforward_layernorm", d, layers)
    yield from mlp(f"{MLP}.", d, c.d_ff, layers, ("up_proj", "down_proj"), False)
    if c.get("hidden_act") == "xielu":
        for name in ("alpha_p", "alpha_n"):
            yield tensor(f"{MLP}.act_fn.{name}", (1,), "scale", "mlp.act", layers)
        for name in ("beta", "eps"):
            yield tensor(f"{MLP}.act_fn.{name}", (), "scale", "mlp.act", layers, buffer=True)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", rows or c.vocab, d, tie(c))


@family("kolibri1")
def kolibri(c: Config) -> Parts:
    """Kolibri 1: sandwich norms, windows in four of five layers, experts beside a shared one."""
    layers, d = Layers.all(c.n_layers), c.d_model
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    sliding = c.sliding(lambda i: (i + 1) % 5)
    yield from by_window(
        c, layers, sliding, lambda ls, window: gqa_normed(ATTENTION, c, ls, window)
    )
    yield from norm(f"{BLOCK}.post_attn_norm", d, layers)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from routed(c, layers, c.d_ff_expert)
    yield from correction_bias(f"{BLOCK}.moe.router.expert_bias", c.n_experts, layers)
    yield from swiglu(f"{MLP}.shared_experts", d, c.size("shared_expert_intermediate_size"), layers)
    yield from norm(f"{BLOCK}.post_ffn_norm", d, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("hrm_text")
def hrm_text(c: Config) -> Parts:
    """HRM: two stacks that run in cycles; norms without weights; every cycle keeps its
    own cache.
    """
    stacks = c.optional("num_layers_per_stack") or c.n_layers
    d, layers, a = c.d_model, Layers.all(stacks, "n_layers_per_stack"), c.n_heads * c.head_dim
    bias, cycles = c.flag("attention_bias"), c.size("H_cycles") * (c.size("L_cycles") + 1)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield tensor("model.z_L_init", (d,), "add", "state")
    for stack in ("L_module", "H_module"):
        p = f"model.{stack}.layers.{{layer}}"
        yield from linear(f"{p}.attn.gqkv_proj", 4 * a, d, "attn.qkv", layers, bias)
        yield from linear(f"{p}.attn.o_proj", d, a, "attn.o", layers, bias)
        yield from linear(
            f"{p}.mlp.gate_up_proj", 2 * c.d_ff, d, "mlp.gate_up", layers, c.flag("mlp_bias")
        )
        yield from linear(f"{p}.mlp.down_proj", d, c.d_ff, "mlp.down", layers, c.flag("mlp_bias"))
    slots = Layers.all(int(stacks) * int(cycles), "n_slots")
    yield attention(slots, c.n_heads, c.n_heads, c.head_dim, c.head_dim)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("mellum")
def mellum(c: Config) -> Parts:
    """Mellum 2: Qwen3's blocks, experts where ``mlp_layer_types`` says so."""
    kinds = c.kinds("mlp_layer_types") or ["sparse"] * c.layers
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window, bias),
        split(
            lambda i: kinds[i] != "sparse",
            gated(c),
            lambda layers: routed(c, layers, c.d_ff_expert),
        ),
        c.sliding(lambda i: False),
    )


@family("baichuan")
def baichuan(c: Config) -> Parts:
    """Baichuan 1 and 2 (arXiv 2309.10305): q, k and v in one matrix."""

    def attend(layers: Layers, _: Dim | None) -> Parts:
        yield from linear(f"{ATTENTION}.W_pack", 3 * c.d_model, c.d_model, "attn.qkv", layers)
        yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
        yield from linear(f"{ATTENTION}.o_proj", c.d_model, c.d_model, "attn.o", layers)

    yield from pre_norm(c, attend, gated(c), frozenset())


@family("xverse")
def xverse(c: Config) -> Parts:
    """XVERSE: Llama's structure."""
    refuse(c, "num_experts", "experts")
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c))


@family("orion")
def orion(c: Config) -> Parts:
    """Orion 14B: Llama with LayerNorm."""
    refuse(c, "num_experts", "experts")
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c), bias=True
    )


@family("openelm")
def openelm(c: Config) -> Parts:
    """OpenELM (arXiv 2404.14619): heads and inner widths that grow from layer to layer."""
    d, d_h, layers, block = (
        c.d_model,
        c.head_dim,
        Layers.all(c.n_layers),
        "transformer.layers.{layer}",
    )
    q, kv, factors = (c.kinds(k) for k in ("num_query_heads", "num_kv_heads", "ffn_multipliers"))
    if q is None or kv is None or factors is None:
        raise ConfigError(
            "openelm: the config lacks num_query_heads, num_kv_heads or ffn_multipliers, one per"
            " layer"
        )
    unit, gates = int(c.size("ffn_dim_divisor", 256)), 2 if c.flag("ffn_with_glu", True) else 1
    yield from embed("transformer.token_embeddings", c.vocab, d)
    yield from norm(f"{block}.attn_norm", d, layers)
    for (n, n_kv), group in layers.by("heads", lambda i: (q[i], kv[i])):
        heads, kv_heads = Dim(n, f"n_heads_{n}"), Dim(n_kv, f"n_kv_heads_{n_kv}")
        yield from linear(
            f"{block}.attn.qkv_proj", (heads + 2 * kv_heads) * d_h, d, "attn.qkv", group
        )
        yield attention(group, heads, kv_heads, d_h, d_h)
        yield from linear(f"{block}.attn.out_proj", d, heads * d_h, "attn.o", group)
    if c.flag("normalize_qk_projections", True):
        for name in "qk":
            yield from norm(f"{block}.attn.{name}_norm", d_h, layers, role=f"attn.{name}_norm")
    yield from norm(f"{block}.ffn_norm", d, layers)
    for width, group in layers.by("width", lambda i: divisible(factors[i] * int(d), unit)):
        d_ff = Dim(width, f"d_ff_{width}")
        yield from linear(f"{block}.ffn.proj_1", gates * d_ff, d, "mlp.gate_up", group)
        yield from linear(f"{block}.ffn.proj_2", d, d_ff, "mlp.down", group)
    yield from norm("transformer.norm", d)
    shared = c.flag("share_input_output_layers", True)
    yield from lm_head(
        "transformer.classifier",
        c.vocab,
        d,
        "transformer.token_embeddings.weight" if shared else None,
    )


def divisible(value: float, unit: int) -> int:
    """The multiple of ``unit`` nearest to a value, never more than a tenth below it (MobileNet's
    rule).
    """
    nearest = max(unit, int(value + unit / 2) // unit * unit)
    return nearest + unit if nearest < 0.9 * value else nearest


runs("seed_oss")(llama_runs)
