"""NVIDIA: Nemotron, dense, hybrid, and with a structure found by search."""

from __future__ import annotations

from typing import Any

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import (
    correction_bias,
    embed,
    experts,
    gqa,
    linear,
    lm_head,
    mlp,
    norm,
    swiglu,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP, pre_norm
from llmcalc.families.parts.scan import Scan, mamba2

_NEMOTRON = {
    "M": "mamba",
    "*": "attention",
    "E": "moe",
    "-": "mlp",
    "linear_attention": "mamba",
    "full_attention": "attention",
}


@family("nemotron_h")
def nemotron_h(c: Config) -> Parts:
    """Nemotron-H and Nemotron 3 (arXiv 2504.03624): one mixer per layer:

    Mamba 2, attention, MLP or experts.
    """
    given = (
        c.get("layers_block_type")
        or c.get("layer_types")
        or c.get("hybrid_override_pattern")
        or "ME*-"
    )
    kinds = [_NEMOTRON.get(kind, kind) for kind in given]
    if unknown := set(kinds) - set(_NEMOTRON.values()):
        raise ConfigError(f"nemotron_h: the layer kinds {sorted(map(str, unknown))} are not known")
    layers, p, d = Layers.all(len(kinds)), "backbone.layers.{layer}.mixer", c.d_model
    scan_layers, full, dense, moe = (
        layers.only(f"n_{k}_layers", [i for i, kind in enumerate(kinds) if kind == k])
        for k in ("mamba", "attention", "mlp", "moe")
    )
    heads = c.mamba_num_heads
    scan = Scan(
        Dim(heads * c.mamba_head_dim, "d_inner"),
        c.d_state,
        c.size("d_conv", None, "mamba_d_conv", "conv_kernel"),
        heads=Dim(heads, "n_ssm_heads"),
        groups=c.size("n_groups", None, "mamba_n_groups", "n_groups"),
    )
    bias, conv_bias = c.flag("use_bias"), c.flag("mamba_conv_bias", c.flag("use_conv_bias"))
    yield from embed("backbone.embeddings", c.vocab, d)
    yield from norm("backbone.layers.{layer}.norm", d, layers)
    if scan_layers.indices:
        yield from mamba2(p, d, scan, scan_layers, conv_bias, bias, bias)
    if full.indices:
        yield from gqa(p, c, full)
    if dense.indices:
        yield from mlp(f"{p}.", d, c.d_ff, dense, ("up_proj", "down_proj"), c.flag("mlp_bias"))
    if moe.indices:
        yield from nemotron_experts(c, p, moe)
    yield from norm("backbone.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d)


def nemotron_experts(c: Config, p: str, layers: Layers) -> Parts:
    """Two-matrix experts, in a latent space of their own where one is set, beside one
    shared MLP.
    """
    d, bias, n = c.d_model, c.flag("mlp_bias"), c.n_experts
    latent = c.optional("moe_latent_size")
    yield from linear(f"{p}.gate", n, d, "router", layers)
    yield from correction_bias(f"{p}.gate.e_score_correction_bias", n, layers)
    if latent:
        yield from linear(f"{p}.fc1_latent_proj", latent, d, "mlp.latent_in", layers, bias)
    one = mlp(
        f"{p}.experts.{{expert}}.",
        latent or d,
        c.d_ff_expert,
        layers,
        ("up_proj", "down_proj"),
        False,
    )
    yield from experts(one, n, c.n_active_experts)
    if latent:
        yield from linear(f"{p}.fc2_latent_proj", d, latent, "mlp.latent_out", layers, bias)
    width = c.optional("moe_shared_expert_intermediate_size") or c.d_ff
    yield from mlp(f"{p}.shared_experts.", d, width, layers, ("up_proj", "down_proj"), bias)


@family("nemotron")
def nemotron(c: Config) -> Parts:
    """Nemotron 3 and 4: LayerNorm, squared ReLU, two matrices (arXiv 2402.16819)."""
    bias = c.flag("attention_bias")

    def feed_forward(layers: Layers) -> Parts:
        yield from mlp(
            f"{MLP}.", c.d_model, c.d_ff, layers, ("up_proj", "down_proj"), c.flag("mlp_bias")
        )

    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward, bias=True
    )


@family("nemotron-nas")
def nemotron_nas(c: Config) -> Parts:
    """DeciLM and Llama-Nemotron (arXiv 2505.00949): a search left layers without attention, or with
    a narrower MLP.
    """
    blocks = c.kinds("block_configs")
    if blocks is None:
        raise ConfigError("nemotron-nas: the config has no block_configs, one per layer")
    for part in blocks:
        deci_check(part)
    layers, d = Layers.all(c.n_layers), c.d_model
    attends = layers.where("n_attention_layers", lambda i: not blocks[i]["attention"].get("no_op"))
    feeds = layers.where("n_mlp_layers", lambda i: not blocks[i]["ffn"].get("no_op"))
    bias, mlp_bias, seen = c.flag("attention_bias"), c.flag("mlp_bias"), Dim
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, attends)
    for group_size, group in attends.by(
        "groups", lambda i: blocks[i]["attention"].get("n_heads_in_group")
    ):
        n_kv = int(c.n_heads) // group_size
        raw = {**c.raw, "num_key_value_heads": n_kv}
        part = Config(raw, defaults=c.defaults)
        yield from gqa(ATTENTION, part, group, None, bias)
    yield from norm(f"{BLOCK}.post_attention_layernorm", d, feeds)
    for width, group in feeds.by("width", lambda i: deci_width(blocks[i]["ffn"], int(d))):
        yield from swiglu(MLP, d, seen(width, f"d_ff_{width}"), group, mlp_bias)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def deci_check(block: dict[str, Any]) -> None:
    """A layer of a kind that is not described is an error, not a guess."""
    attention_config, ffn = block.get("attention"), block.get("ffn")
    if not isinstance(attention_config, dict) or not isinstance(ffn, dict):
        raise ConfigError("nemotron-nas: a layer's block_configs entry lacks attention or ffn")
    if (
        attention_config.get("replace_with_linear")
        or ffn.get("replace_with_linear")
        or ffn.get("moe")
        or block.get("parallel_blocks")
    ):
        raise ConfigError(
            "nemotron-nas: layers replaced by one matrix, parallel blocks and experts are not"
            " described"
        )


def deci_width(ffn: dict[str, Any], d: int) -> int:
    """The inner width: given, or a multiple of two thirds of d_model, rounded up to 256."""
    if ffn.get("intermediate_size"):
        return int(ffn["intermediate_size"])
    return -(-int(2 * ffn["ffn_mult"] * d / 3) // 256) * 256
