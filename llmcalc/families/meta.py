"""Meta: Llama 3.2 with pictures, Llama 4, OPT."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts, under
from llmcalc.blocks import (
    attention,
    embed,
    gqa,
    linear,
    lm_head,
    mlp,
    norm,
    qk_norm,
    stacked,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.llama import llama
from llmcalc.families.parts.frame import BLOCK, gated, pre_norm, split
from llmcalc.families.parts.towers import llama4_vision, mllama_vision
from llmcalc.families.parts.wrapper import text_of


@family("mllama")
def mllama(c: Config) -> Parts:
    """Llama 3.2 Vision: cross-attention layers between the language model's own.

    Eight more rows in the embedding.
    """
    text, vision = (
        text_of(c, "mllama_text_model", False),
        inner(c, "vision_config", "mllama_vision_model"),
    )
    crossing = text.get("cross_attention_layers") or []
    yield from mllama_vision(vision, "vision_model")
    yield from under("language_model.", mllama_text(text, frozenset(crossing)))
    yield from linear(
        "multi_modal_projector",
        text.d_model,
        vision.size("vision_output_dim"),
        "projector",
        bias=True,
    )


def mllama_text(c: Config, crossing: frozenset[int]) -> Parts:
    """The language model, its cross-attention layers gated."""
    d, layers, d_h = c.d_model, Layers.all(c.n_layers), c.split_head_dim
    own, other = (
        layers.where("n_self_layers", lambda i: i not in crossing),
        layers.where("n_cross_layers", lambda i: i in crossing),
    )
    p, kv = f"{BLOCK}.cross_attn", c.n_kv_heads * d_h
    yield from embed("model.embed_tokens", c.vocab + 8, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from gqa(f"{BLOCK}.self_attn", c, own)
    for name, out in (("q", c.n_heads * d_h), ("k", kv), ("v", kv)):
        yield from linear(f"{p}.{name}_proj", out, d, f"cross.{name}", other)
    yield from qk_norm(p, c, other)
    yield replace(
        attention(other, c.n_heads, c.n_kv_heads, d_h, d_h), kind="cross", max_source=Dim(0)
    )
    yield from linear(f"{p}.o_proj", d, c.n_heads * d_h, "cross.o", other)
    for name in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):
        yield tensor(f"{BLOCK}.{name}", (1,), "scale", "cross.gate", other)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from gated(c)(layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d)


@family("llama4")
def llama4(c: Config) -> Parts:
    """Llama 4: its tower, one matrix, the language model."""
    vision, text = (
        inner(c, "vision_config", "llama4_vision_model"),
        inner(c, "text_config", "llama4_text"),
    )
    yield from llama4_vision(vision, "vision_model")
    yield from linear(
        "multi_modal_projector.linear_1",
        text.d_model,
        vision.size("vision_output_dim"),
        "projector",
    )
    yield from under("language_model.", llama4_text(text))


@family("llama4_text")
def llama4_text(c: Config) -> Parts:
    """Llama 4's language model: chunked attention where positions rotate, stacked experts at a
    step.
    """
    step, chunk = c.size("interleave_moe_layer_step", 1), c.optional("attention_chunk_size")
    given = c.get("moe_layers")
    moe_layers = range(int(step) - 1, c.layers, int(step)) if given is None else given
    every = c.get("no_rope_layer_interval", 4)
    rotates = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(c.layers)]
    bias, p, d = c.flag("attention_bias"), f"{BLOCK}.feed_forward", c.d_model
    c = Config(
        {**c.raw, "sliding_window": chunk and int(chunk)}, defaults=c.defaults, nested=c.is_nested
    )
    sliding = c.sliding(lambda i: rotates[i] and chunk)

    def attend(layers: Layers, window: Dim | None) -> Parts:
        for part in gqa(f"{BLOCK}.self_attn", c, layers, window, bias):
            if isinstance(part, Mixer) and window is not None:
                part = replace(part, chunked=True, window=Dim(window, "attention_chunk_size"))
            yield part

    def moe(layers: Layers) -> Parts:
        n, k = c.n_experts, c.n_active_experts
        yield from linear(f"{p}.router", n, d, "router", layers)
        up = tensor(
            f"{p}.experts.gate_up_proj",
            (d, 2 * c.d_ff),
            "matmul",
            "mlp.gate_up",
            layers,
            transposed=True,
        )
        down = tensor(
            f"{p}.experts.down_proj", (c.d_ff, d), "matmul", "mlp.down", layers, transposed=True
        )
        yield from stacked(iter((up, down)), n, k)
        yield from swiglu(f"{p}.shared_expert", d, c.d_ff, layers)

    dense_width = c.size("intermediate_size_mlp")
    yield from pre_norm(
        c,
        attend,
        split(lambda i: i not in moe_layers, lambda ls: swiglu(p, d, dense_width, ls), moe),
        sliding,
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


family("cwm", where=__name__)(llama)
