"""BART and the encoder-decoders of its frame: mBART, Marian, Pegasus, ProphetNet, TrOCR."""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, linear, norm, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.encoder_decoder import (
    cross,
    decoder_stack,
    encoder_stack,
    feed_forward,
    is_causal,
    self_attention,
    table,
    width,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What differs between BART and its kin around the same layers."""

    position_rows: int | None
    """Rows added to the position table; None where positions are computed."""
    norm_first: bool
    norm_last: bool
    logits_bias: bool


FRAMES = {
    "bart": Frame(2, True, False, True),
    "mvp": Frame(2, True, False, True),
    "plbart": Frame(2, True, False, True),
    "mbart": Frame(2, True, True, True),
    "pegasus": Frame(0, False, True, True),
    "blenderbot-small": Frame(0, True, False, True),
    "m2m_100": Frame(None, False, True, False),
}


@family(*FRAMES)
def bart(c: Config) -> Parts:
    """BART (arXiv 1910.13461), mBART, Pegasus, M2M-100, MVP, PLBART, Blenderbot small."""
    frame, d = FRAMES[c.family], width(c)
    to = "model.shared.weight" if c.tied else None
    only_decoder = is_causal(c)
    if not only_decoder:
        yield from embed("model.shared", c.vocab, d)
    for side in ("decoder",) if only_decoder else ("encoder", "decoder"):
        p = f"model.{side}"
        yield from table(f"{p}.embed_tokens", c, d, None if only_decoder else to)
        if frame.position_rows is not None:
            rows = c.max_context + frame.position_rows if frame.position_rows else c.max_context
            yield from embed(f"{p}.embed_positions", rows, d, "embed.position")
        if frame.norm_first:
            yield from norm(f"{p}.layernorm_embedding", d, bias=True)
        yield from encoder_stack(p, c, d) if side == "encoder" else decoder_stack(p, c, d)
        if frame.norm_last:
            yield from norm(f"{p}.layer_norm", d, bias=True)
    if c.family == "mvp" and c.flag("use_prompt") and not only_decoder:
        yield from prompts(c, d)
    if only_decoder:
        to = "model.decoder.embed_tokens.weight" if c.tied else None
    yield tensor("lm_head.weight", (c.vocab, d), "matmul", "head", tied_to=to)
    if frame.logits_bias and not only_decoder:
        yield tensor("final_logits_bias", (1, c.vocab), "add", "head", buffer=True)


def prompts(c: Config, d: Dim) -> Parts:
    """MVP's prompts in the decoder, as the reference builds them."""
    out = c.decoder_layers * 2 * d
    for name in ("self_attn_prompt", "cross_attn_prompt"):
        p = f"model.decoder.{name}"
        yield from embed(f"{p}.prompt_embedding", c.prompt_length, d, "prompt")
        yield from linear(f"{p}.prompt_trans.0", c.prompt_mid_dim, d, "prompt", bias=True)
        yield from linear(f"{p}.prompt_trans.2", out, c.prompt_mid_dim, "prompt", bias=True)


@family("trocr")
def trocr(c: Config) -> Parts:
    """TrOCR's decoder (arXiv 2109.10282), which attends to an image."""
    d = width(c)
    layers, p = (
        Layers.all(c.size("n_layers", None, "num_hidden_layers", "decoder_layers")),
        "model.decoder",
    )
    heads = c.size("n_heads", None, "num_attention_heads", "decoder_attention_heads")
    d_h, source = (
        Dim(int(d) // int(heads), "head_dim"),
        c.optional("cross_attention_hidden_size") or d,
    )
    block = f"{p}.layers.{{layer}}"
    yield from embed(f"{p}.embed_tokens", c.vocab, d)
    if c.flag("use_learned_position_embeddings"):
        yield from embed(f"{p}.embed_positions", c.max_context + 2, d, "embed.position")
    if c.flag("layernorm_embedding"):
        yield from norm(f"{p}.layernorm_embedding", d, bias=True)
    yield from self_attention(f"{block}.self_attn", d, layers)
    yield attention(layers, heads, heads, d_h, d_h)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, bias=True)
    for name, inn in (("k", source), ("v", source), ("q", d), ("out", d)):
        yield from linear(
            f"{block}.encoder_attn.{name}_proj", d, inn, f"cross.{name[0]}", layers, True
        )
    yield cross(layers, heads, d_h, Dim(0))  # of an encoder that is another model
    yield from norm(f"{block}.encoder_attn_layer_norm", d, layers, bias=True)
    yield from feed_forward(block, d, c.decoder_ffn_dim, layers)
    to = f"{p}.embed_tokens.weight" if c.tied else None
    yield tensor("output_projection.weight", (c.vocab, d), "matmul", "head", tied_to=to)


@family("prophetnet")
def prophetnet(c: Config) -> Parts:
    """ProphetNet (arXiv 2001.04063): predicts several tokens ahead while it trains."""
    d, root = c.d_model, "prophetnet"
    only_decoder = is_causal(c)
    to = f"{root}.word_embeddings.weight" if c.tied else None
    yield from embed(f"{root}.word_embeddings", c.vocab, d)
    for side in ("decoder",) if only_decoder else ("encoder", "decoder"):
        yield from prophet_side(c, f"{root}.{side}", side, d, to)
    yield tensor("lm_head.weight", (c.vocab, d), "matmul", "head", tied_to=to)


def prophet_side(c: Config, p: str, side: str, d: Dim, tied_to: str | None) -> Parts:
    """One of ProphetNet's two stacks."""
    layers = Layers.all(c.size(f"num_{side}_layers"), f"n_{side}_layers")
    block, heads = f"{p}.layers.{{layer}}", c.size(f"num_{side}_attention_heads")
    d_h, d_ff = Dim(int(d) // int(heads), "head_dim"), c.size(f"{side}_ffn_dim")
    yield from table(f"{p}.word_embeddings", c, d, tied_to)
    yield from embed(f"{p}.position_embeddings", c.max_context, d, "embed.position")
    if side == "decoder":
        yield from embed(f"{p}.ngram_embeddings", c.ngram, d, "embed.position")
    yield from prophet_attention(f"{block}.self_attn", d, layers, "attn")
    if side == "decoder":
        rows = c.num_buckets * heads
        yield from linear(
            f"{block}.self_attn.relative_pos_embeddings", rows, d, "attn.pos", layers, True
        )
        yield attention(layers, heads, heads, d_h, d_h)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, bias=True)
    if side == "decoder" and c.flag("add_cross_attention"):
        yield from prophet_attention(f"{block}.cross_attn", d, layers, "cross")
        yield cross(layers, heads, d_h)
        yield from norm(f"{block}.cross_attn_layer_norm", d, layers, bias=True)
    yield from linear(f"{block}.feed_forward.intermediate", d_ff, d, "mlp.up", layers, True)
    yield from linear(f"{block}.feed_forward.output", d, d_ff, "mlp.down", layers, True)
    yield from norm(f"{block}.feed_forward_layer_norm", d, layers, bias=True)
    yield from norm(f"{p}.embeddings_layer_norm", d, bias=True)


def prophet_attention(p: str, d: Dim, layers: Layers, role: str) -> Parts:
    """Four square projections under ProphetNet's names."""
    for name, short in (("key", "k"), ("value", "v"), ("query", "q"), ("out", "o")):
        yield from linear(f"{p}.{name}_proj", d, d, f"{role}.{short}", layers, True)
