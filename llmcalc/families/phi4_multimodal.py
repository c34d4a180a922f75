"""Microsoft: Phi-4 with pictures and sound."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import by_window, embed, fused_swiglu, linear, lm_head, norm, tensor, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.parts.frame import BLOCK, MLP, fused_attention
from llmcalc.families.parts.towers import named, siglip

EXTEND = "model.embed_tokens_extend"


@family("phi4_multimodal")
def phi4_multimodal(c: Config) -> Parts:
    """The decoder, and the towers that extend its embedding."""
    d, layers = c.d_model, Layers.all(c.n_layers)
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from image_embed(
        inner(c, "vision_config", "phi4_multimodal_vision"), f"{EXTEND}.image_embed", d
    )
    yield from audio_embed(
        inner(c, "audio_config", "phi4_multimodal_audio"), f"{EXTEND}.audio_embed", d
    )
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from by_window(c, layers, c.sliding(), lambda ls, window: fused_attention(c, ls, window))
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    yield from fused_swiglu(MLP, d, c.d_ff, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def image_embed(c: Config, p: str, d: Dim) -> Parts:
    """SigLIP with its head, separators between crops, two matrices."""
    h = named(c, "hidden_size")
    yield tensor(f"{p}.global_img_feature_extensor", (1, 1, h), "add", "vision.merge")
    yield tensor(f"{p}.sub_img_feature_extensor", (1, 1, 1, h), "add", "vision.merge")
    yield from siglip(c, f"{p}.img_processor", head=True)
    yield from linear(f"{p}.img_projection_up", d, h, "projector", bias=True)
    yield from linear(f"{p}.img_projection_down", d, d, "projector", bias=True)


def convolution(name: str, *shape: int, layers: Layers | None = None) -> Parts:
    """A convolution and its bias."""
    where = layers or Layers((0,), Dim(1))
    yield tensor(f"{name}.weight", shape, "conv", "audio.conv", where)
    yield tensor(f"{name}.bias", (shape[0],), "add", "audio.conv", where)


def audio_embed(c: Config, p: str, d: Dim) -> Parts:
    """A conformer over mel frames, and projections for speech alone and for speech
    beside images.
    """
    h, steps, channels = (
        named(c, "hidden_size"),
        int(c.time_reduction).bit_length() - 1,
        named(c, "nemo_conv_channels"),
    )
    e, size = f"{p}.encoder", int(c.input_size)
    for name in ("global_mean", "global_invstd"):
        yield tensor(
            f"{e}.encoder_embedding.{name}", (c.input_size,), "scale", "audio.norm", buffer=True
        )
    yield from convolution(f"{e}.embed.conv.0", channels, 1, 3, 3)
    for step in range(1, steps):
        yield from convolution(f"{e}.embed.conv.{3 * step - 1}", channels, 1, 3, 3)
        yield from convolution(f"{e}.embed.conv.{3 * step}", channels, channels, 1, 1)
    for _ in range(steps):
        size = (size - 1) // 2 + 1
    rest = Dim(c.raw.get("nemo_final_size") or size, "nemo_final_size")
    yield from linear(f"{e}.embed.out", h, channels * rest, "audio.in", bias=True)
    buckets = c.bias_max_distance * (1 if c.flag("bias_symmetric") else 2)
    yield from embed(
        f"{e}.relative_attention_bias_layer.bias_values",
        buckets,
        named(c, "n_heads", "num_attention_heads"),
        "audio.position",
    )
    yield from conformer(
        c, f"{e}.encoders.{{layer}}", h, Layers.all(named(c, "n_layers", "num_blocks"))
    )
    for kind in ("speech", "vision_speech"):
        yield from linear(
            f"{p}.up_proj_for_{kind}", d, h * c.downsample_rate, "projector", bias=True
        )
        yield from linear(f"{p}.down_proj_for_{kind}", d, d, "projector", bias=True)


def conformer(c: Config, p: str, h: Dim, layers: Layers) -> Parts:
    """One conformer layer: half an MLP, attention, a gated convolution, half an MLP."""
    d_ff, out, mid = (
        named(c, "intermediate_size"),
        named(c, "ext_pw_out_channel"),
        named(c, "depthwise_separable_out_channel"),
    )
    wide = h * c.depthwise_multiplier
    for name in ("feed_forward_in", "feed_forward_out"):
        yield from norm(f"{p}.{name}.layer_norm", h, layers, True, "audio.norm")
        yield from linear(f"{p}.{name}.gate_up_proj", 2 * d_ff, h, "audio.up", layers, True)
        yield from linear(f"{p}.{name}.down_proj", h, d_ff, "audio.down", layers, True)
    for name in "qkvo":
        yield from linear(f"{p}.self_attn.{name}_proj", h, h, f"audio.{name}", layers, True)
    yield from norm(f"{p}.conv.layer_norm", h, layers, True, "audio.norm")
    yield from convolution(f"{p}.conv.glu.ext_pw_conv_1d", 2 * out, h, 1, layers=layers)
    for name in ("b1", "b2"):
        yield tensor(f"{p}.conv.glu.{name}", (1, out, 1), "add", "audio.conv", layers)
    yield from convolution(
        f"{p}.conv.dw_sep_conv_1d.dw_conv", wide, 1, c.kernel_size, layers=layers
    )
    yield from convolution(f"{p}.conv.dw_sep_conv_1d.pw_conv", mid, wide, 1, layers=layers)
    yield from convolution(f"{p}.conv.ext_pw_conv_1d", out, h, 1, layers=layers)
    for name in ("layer_norm_att", "layer_norm"):
        yield from norm(f"{p}.{name}", h, layers, True, "audio.norm")
