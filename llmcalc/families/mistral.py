"""Mistral: 7B and its like, Mixtral, Mistral Small with pictures, Voxtral with sound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import W123, experts, gqa, linear, norm, swiglu
from llmcalc.config import Config
from llmcalc.families import family, inner, runs
from llmcalc.families.llama import llama_runs
from llmcalc.families.parts.frame import ATTENTION, gated, pre_norm
from llmcalc.families.parts.routing import SPARSE
from llmcalc.families.parts.running import in_pairs, normalised, rotary
from llmcalc.families.parts.towers import named, two_matrices, vision_tower, whisper_encoder
from llmcalc.families.parts.wrapper import language, n_features, text_of

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("mixtral")
def mixtral(c: Config) -> Parts:
    """Mixtral (arXiv 2401.04088): every layer routes to two of eight MLPs."""

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{SPARSE}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), feed_forward)


@family("mistral", "ministral3", "ministral")
def mistral(c: Config) -> Parts:
    """Mistral (arXiv 2310.06825): no biases; every layer slides where a window is set."""
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c))


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


@runs("mixtral")
def mixtral_runs(c: Config) -> Forward:
    """Mixtral: the chosen experts' probabilities sum to one."""
    return replace(
        llama_runs(c),
        rotary=rotary(c, int(c.head_dim), 1e6, interleaved=in_pairs(c)),
        router=normalised(True),
    )


runs("mistral", "ministral")(llama_runs)
