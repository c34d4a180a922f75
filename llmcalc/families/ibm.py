"""IBM: Granite, dense, with experts and hybrid; Bamba."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import embed, gqa, linear, lm_head, norm, stacked, swiglu, tensor, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.families import family, runs
from llmcalc.families.llama import llama, llama_runs
from llmcalc.families.parts.frame import ATTENTION, BLOCK, gated, pre_norm
from llmcalc.families.parts.hybrid import MAMBA, attention_in, mamba2_scan, two_kinds
from llmcalc.families.parts.routing import SPARSE
from llmcalc.families.parts.running import number, router
from llmcalc.families.parts.scan import expanded, mamba2

if TYPE_CHECKING:
    from llmcalc.forward import Forward


def granite_experts(c: Config, layers: Layers) -> Parts:
    """Granite's experts: gate and up in one tensor, all experts stacked."""
    p, d, n, k = SPARSE, c.d_model, c.n_experts, c.n_active_experts
    yield from linear(f"{p}.router.layer", n, d, "router", layers)
    yield from stacked(linear(f"{p}.input_linear", 2 * c.d_ff, d, "mlp.gate_up", layers), n, k)
    yield from stacked(linear(f"{p}.output_linear", d, c.d_ff, "mlp.down", layers), n, k)
    shared = c.optional("shared_intermediate_size")
    if shared:
        yield from shared_mlp(c, shared, layers)


def shared_mlp(c: Config, width: Dim, layers: Layers) -> Parts:
    """Granite's MLP that every token passes, gate and up in one matrix."""
    yield from linear(
        f"{BLOCK}.shared_mlp.input_linear", 2 * width, c.d_model, "mlp.gate_up", layers
    )
    yield from linear(f"{BLOCK}.shared_mlp.output_linear", c.d_model, width, "mlp.down", layers)


@family("granitemoe", "granitemoeshared")
def granitemoe(c: Config) -> Parts:
    """Granite with experts, and with a shared one where its width is not zero."""
    bias = c.flag("attention_bias")
    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        lambda layers: granite_experts(c, layers),
    )


@family("granitemoe_swa")
def granitemoe_swa(c: Config) -> Parts:
    """Granite with experts, windows and a learned sink per head."""
    bias, n, k = c.flag("attention_bias"), c.n_experts, c.n_active_experts

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    def feed_forward(layers: Layers) -> Parts:
        yield from linear(f"{SPARSE}.router", n, c.d_model, "router", layers)
        gate_up = tensor(
            f"{SPARSE}.experts.gate_up_proj",
            (2 * c.d_ff, c.d_model),
            "matmul",
            "mlp.gate_up",
            layers,
        )
        down = tensor(
            f"{SPARSE}.experts.down_proj", (c.d_model, c.d_ff), "matmul", "mlp.down", layers
        )
        yield from stacked(iter((gate_up, down)), n, k)
        if c.optional("shared_intermediate_size"):
            yield from shared_mlp(c, c.shared_intermediate_size, layers)

    yield from pre_norm(c, attend, feed_forward, c.sliding(lambda i: i % 4 != 0))


@family("bamba")
def bamba(c: Config) -> Parts:
    """Bamba: Mamba 2 with attention in listed layers, an MLP in all."""
    d, layers, listed = c.d_model, Layers.all(c.n_layers), c.get("attn_layer_indices") or []
    linear_layers, full = two_kinds(c, lambda i: i not in listed)
    bias = c.flag("mamba_proj_bias")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        scan = mamba2_scan(c, expanded(c, "mamba_expand"))
        yield from mamba2(MAMBA, d, scan, linear_layers, c.flag("mamba_conv_bias"), bias, bias)
    yield from attention_in(c, full, c.flag("attention_bias"))
    yield from norm(f"{BLOCK}.pre_ff_layernorm", d, layers)
    yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, c.flag("mlp_bias"))
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("granitemoehybrid")
def granite_hybrid(c: Config) -> Parts:
    """Granite 4:

    Mamba 2 with attention in some layers, experts where there are any, a shared MLP always.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    kinds = c.kinds("layer_types") or c.kinds("layers_block_type") or ["mamba"] * c.layers
    linear_layers, full = two_kinds(c, lambda i: kinds[i] in ("mamba", "linear_attention"))
    bias = c.flag("mamba_proj_bias")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    if linear_layers.indices:
        scan = mamba2_scan(c, expanded(c, "mamba_expand"))
        yield from mamba2(MAMBA, d, scan, linear_layers, c.flag("mamba_conv_bias"), bias, bias)
    yield from attention_in(c, full, c.flag("attention_bias"))
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, layers)
    if c.size("n_experts", 0, least=0):
        yield from granite_experts(c, layers)
    else:
        yield from shared_mlp(c, c.shared_intermediate_size, layers)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("granite_swa")
def granite_swa(c: Config) -> Parts:
    """Granite with windows and a learned sink per head in every layer."""
    bias = c.flag("attention_bias")

    def attend(layers: Layers, window: Dim | None) -> Parts:
        yield from gqa(ATTENTION, c, layers, window, bias)
        yield tensor(f"{ATTENTION}.sinks", (c.n_heads,), "add", "attn.sinks", layers)

    yield from pre_norm(c, attend, gated(c, c.flag("mlp_bias")), c.sliding(lambda i: i % 4 != 0))


@runs("granite", "granitemoe", "granitemoeshared")
def granite_runs(c: Config) -> Forward:
    """Granite: four multipliers; with experts, scores are taken over the chosen ones."""
    return replace(
        llama_runs(c),
        scale=number(c, "attention_multiplier"),
        embed_scale=number(c, "embedding_multiplier"),
        residual_scale=number(c, "residual_multiplier"),
        logit_scale=1 / number(c, "logits_scaling"),
        router=router(before=False),
    )


family("granite", where=__name__)(llama)  # Llama's parts; what multiplies them is above
