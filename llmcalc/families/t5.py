"""Google: T5 and its multilingual kin."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, embed, linear, norm, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family
from llmcalc.families.parts.encoder_decoder import cross, table


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
