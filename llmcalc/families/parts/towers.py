"""What sees and hears: the towers that several families put before a language model."""

from __future__ import annotations

from llmcalc.anatomy import ONCE, Layers, Parts
from llmcalc.blocks import embed, linear, norm, swiglu, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError


def named(c: Config, name: str, *keys: str) -> Dim:
    """A tower's size under a name that says so, so that it is not taken for the language
    model's.
    """
    return Dim(c.size(name, None, *(keys or (name,))), f"v_{name}")


def stack_of(c: Config, *keys: str) -> Layers:
    """The layers of a tower."""
    return Layers.all(named(c, "n_layers", *keys))


def patches(c: Config) -> Dim:
    """Patches of one image: (image_size // patch_size)²."""
    side = int(c.image_size) // int(c.patch_size)
    return Dim(side * side, "n_patches")


def siglip_layers(p: str, h: Dim, d_ff: Dim, layers: Layers) -> Parts:
    """CLIP's and SigLIP's encoder layer: LayerNorm, attention with biases, two-matrix MLP."""
    for name, role in (("k", "k"), ("v", "v"), ("q", "q"), ("out", "o")):
        yield from linear(f"{p}.self_attn.{name}_proj", h, h, f"vision.{role}", layers, True)
    yield from norm(f"{p}.layer_norm1", h, layers, True, "vision.norm")
    yield from linear(f"{p}.mlp.fc1", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{p}.mlp.fc2", h, d_ff, "vision.down", layers, True)
    yield from norm(f"{p}.layer_norm2", h, layers, True, "vision.norm")


def siglip_head(p: str, h: Dim, d_ff: Dim) -> Parts:
    """SigLIP's pooling head: one learned query over the patches."""
    yield tensor(f"{p}.probe", (1, 1, h), "add", "vision.head")
    yield tensor(f"{p}.attention.in_proj_weight", (3 * h, h), "matmul", "vision.head")
    yield tensor(f"{p}.attention.in_proj_bias", (3 * h,), "add", "vision.head")
    yield from linear(f"{p}.attention.out_proj", h, h, "vision.head", bias=True)
    yield from norm(f"{p}.layernorm", h, bias=True, role="vision.head")
    yield from linear(f"{p}.mlp.fc1", d_ff, h, "vision.head", bias=True)
    yield from linear(f"{p}.mlp.fc2", h, d_ff, "vision.head", bias=True)


def siglip(c: Config, p: str, *, linear_patches: bool = False, head: bool | None = None) -> Parts:
    """SigLIP (arXiv 2303.15343); SigLIP 2 takes patches through a matrix and counts its
    positions.
    """
    h, d_ff, patch = named(c, "hidden_size"), named(c, "intermediate_size"), c.patch_size
    pixels = c.num_channels * patch * patch
    shape = (h, pixels) if linear_patches else (h, c.num_channels, patch, patch)
    yield tensor(f"{p}.embeddings.patch_embedding.weight", shape, "conv", "vision.patch")
    yield tensor(f"{p}.embeddings.patch_embedding.bias", (h,), "add", "vision.patch")
    rows = c.num_patches if linear_patches else patches(c)
    yield from embed(f"{p}.embeddings.position_embedding", rows, h, "vision.position")
    yield from siglip_layers(
        f"{p}.encoder.layers.{{layer}}", h, d_ff, stack_of(c, "num_hidden_layers")
    )
    yield from norm(f"{p}.post_layernorm", h, bias=True, role="vision.norm")
    if c.flag("vision_use_head", True) if head is None else head:
        yield from siglip_head(f"{p}.head", h, d_ff)


def clip(c: Config, p: str) -> Parts:
    """CLIP's vision tower (arXiv 2103.00020)."""
    h, patch = named(c, "hidden_size"), c.patch_size
    yield tensor(f"{p}.embeddings.class_embedding", (h,), "add", "vision.patch")
    yield tensor(
        f"{p}.embeddings.patch_embedding.weight",
        (h, c.num_channels, patch, patch),
        "conv",
        "vision.patch",
    )
    yield from embed(f"{p}.embeddings.position_embedding", patches(c) + 1, h, "vision.position")
    yield from norm(f"{p}.pre_layrnorm", h, bias=True, role="vision.norm")
    layers = stack_of(c, "num_hidden_layers")
    yield from siglip_layers(
        f"{p}.encoder.layers.{{layer}}", h, named(c, "intermediate_size"), layers
    )
    yield from norm(f"{p}.post_layernorm", h, bias=True, role="vision.norm")


def pixtral(c: Config, p: str) -> Parts:
    """Pixtral's tower (arXiv 2410.07073): Llama's blocks over patches, rotary positions."""
    h, patch, block = named(c, "hidden_size"), c.patch_size, f"{p}.transformer.layers.{{layer}}"
    layers, d_ff = stack_of(c, "num_hidden_layers"), named(c, "intermediate_size")
    yield tensor(
        f"{p}.patch_conv.weight", (h, c.num_channels, patch, patch), "conv", "vision.patch"
    )
    yield from norm(f"{p}.ln_pre", h, role="vision.norm")
    yield from norm(f"{block}.attention_norm", h, layers, role="vision.norm")
    for name in "kvqo":
        yield from linear(f"{block}.attention.{name}_proj", h, h, f"vision.{name}", layers)
    yield from norm(f"{block}.ffn_norm", h, layers, role="vision.norm")
    yield from swiglu(f"{block}.feed_forward", h, d_ff, layers, of="vision")


def qwen_patch(c: Config, p: str, h: Dim, channels: Dim, bias: bool) -> Parts:
    """Qwen's patches: two frames at a time."""
    patch = c.patch_size
    yield tensor(
        f"{p}.patch_embed.proj.weight",
        (h, channels, c.temporal_patch_size, patch, patch),
        "conv",
        "vision.patch",
    )
    if bias:
        yield tensor(f"{p}.patch_embed.proj.bias", (h,), "add", "vision.patch")


def qwen_attention(block: str, h: Dim, layers: Layers, ln_bias: bool = True) -> Parts:
    """The norm and the joint attention of Qwen's vision blocks."""
    yield from norm(f"{block}.norm1", h, layers, ln_bias, "vision.norm")
    yield from linear(f"{block}.attn.qkv", 3 * h, h, "vision.qkv", layers, True)
    yield from linear(f"{block}.attn.proj", h, h, "vision.o", layers, True)
    yield from norm(f"{block}.norm2", h, layers, ln_bias, "vision.norm")


def qwen2_vision(c: Config, p: str) -> Parts:
    """Qwen2-VL's tower (arXiv 2409.12191)."""
    h, layers, block = named(c, "embed_dim"), stack_of(c, "depth"), f"{p}.blocks.{{layer}}"
    d_ff = Dim(int(h * c.get("mlp_ratio", 4)), "v_d_ff")
    yield from qwen_patch(c, p, h, c.in_channels, False)
    yield from qwen_attention(block, h, layers)
    yield from linear(f"{block}.mlp.fc1", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.fc2", h, d_ff, "vision.down", layers, True)
    yield from norm(f"{p}.merger.ln_q", h, bias=True, role="vision.norm")
    yield from merger(c, f"{p}.merger.mlp", h, named(c, "hidden_size"), ("0", "2"))


def qwen2_5_vision(c: Config, p: str, in_heads: Dim | None = None) -> Parts:
    """Qwen2.5-VL's tower (arXiv 2502.13923): gated MLP, RMSNorm; EXAONE 4.5 gives it
    grouped heads.
    """
    h, layers, block = named(c, "hidden_size"), stack_of(c, "depth"), f"{p}.blocks.{{layer}}"
    d_ff = named(c, "intermediate_size")
    yield from qwen_patch(c, p, h, c.in_channels, False)
    yield from norm(f"{block}.norm1", h, layers, role="vision.norm")
    yield from linear(f"{block}.attn.qkv", in_heads or 3 * h, h, "vision.qkv", layers, True)
    yield from linear(f"{block}.attn.proj", h, h, "vision.o", layers, True)
    yield from norm(f"{block}.norm2", h, layers, role="vision.norm")
    yield from swiglu(f"{block}.mlp", h, d_ff, layers, True, of="vision")
    yield from norm(f"{p}.merger.ln_q", h, role="vision.norm")
    yield from merger(c, f"{p}.merger.mlp", h, named(c, "out_hidden_size"), ("0", "2"))


def merger(c: Config, p: str, h: Dim, out: Dim, names: tuple[str, str]) -> Parts:
    """Neighbouring patches side by side, through two matrices into the language model's width."""
    joined = h * c.spatial_merge_size * c.spatial_merge_size
    yield from linear(f"{p}.{names[0]}", joined, joined, "vision.merge", bias=True)
    yield from linear(f"{p}.{names[1]}", out, joined, "vision.merge", bias=True)


def qwen3_vision(c: Config, p: str, deepstack: bool = True) -> Parts:
    """Qwen3-VL's tower: learned positions, and mergers that feed several layers (Qwen3.5 has none
    of those).
    """
    h, layers, block = named(c, "hidden_size"), stack_of(c, "depth"), f"{p}.blocks.{{layer}}"
    d_ff, out = named(c, "intermediate_size"), named(c, "out_hidden_size")
    yield from qwen_patch(c, p, h, c.in_channels, True)
    yield from embed(f"{p}.pos_embed", c.num_position_embeddings, h, "vision.position")
    yield from qwen_attention(block, h, layers)
    yield from linear(f"{block}.mlp.linear_fc1", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.linear_fc2", h, d_ff, "vision.down", layers, True)
    yield from norm(f"{p}.merger.norm", h, bias=True, role="vision.norm")
    yield from merger(c, f"{p}.merger", h, out, ("linear_fc1", "linear_fc2"))
    if not deepstack:
        return
    for i in range(len(c.get("deepstack_visual_indexes") or [])):
        q = f"{p}.deepstack_merger_list.{i}"
        yield from norm(
            f"{q}.norm",
            h * c.spatial_merge_size * c.spatial_merge_size,
            bias=True,
            role="vision.norm",
        )
        yield from merger(c, q, h, out, ("linear_fc1", "linear_fc2"))


def llama4_vision(c: Config, p: str) -> Parts:
    """Llama 4's tower, with its adapter."""
    h, layers, block = (
        named(c, "hidden_size"),
        stack_of(c, "num_hidden_layers"),
        f"{p}.model.layers.{{layer}}",
    )
    d_ff, patch = named(c, "intermediate_size"), c.patch_size
    yield tensor(f"{p}.class_embedding", (h,), "add", "vision.patch")
    yield tensor(f"{p}.positional_embedding_vlm", (patches(c) + 1, h), "lookup", "vision.position")
    yield from linear(
        f"{p}.patch_embedding.linear", h, c.num_channels * patch * patch, "vision.patch"
    )
    for name in ("layernorm_pre", "layernorm_post"):
        yield from norm(f"{p}.{name}", h, bias=True, role="vision.norm")
    for name in "qkvo":
        yield from linear(f"{block}.self_attn.{name}_proj", h, h, f"vision.{name}", layers, True)
    yield from linear(f"{block}.mlp.fc1", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.fc2", h, d_ff, "vision.down", layers, True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield from norm(f"{block}.{name}", h, layers, True, "vision.norm")
    yield from linear(f"{p}.vision_adapter.mlp.fc1", c.projector_input_dim, d_ff, "vision.merge")
    yield from linear(
        f"{p}.vision_adapter.mlp.fc2",
        c.projector_output_dim,
        c.projector_output_dim,
        "vision.merge",
    )


def mllama_vision(c: Config, p: str) -> Parts:
    """Llama 3.2's tower: tiles, gated positions, a second stack with gates."""
    h, d_ff, tiles = named(c, "hidden_size"), named(c, "intermediate_size"), c.max_num_tiles
    ratios = c.get("supported_aspect_ratios")
    rows = Dim((len(ratios) if ratios else 8) + 1, "n_aspect_ratios")
    n, patch = patches(c) + 1, c.patch_size
    yield tensor(f"{p}.class_embedding", (h,), "add", "vision.patch")
    yield tensor(
        f"{p}.patch_embedding.weight", (h, c.num_channels, patch, patch), "conv", "vision.patch"
    )
    yield tensor(f"{p}.gated_positional_embedding.gate", (1,), "scale", "vision.position")
    yield tensor(f"{p}.gated_positional_embedding.embedding", (n, h), "lookup", "vision.position")
    yield from embed(
        f"{p}.gated_positional_embedding.tile_embedding", rows, tiles * n * h, "vision.position"
    )
    for name in ("pre", "post"):
        q = f"{p}.{name}_tile_positional_embedding"
        yield tensor(f"{q}.gate", (1,), "scale", "vision.position")
        yield from embed(f"{q}.embedding", rows, tiles * h, "vision.position")
        yield from norm(f"{p}.layernorm_{name}", h, bias=True, role="vision.norm")
    for stack, key in (
        ("transformer", "num_hidden_layers"),
        ("global_transformer", "num_global_layers"),
    ):
        layers, block = (
            Layers.all(Dim(c.size(key), f"v_n_{stack}_layers")),
            f"{p}.{stack}.layers.{{layer}}",
        )
        for name in "qkvo":
            yield from linear(f"{block}.self_attn.{name}_proj", h, h, f"vision.{name}", layers)
        yield from linear(f"{block}.mlp.fc1", d_ff, h, "vision.up", layers, True)
        yield from linear(f"{block}.mlp.fc2", h, d_ff, "vision.down", layers, True)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from norm(f"{block}.{name}", h, layers, True, "vision.norm")
        if stack == "global_transformer":
            for name in ("gate_attn", "gate_ffn"):
                yield tensor(f"{block}.{name}", (1,), "scale", "vision.gate", layers)


def whisper_encoder(c: Config, p: str) -> Parts:
    """Whisper's encoder as an audio tower."""
    d, layers = (
        named(c, "d_model", "hidden_size", "d_model"),
        stack_of(c, "num_hidden_layers", "encoder_layers"),
    )
    d_ff, block = named(c, "d_ff", "intermediate_size", "encoder_ffn_dim"), f"{p}.layers.{{layer}}"
    for name, channels in (("conv1", c.num_mel_bins), ("conv2", d)):
        yield tensor(f"{p}.{name}.weight", (d, channels, 3), "conv", "audio.conv")
        yield tensor(f"{p}.{name}.bias", (d,), "add", "audio.conv")
    yield from embed(f"{p}.embed_positions", c.max_source_positions, d, "audio.position")
    for name, role in (("k", "k"), ("v", "v"), ("q", "q"), ("out", "o")):
        yield from linear(
            f"{block}.self_attn.{name}_proj", d, d, f"audio.{role}", layers, name != "k"
        )
    yield from norm(f"{block}.self_attn_layer_norm", d, layers, True, "audio.norm")
    yield from linear(f"{block}.fc1", d_ff, d, "audio.up", layers, True)
    yield from linear(f"{block}.fc2", d, d_ff, "audio.down", layers, True)
    yield from norm(f"{block}.final_layer_norm", d, layers, True, "audio.norm")
    yield from norm(f"{p}.layer_norm", d, bias=True, role="audio.norm")


def vision_tower(c: Config, p: str) -> Parts:
    """The tower that a nested vision config names."""
    towers = {"siglip_vision_model": siglip, "clip_vision_model": clip, "pixtral": pixtral}
    kind = c.family or "clip_vision_model"
    if kind not in towers:
        raise ConfigError(f"the vision tower {kind!r} is not known")
    yield from towers[kind](c, p)


def two_matrices(p: str, d: Dim, inn: Dim, bias: bool, layers: Layers = ONCE) -> Parts:
    """LLaVA's projector: two matrices with an activation between."""
    yield from linear(f"{p}.linear_1", d, inn, "projector", layers, bias)
    yield from linear(f"{p}.linear_2", d, d, "projector", layers, bias)
