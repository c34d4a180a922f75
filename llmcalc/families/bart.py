"""Encoder-decoders: BART and its kin, Whisper, ProphetNet, T5; and the decoders cut out of them."""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Layers, Mixer, Parts
from llmcalc.blocks import attention, embed, linear, norm, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family


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


def self_attention(
    p: str, d: Dim, layers: Layers, k_bias: bool = True, role: str = "attn"
) -> Parts:
    """Four square projections with biases (Whisper's keys have none)."""
    yield from linear(f"{p}.k_proj", d, d, f"{role}.k", layers, k_bias)
    yield from linear(f"{p}.v_proj", d, d, f"{role}.v", layers, True)
    yield from linear(f"{p}.q_proj", d, d, f"{role}.q", layers, True)
    yield from linear(f"{p}.out_proj", d, d, f"{role}.o", layers, True)


def feed_forward(p: str, d: Dim, d_ff: Dim, layers: Layers) -> Parts:
    """fc1, fc2 and the norm that belongs to them."""
    yield from linear(f"{p}.fc1", d_ff, d, "mlp.up", layers, True)
    yield from linear(f"{p}.fc2", d, d_ff, "mlp.down", layers, True)
    yield from norm(f"{p}.final_layer_norm", d, layers, bias=True)


def cross(layers: Layers, n_heads: Dim, d_h: Dim, source: Dim | None = None) -> Mixer:
    """Attention to the encoder: keys and values of every source token, kept as long as the answer
    lasts.
    """
    return Mixer(
        "cross", layers, n_heads, n_heads, d_h, d_h, n_heads * d_h, n_heads * d_h, max_source=source
    )


def encoder_stack(p: str, c: Config, d: Dim, k_bias: bool = True) -> Parts:
    """BART's encoder layers."""
    layers, block = (
        Layers.all(
            c.size("encoder_layers", None, "num_hidden_layers", "encoder_layers"),
            "n_encoder_layers",
        ),
        f"{p}.layers.{{layer}}",
    )
    yield from self_attention(f"{block}.self_attn", d, layers, k_bias)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, bias=True)
    yield from feed_forward(block, d, c.encoder_ffn_dim, layers)


def decoder_stack(
    p: str, c: Config, d: Dim, k_bias: bool = True, source: Dim | None = None
) -> Parts:
    """BART's decoder layers: attention to itself, to the encoder, and the MLP."""
    layers, block = Layers.all(c.decoder_layers, "n_decoder_layers"), f"{p}.layers.{{layer}}"
    heads = c.decoder_attention_heads
    d_h = Dim(int(d) // int(heads), "head_dim")
    yield from self_attention(f"{block}.self_attn", d, layers, k_bias)
    yield attention(layers, heads, heads, d_h, d_h)
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, bias=True)
    yield from self_attention(f"{block}.encoder_attn", d, layers, k_bias, "cross")
    yield cross(layers, heads, d_h, source)
    yield from norm(f"{block}.encoder_attn_layer_norm", d, layers, bias=True)
    yield from feed_forward(block, d, c.decoder_ffn_dim, layers)


def table(name: str, c: Config, d: Dim, tied_to: str | None) -> Parts:
    """A copy of the shared embedding."""
    yield tensor(f"{name}.weight", (c.vocab, d), "lookup", "embed.token", tied_to=tied_to)


def width(c: Config) -> Dim:
    """d_model, the generic spelling first, as the reference resolves it."""
    return c.size("d_model", None, "hidden_size", "d_model")


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


def is_causal(c: Config) -> bool:
    """Whether only the decoder is meant."""
    named = c.raw.get("architectures") or [""]
    return str(named[0]).endswith("ForCausalLM")


def prompts(c: Config, d: Dim) -> Parts:
    """MVP's prompts in the decoder, as the reference builds them."""
    out = c.decoder_layers * 2 * d
    for name in ("self_attn_prompt", "cross_attn_prompt"):
        p = f"model.decoder.{name}"
        yield from embed(f"{p}.prompt_embedding", c.prompt_length, d, "prompt")
        yield from linear(f"{p}.prompt_trans.0", c.prompt_mid_dim, d, "prompt", bias=True)
        yield from linear(f"{p}.prompt_trans.2", out, c.prompt_mid_dim, "prompt", bias=True)


@family("whisper")
def whisper(c: Config) -> Parts:
    """Whisper (arXiv 2212.04356): two convolutions over the sound, then BART's layers.

    Keys have no bias.
    """
    d, source = width(c), c.max_source_positions
    if not is_causal(c):
        for name, channels in (("conv1", c.num_mel_bins), ("conv2", d)):
            yield tensor(f"model.encoder.{name}.weight", (d, channels, 3), "conv", "conv")
            yield tensor(f"model.encoder.{name}.bias", (d,), "add", "conv")
        yield from embed("model.encoder.embed_positions", source, d, "embed.position")
        yield from encoder_stack("model.encoder", c, d, False)
        yield from norm("model.encoder.layer_norm", d, bias=True)
    yield from embed("model.decoder.embed_tokens", c.vocab, d)
    yield from embed("model.decoder.embed_positions", c.max_target_positions, d, "embed.position")
    yield from decoder_stack("model.decoder", c, d, False, source)
    yield from norm("model.decoder.layer_norm", d, bias=True)
    to = "model.decoder.embed_tokens.weight" if c.tied else None
    yield tensor("proj_out.weight", (c.vocab, d), "matmul", "head", tied_to=to)


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


@family("t5", "mt5", "umt5")
def t5(c: Config) -> Parts:
    """T5 (arXiv 1910.10683), T5 1.1, Flan, mT5: no biases, positions as one table of buckets per
    stack.
    """
    d, a = c.size("d_model", None, "hidden_size", "d_model"), c.n_heads * c.head_dim
    named = str((c.raw.get("architectures") or [""])[0])
    yield from embed("shared", c.vocab, d)
    layers = Layers.all(c.n_layers, "n_encoder_layers")
    yield from table("encoder.embed_tokens", c, d, "shared.weight")
    yield from t5_attention(
        c, "encoder.block.{layer}.layer.0.SelfAttention", a, layers, c.family == "umt5"
    )
    yield from norm("encoder.block.{layer}.layer.0.layer_norm", d, layers)
    yield from t5_mlp(c, "encoder.block.{layer}.layer.1", layers)
    yield from norm("encoder.final_layer_norm", d)
    if named.endswith("EncoderModel"):
        return
    layers = Layers.all(c.size("num_decoder_layers", int(c.n_layers)), "n_decoder_layers")
    yield from table("decoder.embed_tokens", c, d, "shared.weight")
    yield from t5_attention(
        c, "decoder.block.{layer}.layer.0.SelfAttention", a, layers, c.family == "umt5"
    )
    yield attention(layers, c.n_heads, c.n_heads, c.head_dim, c.head_dim)
    yield from norm("decoder.block.{layer}.layer.0.layer_norm", d, layers)
    p = "decoder.block.{layer}.layer.1"
    for name in "qkvo":
        shape = (d, a) if name == "o" else (a, d)
        yield from linear(f"{p}.EncDecAttention.{name}", *shape, f"cross.{name}", layers)
    yield cross(layers, c.n_heads, c.head_dim)
    yield from norm(f"{p}.layer_norm", d, layers)
    yield from t5_mlp(c, "decoder.block.{layer}.layer.2", layers)
    yield from norm("decoder.final_layer_norm", d)
    tied = c.flag("tie_word_embeddings", True)
    yield tensor(
        "lm_head.weight", (c.vocab, d), "matmul", "head", tied_to="shared.weight" if tied else None
    )


def t5_attention(c: Config, p: str, a: Dim, layers: Layers, every: bool) -> Parts:
    """T5's attention.

    The table of relative positions stands in the first block (in every one of UMT5's).
    """
    for name in "qkvo":
        shape = (c.size("d_model", None, "hidden_size", "d_model"), a)
        yield from linear(
            f"{p}.{name}", *(shape if name == "o" else shape[::-1]), f"attn.{name}", layers
        )
    first = layers if every else layers.where("n_first_layers", lambda i: i == 0)
    buckets = c.relative_attention_num_buckets
    yield from embed(f"{p}.relative_attention_bias", buckets, c.n_heads, "embed.position", first)


def t5_mlp(c: Config, p: str, layers: Layers) -> Parts:
    """T5's MLP, gated from version 1.1 on."""
    d, d_ff = c.size("d_model", None, "hidden_size", "d_model"), c.size("d_ff", None, "d_ff")
    gated = c.raw.get("is_gated_act")
    if gated is None:
        gated = str(c.get("feed_forward_proj", "relu")).split("-")[0] == "gated"
    for name in ("wi_0", "wi_1") if gated else ("wi",):
        yield from linear(
            f"{p}.DenseReluDense.{name}",
            d_ff,
            d,
            "mlp.gate" if name == "wi_0" else "mlp.up",
            layers,
        )
    yield from linear(f"{p}.DenseReluDense.wo", d, d_ff, "mlp.down", layers)
    yield from norm(f"{p}.layer_norm", d, layers)
