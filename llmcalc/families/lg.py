"""LG: EXAONE."""

from __future__ import annotations

from llmcalc.anatomy import Parts, rename
from llmcalc.blocks import gqa_normed
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, inner
from llmcalc.families.llama import llama
from llmcalc.families.parts.frame import (
    ATTENTION,
    MLP,
    gated,
    post_norm,
    pre_norm,
    routed_with_shared,
    split,
)
from llmcalc.families.parts.latent import sparse_layers
from llmcalc.families.parts.towers import named, qwen2_5_vision
from llmcalc.families.parts.wrapper import llm_with_top_head, text_of


@family("exaone_moe")
def exaone_moe(c: Config) -> Parts:
    """K-EXAONE: norms on queries and keys, windows, experts after the leading dense layers."""
    first = c.size("n_dense_layers", 0, least=0)
    kinds = sparse_layers(c, ["dense" if i < first else "sparse" for i in range(c.layers)])
    every, correction = c.get("sliding_window_pattern") or 4, f"{MLP}.e_score_correction_bias"
    yield from pre_norm(
        c,
        lambda layers, window: gqa_normed(ATTENTION, c, layers, window),
        split(
            lambda i: kinds[i] != "sparse",
            gated(c),
            lambda layers: routed_with_shared(c, layers, correction),
        ),
        c.sliding(lambda i: (i + 1) % every),
    )


@family("exaone4_5")
def exaone4_5(c: Config) -> Parts:
    """EXAONE 4.5: Qwen2.5-VL's tower with grouped heads before EXAONE 4."""
    vision = inner(c, "vision_config")
    h, heads = named(vision, "hidden_size"), vision.size("num_heads")
    joint = (heads + 2 * vision.size("num_key_value_heads")) * (int(h) // int(heads))
    yield from qwen2_5_vision(vision, "model.visual", Dim(joint, "v_qkv"))
    yield from llm_with_top_head(text_of(c, "exaone4", c.tied))


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
