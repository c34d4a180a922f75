"""AI21: Jamba, attention in one layer of eight among Mamba's."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import embed, experts, linear, lm_head, norm, swiglu, tie
from llmcalc.config import Config
from llmcalc.families import family
from llmcalc.families.parts.frame import BLOCK
from llmcalc.families.parts.hybrid import MAMBA, attention_in, two_kinds
from llmcalc.families.parts.scan import Scan, dt_rank, expanded, mamba1


@family("jamba")
def jamba(c: Config) -> Parts:
    """Jamba (arXiv 2403.19887): one attention layer in eight, experts in every other layer."""
    d, layers, ff = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.feed_forward"
    period, offset = c.attn_layer_period, c.attn_layer_offset
    linear_layers, full = two_kinds(c, lambda i: i % period != offset)
    sparse = [
        i
        for i in layers.indices
        if i % c.expert_layer_period == c.expert_layer_offset and c.n_experts > 1
    ]
    moe, dense = (
        layers.only("n_moe_layers", sparse),
        layers.where("n_dense_layers", lambda i: i not in sparse),
    )
    scan = Scan(expanded(c, "mamba_expand"), c.d_state, c.d_conv, dt_rank(c, "mamba_dt_rank"))
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from mamba1(
        MAMBA, d, scan, linear_layers, c.flag("mamba_conv_bias"), c.flag("mamba_proj_bias")
    )
    for name, width in (("dt", scan.dt_rank), ("b", scan.d_state), ("c", scan.d_state)):
        yield from norm(f"{MAMBA}.{name}_layernorm", width, linear_layers, role="ssm.norm")
    yield from attention_in(c, full)
    yield from norm(f"{BLOCK}.pre_ff_layernorm", d, layers)
    if moe.indices:
        yield from linear(f"{ff}.router", c.n_experts, d, "router", moe)
        yield from experts(
            swiglu(f"{ff}.experts.{{expert}}", d, c.d_ff, moe), c.n_experts, c.n_active_experts
        )
    if dense.indices:
        yield from swiglu(ff, d, c.d_ff, dense)
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))
