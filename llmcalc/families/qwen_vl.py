"""Alibaba: Qwen with pictures."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import gqa, linear, stacked, tensor
from llmcalc.config import Config
from llmcalc.families import family, inner
from llmcalc.families.parts.frame import BLOCK, gated, pre_norm, split
from llmcalc.families.parts.towers import qwen2_5_vision, qwen2_vision, qwen3_vision
from llmcalc.families.parts.windows import dense_layers, late_windows
from llmcalc.families.parts.wrapper import llm_with_top_head, text_of


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
