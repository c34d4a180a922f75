"""Decoders that fit no other file:

OPT, GPT-1, CTRL, XLNet, CPM-Ant, EXAONE, Apertus, BitNet, JetMoE and more.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts, rename
from llmcalc.blocks import (
    attention,
    by_window,
    conv1d_gpt2,
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
    stacked,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.bart import cross, feed_forward, self_attention
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, gated, post_norm, pre_norm, routed
from llmcalc.families.llama import llama


@family("arcee")
def arcee(c: Config) -> Parts:
    """AFM: Llama with a squared-ReLU MLP of two matrices."""
    bias, mlp_bias = c.flag("attention_bias"), c.flag("mlp_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        lambda layers: mlp(
            f"{MLP}.", c.d_model, c.d_ff, layers, ("up_proj", "down_proj"), mlp_bias
        ),
    )


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


@family("bitnet")
def bitnet(c: Config) -> Parts:
    """BitNet b1.58 (arXiv 2504.12285): a further norm before each output matrix."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, bias)
        yield mix(c, layers, window)
        yield from norm(f"{ATTENTION}.attn_sub_norm", c.d_model, layers)
        yield from linear(
            f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
        )

    def ff(layers: Layers) -> Parts:
        yield from gated(c)(layers)
        yield from norm(f"{MLP}.ffn_sub_norm", c.d_ff, layers)

    yield from pre_norm(c, attend, ff)


@family("exaone")
def exaone(c: Config) -> Parts:
    """EXAONE 3: Llama under GPT-2's names."""
    parts = rename(
        llama(c),
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers.", "transformer.h."),
        ("model.norm", "transformer.ln_f"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"),
        ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
    )
    yield from parts


@family("exaone4", "exaone4_5_text")
def exaone4(c: Config) -> Parts:
    """EXAONE 4 (arXiv 2507.11407): norms after, and on queries and keys.

    Windows in three of four layers.
    """
    every = c.get("sliding_window_pattern")
    if c.get("layer_types") is None and isinstance(every, str):
        pattern = every
        sliding = c.sliding(lambda i: pattern[i % len(pattern)] == "L")
    else:
        sliding = c.sliding(lambda i: c.optional("window") and every and (i + 1) % every)
    yield from post_norm(
        c, lambda layers, window: gqa_normed(ATTENTION, c, layers, window), gated(c), sliding
    )


@family("opt")
def opt(c: Config) -> Parts:
    """OPT (arXiv 2205.01068): learned positions with two rows more.

    The 350M model projects in and out.
    """
    d, layers, p = c.d_model, Layers.all(c.n_layers), "model.decoder"
    w = c.optional("word_embed_proj_dim") or d
    block, bias, affine = (
        f"{p}.layers.{{layer}}",
        c.flag("enable_bias"),
        c.flag("layer_norm_elementwise_affine"),
    )
    d_ff = c.size("d_ff", None, "ffn_dim")
    yield from embed(f"{p}.embed_tokens", c.vocab, w)
    yield from embed(f"{p}.embed_positions", c.max_context + 2, d, "embed.position")
    if w != d:
        yield from linear(f"{p}.project_in", d, w, "embed.join")
    for name, role in (("k_proj", "k"), ("v_proj", "v"), ("q_proj", "q")):
        yield from linear(f"{block}.self_attn.{name}", d, d, f"attn.{role}", layers, bias)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.self_attn.out_proj", d, d, "attn.o", layers, bias)
    if affine:
        yield from norm(f"{block}.self_attn_layer_norm", d, layers, True)
    yield from mlp(f"{block}.", d, d_ff, layers, ("fc1", "fc2"), bias)
    if affine:
        yield from norm(f"{block}.final_layer_norm", d, layers, True)
    if affine and c.flag("do_layer_norm_before") and not c.flag("_remove_final_layer_norm"):
        yield from norm(f"{p}.final_layer_norm", d, bias=True)
    if w != d:
        yield from linear(f"{p}.project_out", w, d, "head.join")
    yield from lm_head("lm_head", c.vocab, w, tie(c, f"{p}.embed_tokens.weight"))


@family("biogpt")
def biogpt(c: Config) -> Parts:
    """BioGPT: OPT's layers with another head."""
    d, layers, p = c.d_model, Layers.all(c.n_layers), "biogpt"
    block = f"{p}.layers.{{layer}}"
    yield from embed(f"{p}.embed_tokens", c.vocab, d)
    yield from embed(f"{p}.embed_positions", c.max_context + 2, d, "embed.position")
    yield from self_attention(f"{block}.self_attn", d, layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, True)
    yield from feed_forward(block, d, c.d_ff, layers)
    yield from norm(f"{p}.layer_norm", d, bias=True)
    yield from lm_head("output_projection", c.vocab, d, tie(c, f"{p}.embed_tokens.weight"))


@family("xglm")
def xglm(c: Config) -> Parts:
    """XGLM (arXiv 2112.10668): computed positions."""
    d = c.size("d_model", None, "hidden_size", "d_model")
    layers, block = Layers.all(c.n_layers), "model.layers.{layer}"
    heads = c.size("n_heads", None, "num_attention_heads", "attention_heads")
    d_h, d_ff = Dim(int(d) // int(heads), "head_dim"), c.size("d_ff", None, "ffn_dim")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from self_attention(f"{block}.self_attn", d, layers)
    yield attention(layers, heads, heads, d_h, d_h)
    if c.flag("add_cross_attention"):
        yield from self_attention(f"{block}.encoder_attn", d, layers, role="cross")
        yield cross(layers, heads, d_h)
        yield from norm(f"{block}.encoder_attn_layer_norm", d, layers, True)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, True)
    yield from feed_forward(block, d, d_ff, layers)
    yield from norm("model.layer_norm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("openai-gpt")
def gpt1(c: Config) -> Parts:
    """GPT-1: norms after, no norm at the end, no cache in the reference."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.tokens_embed", c.vocab, d)
    yield from embed("transformer.positions_embed", c.max_context, d, "embed.position")
    yield from conv1d_gpt2(f"{block}.attn.c_attn", d, 3 * d, "attn.qkv", layers)
    yield replace(
        attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim), kind="none"
    )
    yield from conv1d_gpt2(f"{block}.attn.c_proj", d, d, "attn.o", layers)
    yield from norm(f"{block}.ln_1", d, layers, True)
    yield from conv1d_gpt2(f"{block}.mlp.c_fc", d, 4 * d, "mlp.up", layers)
    yield from conv1d_gpt2(f"{block}.mlp.c_proj", 4 * d, d, "mlp.down", layers)
    yield from norm(f"{block}.ln_2", d, layers, True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.tokens_embed.weight"))


@family("ctrl")
def ctrl(c: Config) -> Parts:
    """CTRL (arXiv 1909.05858): computed positions, a bias on the head."""
    d, layers, block, d_ff = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.h.{layer}",
        c.size("d_ff", None, "dff"),
    )
    yield from embed("transformer.w", c.vocab, d)
    for name, role in (("Wq", "q"), ("Wk", "k"), ("Wv", "v")):
        yield from linear(
            f"{block}.multi_head_attention.{name}", d, d, f"attn.{role}", layers, True
        )
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.multi_head_attention.dense", d, d, "attn.o", layers, True)
    yield from mlp(f"{block}.ffn.", d, d_ff, layers, ("0", "2"))
    for name in ("layernorm1", "layernorm2"):
        yield from norm(f"{block}.{name}", d, layers, True)
    yield from norm("transformer.layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.w.weight"), bias=True)


@family("cpmant")
def cpmant(c: Config) -> Parts:
    """CPM-Ant: soft prompts before the text, which stay in the cache; a head that is never tied."""
    d, layers, heads, d_h = (
        c.d_model,
        Layers.all(c.n_layers),
        c.n_heads,
        c.size("head_dim", None, "dim_head"),
    )
    block, a, d_ff = "cpmant.encoder.layers.{layer}", heads * d_h, c.size("d_ff", None, "dim_ff")
    p = f"{block}.self_att.self_attention"
    yield from embed("cpmant.segment_embedding", c.segment_types, d, "embed.type")
    yield from embed("cpmant.input_embedding", c.vocab + c.prompt_types * c.prompt_length, d)
    rows = c.segment_types * c.segment_types + c.position_bias_num_buckets
    yield tensor(
        "cpmant.position_bias.relative_attention_bias", (rows, heads), "lookup", "embed.position"
    )
    yield from norm(f"{block}.self_att.layernorm_before_attention", d, layers)
    for name in "qkv":
        yield from linear(f"{p}.project_{name}", a, d, f"attn.{name}", layers)
    yield replace(attention(layers, heads, heads, d_h, d_h), extra_tokens=c.prompt_length)
    yield from linear(f"{p}.attention_out", d, a, "attn.o", layers)
    yield from norm(f"{block}.ffn.layernorm_before_ffn", d, layers)
    for name, role in (("w_0", "mlp.gate"), ("w_1", "mlp.up")):
        yield from linear(f"{block}.ffn.ffn.w_in.{name}", d_ff, d, role, layers)
    yield from linear(f"{block}.ffn.ffn.w_out", d, d_ff, "mlp.down", layers)
    yield from norm("cpmant.encoder.output_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d)


@family("xlnet")
def xlnet(c: Config) -> Parts:
    """XLNet (arXiv 1906.08237): keeps one hidden state per token, of which it makes keys and values
    anew.
    """
    d, layers, block, d_ff = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.layer.{layer}",
        c.size("d_ff", None, "d_inner"),
    )
    heads, d_h = c.n_heads, c.split_head_dim
    p = f"{block}.rel_attn"
    yield tensor("transformer.mask_emb", (1, 1, d), "lookup", "embed.type")
    yield from embed("transformer.word_embedding", c.vocab, d)
    for name in ("q", "k", "v", "o", "r"):
        yield tensor(f"{p}.{name}", (d, heads, d_h), "matmul", f"attn.{name}", layers)
    for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
        yield tensor(f"{p}.{name}", (heads, d_h), "add", "attn.bias", layers)
    yield tensor(f"{p}.seg_embed", (2, heads, d_h), "lookup", "embed.type", layers)
    kept = c.optional("mem_len")
    hidden = Mixer("kv", layers, heads, heads, d_h, d_h, keys=d, max_source=kept)
    yield hidden if c.flag("use_mems_eval", True) else replace(hidden, kind="none")
    yield from norm(f"{p}.layer_norm", d, layers, True)
    yield from norm(f"{block}.ff.layer_norm", d, layers, True)
    yield from mlp(f"{block}.ff.", d, d_ff, layers, ("layer_1", "layer_2"))
    yield from lm_head(
        "lm_loss", c.vocab, d, tie(c, "transformer.word_embedding.weight"), bias=True
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
