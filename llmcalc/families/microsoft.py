"""Microsoft: Phi, BitNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    W123,
    attention,
    by_window,
    embed,
    experts,
    fused_swiglu,
    gqa,
    linear,
    lm_head,
    mix,
    mlp,
    norm,
    qkv,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, runs
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, fused_attention, gated, pre_norm
from llmcalc.families.parts.routing import SPARSE
from llmcalc.families.parts.running import common, rotary

if TYPE_CHECKING:
    from llmcalc.forward import Forward


@family("phimoe")
def phimoe(c: Config) -> Parts:
    """Phi-3.5-MoE: LayerNorm, biases by flag, Mixtral's names."""
    bias = c.flag("attention_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{SPARSE}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )
    if c.flag("lm_head_bias"):
        yield tensor("lm_head.bias", (c.vocab,), "add", "head")


@family("phi")
def phi(c: Config) -> Parts:
    """Phi 1 to 2 (arXiv 2309.05463): parallel residual behind one LayerNorm, biases everywhere, the
    head's too.
    """
    layers, d = Layers.all(c.n_layers), c.d_model
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers, bias=True)
    yield from qkv(ATTENTION, c, layers, True)
    if c.flag("qk_layernorm"):
        yield from norm(f"{ATTENTION}.q_layernorm", c.split_head_dim, layers, True, "attn.q_norm")
        yield from norm(f"{ATTENTION}.k_layernorm", c.split_head_dim, layers, True, "attn.k_norm")
    yield from by_window(c, layers, c.sliding(), lambda ls, window: iter((mix(c, ls, window),)))
    yield from linear(f"{ATTENTION}.dense", d, c.n_heads * c.head_dim, "attn.o", layers, True)
    yield from mlp(f"{MLP}.", d, c.d_ff, layers, ("fc1", "fc2"))
    yield from norm("model.final_layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c), bias=True)


@family("phi3")
def phi3(c: Config) -> Parts:
    """Phi-3, 3.5 and 4-mini (arXiv 2404.14219): fused q, k, v and fused gate, up."""
    yield from pre_norm(
        c,
        lambda layers, window: fused_attention(c, layers, window),
        lambda layers: fused_swiglu(MLP, c.d_model, c.d_ff, layers),
    )


@family("bitnet")
def bitnet(c: Config) -> Parts:
    """BitNet b1.58 (arXiv 2504.12285): a further norm before each output matrix."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from qkv(ATTENTION, c, layers, bias)
        yield mix(c, layers, window)
        yield from norm(f"{ATTENTION}.attn_sub_norm", c.d_model, layers)
        yield from linear(
            f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
        )

    def ff(layers: Layers) -> Parts:
        yield from gated(c)(layers)
        yield from norm(f"{MLP}.ffn_sub_norm", c.d_ff, layers)

    yield from pre_norm(c, attend, ff)


@family("phi3small")
def phi3small(c: Config) -> Parts:
    """Phi-3-small (arXiv 2404.14219): LayerNorm, biases, interleaved gate and up, tied head."""
    d, layers, d_ff = (
        c.d_model,
        Layers.all(c.n_layers),
        c.size("d_ff", None, "ff_intermediate_size"),
    )
    width = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers, True)
    yield from linear(f"{ATTENTION}.query_key_value", width, d, "attn.qkv", layers, True)
    yield attention(layers, c.n_heads, c.n_kv_heads, c.head_dim, c.head_dim)
    yield from linear(f"{ATTENTION}.dense", d, c.n_heads * c.head_dim, "attn.o", layers, True)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers, True)
    yield from linear(f"{MLP}.up_proj", 2 * d_ff, d, "mlp.gate_up", layers, True)
    yield from linear(f"{MLP}.down_proj", d, d_ff, "mlp.down", layers, True)
    yield from norm("model.final_layernorm", d, bias=True)
    yield from lm_head(
        "lm_head",
        c.vocab,
        d,
        "model.embed_tokens.weight" if c.flag("tie_word_embeddings", True) else None,
    )


@runs("phi3")
def phi3_runs(c: Config) -> Forward:
    """Phi-3 and 4-mini: part of each head may turn, LongRoPE for the long ones."""
    return common(c, rotary=rotary(c, int(c.head_dim)))
