"""Models that see or hear: a tower, a projector, and a language model of a family of its own
inside.
"""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts, Weight, rename, under
from llmcalc.blocks import (
    attention,
    embed,
    gqa,
    linear,
    lm_head,
    norm,
    qk_norm,
    stacked,
    swiglu,
    tensor,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner, parts_of
from llmcalc.families.frame import BLOCK, gated, pre_norm, split
from llmcalc.families.qwen import dense_layers, late_windows
from llmcalc.families.towers import (
    llama4_vision,
    mllama_vision,
    named,
    qwen2_5_vision,
    qwen2_vision,
    qwen3_vision,
    siglip,
    two_matrices,
    vision_tower,
    whisper_encoder,
)


def text_of(c: Config, default_type: str, tied: bool) -> Config:
    """The nested language model's config, its head tied or not as the whole model's
    class decides.
    """
    text = inner(c, "text_config", default_type)
    raw = {
        k: v
        for k, v in text.raw.items()
        if k not in ("architectures", "tie_word_embeddings", "tie_embedding")
    }
    return Config({**raw, "tie_word_embeddings": tied}, defaults=text.defaults, nested=True)


def language(text: Config, prefix: str = "language_model.") -> Parts:
    """The language model's parts below a prefix."""
    return under(prefix, parts_of(text))


def llm_with_top_head(text: Config) -> Parts:
    """The language model as ``model.language_model.*`` with its head outside, as transformers 5
    stores it.
    """
    yield from rename(parts_of(text), ("model.", "model.language_model."))


def n_features(c: Config) -> int:
    """How many layers of the tower the projector reads side by side."""
    chosen = c.get("vision_feature_layer", -1)
    return len(chosen) if isinstance(chosen, list) else 1


@family("gemma3")
def gemma3(c: Config) -> Parts:
    """Gemma 3 with SigLIP: one matrix into the language model."""
    vision, text = (
        inner(c, "vision_config", "siglip_vision_model"),
        text_of(c, "gemma3_text", c.tied),
    )
    yield from siglip(vision, "vision_tower")
    h = named(vision, "hidden_size")
    yield tensor(
        "multi_modal_projector.mm_input_projection_weight", (h, text.d_model), "matmul", "projector"
    )
    yield from norm("multi_modal_projector.mm_soft_emb_norm", h, role="projector")
    yield from language(text)


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


@family("mistral3")
def mistral3(c: Config) -> Parts:
    """Mistral Small 3.1 and Ministral 3: Pixtral's tower, patches merged before the projector."""
    text, vision = text_of(c, "mistral", c.tied), inner(c, "vision_config", "pixtral")
    h, merge, p = named(vision, "hidden_size"), c.spatial_merge_size, "multi_modal_projector"
    yield from vision_tower(vision, "vision_tower")
    yield from norm(f"{p}.norm", h, role="projector")
    yield from linear(f"{p}.patch_merger.merging_layer", h, h * merge * merge, "projector")
    yield from two_matrices(p, text.d_model, n_features(c) * h, c.flag("multimodal_projector_bias"))
    yield from language(text)


@family("voxtral")
def voxtral(c: Config) -> Parts:
    """Voxtral (arXiv 2507.13264): Whisper's encoder before a Llama; never tied."""
    audio, text = inner(c, "audio_config", "voxtral_encoder"), text_of(c, "llama", False)
    base = {
        "vocab_size": 131072,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 30,
    }
    base |= {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}
    text = Config({**base, **text.raw}, defaults=text.defaults, nested=True)
    yield from whisper_encoder(audio, "audio_tower")
    yield from linear(
        "multi_modal_projector.linear_1",
        text.d_model,
        named(audio, "d_ff", "intermediate_size", "encoder_ffn_dim"),
        "projector",
    )
    yield from linear("multi_modal_projector.linear_2", text.d_model, text.d_model, "projector")
    yield from language(text)


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


def qwen_text(c: Config, default_type: str) -> Config:
    """Qwen-VL's language model: nested, or flat at the top level; tied where either says so."""
    nested = inner(c, "text_config", default_type)
    tied = c.flag("tie_word_embeddings") or bool(nested.raw.get("tie_word_embeddings"))
    raw = {k: v for k, v in nested.raw.items() if k not in ("head_dim", "architectures")}
    return Config(
        {**raw, "tie_word_embeddings": tied}, defaults=nested.defaults, nested=nested is not c
    )


def qwen_vl(c: Config, text: Config) -> Parts:
    """Qwen2-VL's language model: Qwen2's blocks under ``model.``."""
    yield from pre_norm(
        text,
        lambda layers, window: gqa(f"{BLOCK}.self_attn", text, layers, window, True, False),
        gated(text),
        late_windows(text),
    )


@family("qwen2_vl")
def qwen2_vl(c: Config) -> Parts:
    """Qwen2-VL (arXiv 2409.12191)."""
    yield from qwen2_vision(inner(c, "vision_config", "qwen2_vl_vision"), "visual")
    yield from qwen_vl(c, qwen_text(c, "qwen2_vl_text"))


@family("qwen2_5_vl")
def qwen2_5_vl(c: Config) -> Parts:
    """Qwen2.5-VL (arXiv 2502.13923)."""
    yield from qwen2_5_vision(inner(c, "vision_config", "qwen2_5_vl_vision"), "visual")
    yield from qwen_vl(c, qwen_text(c, "qwen2_5_vl_text"))


@family("qwen3_vl", "qwen3_5", "qwen3_5_moe")
def qwen3_vl(c: Config) -> Parts:
    """Qwen3-VL and Qwen3.5: the tower, then a language model of its own family."""
    default = {
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
    }[c.family]
    yield from qwen3_vision(inner(c, "vision_config"), "model.visual", c.family == "qwen3_vl")
    yield from llm_with_top_head(text_of(c, default, c.tied))


@family("qwen3_vl_text")
def qwen3_vl_text(c: Config) -> Parts:
    """Qwen3-VL's language model: Qwen3's."""
    from llmcalc.families.qwen import qwen3

    yield from qwen3(c)


@family("qwen3_vl_moe")
def qwen3_vl_moe(c: Config) -> Parts:
    """Qwen3-VL with experts, all of them in one tensor per matrix."""
    yield from qwen3_vision(inner(c, "vision_config"), "model.visual")
    yield from llm_with_top_head(text_of(c, "qwen3_vl_moe_text", c.tied))


@family("qwen3_vl_moe_text")
def qwen3_vl_moe_text(c: Config) -> Parts:
    """Qwen3-VL-MoE's language model."""
    from llmcalc.blocks import gqa_normed

    bias, p, d = c.flag("attention_bias"), f"{BLOCK}.mlp", c.d_model

    def moe(layers: Layers) -> Parts:
        up = tensor(
            f"{p}.experts.gate_up_proj", (2 * c.d_ff_expert, d), "matmul", "mlp.gate_up", layers
        )
        down = tensor(f"{p}.experts.down_proj", (d, c.d_ff_expert), "matmul", "mlp.down", layers)
        yield from linear(f"{p}.gate", c.n_experts, d, "router", layers)
        yield from stacked(iter((up, down)), c.n_experts, c.n_active_experts)

    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(f"{BLOCK}.self_attn", c, layers, window, bias),
        split(dense_layers(c), gated(c), moe),
    )


@family("exaone4_5")
def exaone4_5(c: Config) -> Parts:
    """EXAONE 4.5: Qwen2.5-VL's tower with grouped heads before EXAONE 4."""
    vision = inner(c, "vision_config")
    h, heads = named(vision, "hidden_size"), vision.size("num_heads")
    joint = (heads + 2 * vision.size("num_key_value_heads")) * (int(h) // int(heads))
    yield from qwen2_5_vision(vision, "model.visual", Dim(joint, "v_qkv"))
    yield from llm_with_top_head(text_of(c, "exaone4", c.tied))


@family("lfm2_vl")
def lfm2_vl(c: Config) -> Parts:
    """LFM2-VL: SigLIP 2, patches unshuffled into the projector."""
    vision, tied = (
        inner(c, "vision_config", "siglip2_vision_model"),
        c.flag("tie_embedding", c.tied),
    )
    text = text_of(c, "lfm2", tied)
    h, factor, p = named(vision, "hidden_size"), c.downsample_factor, "model.multi_modal_projector"
    width, joined, bias = c.projector_hidden_size, h * factor * factor, c.flag("projector_bias")
    yield from siglip(vision, "model.vision_tower", linear_patches=True)
    if c.flag("projector_use_layernorm"):
        yield from norm(f"{p}.layer_norm", joined, bias=True, role="projector")
    yield from linear(f"{p}.linear_1", width, joined, "projector", bias=bias)
    yield from linear(f"{p}.linear_2", text.d_model, width, "projector", bias=bias)
    yield from llm_with_top_head(text)


@family("fuyu")
def fuyu(c: Config) -> Parts:
    """Fuyu: patches through one matrix into Persimmon."""
    if isinstance(c.raw.get("text_config"), dict):
        text = text_of(c, "persimmon", c.tied)
    else:
        from llmcalc.families import class_defaults

        text = Config({**c.raw, "model_type": "persimmon"}, defaults=class_defaults("persimmon"))
    pixels = c.size("patch_size", 30) * c.size("patch_size", 30) * c.size("num_channels", 3)
    yield from linear("vision_embed_tokens", text.d_model, pixels, "projector", bias=True)
    yield from language(text)


@family("kimi_k25")
def kimi_k25(c: Config) -> Parts:
    """Kimi K2.5: MoonViT before Kimi K2."""
    vision, text = inner(c, "vision_config"), text_of(c, "deepseek_v3", c.tied)
    h, d_ff, merge = (
        named(vision, "hidden_size"),
        named(vision, "intermediate_size"),
        vision.get("merge_kernel_size") or [2, 2],
    )
    p, block = "vision_tower", "vision_tower.encoder.blocks.{layer}"
    layers, patch = Layers.all(named(vision, "n_layers", "num_hidden_layers")), vision.patch_size
    yield tensor(
        f"{p}.encoder.patch_embed.proj.weight",
        (h, vision.size("num_channels", 3), patch, patch),
        "conv",
        "vision.patch",
    )
    yield tensor(f"{p}.encoder.patch_embed.proj.bias", (h,), "add", "vision.patch")
    rows = (vision.pos_emb_height, vision.pos_emb_width, h)
    yield tensor(f"{p}.patch_embed.pos_emb.weight", rows, "lookup", "vision.position")
    for name in ("norm0", "norm1"):
        yield from norm(f"{block}.{name}", h, layers, True, "vision.norm")
    yield from linear(f"{block}.wqkv", 3 * h, h, "vision.qkv", layers, True)
    yield from linear(f"{block}.wo", h, h, "vision.o", layers, True)
    yield from linear(f"{block}.mlp.fc0", d_ff, h, "vision.up", layers, True)
    yield from linear(f"{block}.mlp.fc1", h, d_ff, "vision.down", layers, True)
    yield from norm(f"{p}.encoder.final_layernorm", h, bias=True, role="vision.norm")
    joined = h * merge[0] * merge[1]
    yield from norm("mm_projector.pre_norm", c.projection_hidden_size, bias=True, role="projector")
    yield from linear("mm_projector.proj.0", joined, joined, "projector", bias=True)
    yield from linear("mm_projector.proj.2", text.d_model, joined, "projector", bias=True)
    for part in language(
        text
    ):  # the reference writes the layers as ``blocks``, Moonshot's own files as ``layers``
        if isinstance(part, Weight) and ".layers." in part.name:
            part = replace(part, name=part.name.replace(".layers.", ".blocks."), also=part.name)
        yield part
