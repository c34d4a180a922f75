"""The stacks of BART's frame, encoder and decoder."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Mixer, Parts
from llmcalc.blocks import attention, linear, norm, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim


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
        kind="cross",
        layers=layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_qk=d_h,
        d_v=d_h,
        keys=n_heads * d_h,
        values=n_heads * d_h,
        max_source=source,
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


def is_causal(c: Config) -> bool:
    """Whether only the decoder is meant."""
    named = c.raw.get("architectures") or [""]
    return str(named[0]).endswith("ForCausalLM")
