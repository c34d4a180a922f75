"""Hybrids: attention in some layers, a state-space model in others, or both at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import (
    correction_bias,
    embed,
    experts,
    gqa,
    linear,
    lm_head,
    mix,
    mlp,
    norm,
    qkv,
    state_mixer,
    swiglu,
    tensor,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.experts import granite_experts, shared_mlp
from llmcalc.families.frame import ATTENTION, BLOCK
from llmcalc.families.mamba import Scan, conv, dt_rank, expanded, mamba1, mamba2

MAMBA = f"{BLOCK}.mamba"


def two_kinds(c: Config, is_linear: Callable[[int], bool]) -> tuple[Layers, Layers]:
    """The recurrent layers and the attention layers."""
    layers = Layers.all(c.n_layers)
    return layers.where("n_linear_layers", is_linear), layers.where(
        "n_attention_layers", lambda i: not is_linear(i)
    )


def attention_in(c: Config, layers: Layers, bias: bool = False) -> Parts:
    """Grouped-query attention in some layers, if there are any."""
    return gqa(ATTENTION, c, layers, None, bias) if layers.indices else iter(())


def mamba2_scan(c: Config, d_inner: Dim) -> Scan:
    """Mamba 2's sizes under the ``mamba_`` keys."""
    heads = c.size("n_ssm_heads", None, "mamba_n_heads")
    groups = c.size("n_groups", None, "mamba_n_groups")
    if c.get("mamba_d_head") not in (None, "auto") and c.mamba_d_head * heads != d_inner:
        raise ConfigError(
            f"{c.family}: mamba_d_head x mamba_n_heads is not the inner width {int(d_inner)}"
        )
    return Scan(d_inner, c.d_state, c.d_conv, heads=heads, groups=groups)


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


@family("falcon_h1")
def falcon_h1(c: Config) -> Parts:
    """Falcon-H1 (arXiv 2507.22448): Mamba 2 and attention side by side in every layer."""
    d, layers = c.d_model, Layers.all(c.n_layers)
    given = c.optional("mamba_d_ssm")
    scan = mamba2_scan(c, Dim(given, "d_inner") if given else expanded(c, "mamba_expand"))
    in_bias, out_bias = c.flag("mamba_proj_bias"), c.flag("projectors_bias")
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, layers)
    yield from mamba2(
        MAMBA,
        d,
        scan,
        layers,
        c.flag("mamba_conv_bias"),
        in_bias,
        out_bias,
        c.flag("mamba_rms_norm"),
    )
    yield from gqa(ATTENTION, c, layers, None, c.flag("attention_bias"))
    yield from norm(f"{BLOCK}.pre_ff_layernorm", d, layers)
    yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, c.flag("mlp_bias"))
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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


def zamba_blocks(
    c: Config, kinds: list[str], shared: Callable[[Layers, int], Parts], blocks: int
) -> Parts:
    """The shared transformer blocks: stored once per block where weights are tied, else in every
    hybrid layer.
    """
    layers = Layers.all(c.n_layers)
    hybrid = [i for i in layers.indices if kinds[i] == "hybrid"]
    for number, _ in enumerate(hybrid[:blocks]):
        users = hybrid[number::blocks]
        owner = users[:1] if c.tied else users
        name = "n_shared_blocks" if c.tied else "n_hybrid_layers"
        yield from shared(layers.only(name, owner), number)


def zamba_kinds(c: Config, fallback: list[str]) -> list[str]:
    """Which layers are hybrid, in either spelling."""
    given: Any = c.get("layers_block_type") or c.get("layer_types")
    if isinstance(given, list) and len(given) != c.n_layers:
        raise ConfigError(
            f"{c.family}: the layer types have {len(given)} entries for {int(c.n_layers)} layers"
        )
    return given or fallback


def kv_in(c: Config, layers: Layers, d_h: Dim) -> Parts:
    """The caches of attention in some layers, whose weights are shared but whose tokens are not."""
    from llmcalc.blocks import attention

    yield attention(layers, c.n_heads, c.n_kv_heads, d_h, d_h)


@family("zamba")
def zamba(c: Config) -> Parts:
    """Zamba (arXiv 2405.16712): one transformer block shared by every sixth layer, Mamba heads
    beneath it.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    period, offset = c.size("attn_layer_period", 6), c.size("attn_layer_offset", 4, least=0)
    pattern = ["linear", "linear", "hybrid"] + [
        "hybrid" if i % period == offset else "linear" for i in range(c.layers - 3)
    ]
    kinds = zamba_kinds(c, pattern)
    wide = c.optional("attention_hidden_size") or 2 * d
    d_h = c.optional("attention_head_dim", "attention_head_dim", "head_dim") or Dim(
        2 * int(d) // int(c.n_heads), "head_dim"
    )
    hybrid = layers.where("n_hybrid_layers", lambda i: kinds[i] == "hybrid")
    plain = layers.where("n_linear_layers", lambda i: kinds[i] != "hybrid")

    def shared(owners: Layers, _: int) -> Parts:
        p = f"{BLOCK}.shared_transf"
        kv = c.n_kv_heads * d_h
        yield from norm(f"{p}.input_layernorm", wide, owners)
        for name, out in (("q", c.n_heads * d_h), ("k", kv), ("v", kv)):
            yield from linear(f"{p}.self_attn.{name}_proj", out, wide, f"attn.{name}", owners)
        yield from linear(f"{p}.self_attn.o_proj", d, c.n_heads * d_h, "attn.o", owners)
        yield from norm(f"{p}.pre_ff_layernorm", d, owners)
        yield from swiglu(f"{p}.feed_forward", d, c.d_ff, owners)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, plain)
    yield from zamba_heads(c, f"{BLOCK}.mamba", plain)
    yield from zamba_blocks(c, kinds, shared, 1)
    yield from kv_in(c, hybrid, d_h)
    yield from linear(f"{BLOCK}.linear", d, d, "attn.join", hybrid)
    yield from norm(f"{BLOCK}.mamba_decoder.input_layernorm", d, hybrid)
    yield from zamba_heads(c, f"{BLOCK}.mamba_decoder.mamba", hybrid)
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def zamba_heads(c: Config, p: str, layers: Layers) -> Parts:
    """Zamba's Mamba 1 with the inner width cut into heads, each with its own projections."""
    d, n, d_inner = c.d_model, c.n_mamba_heads, expanded(c, "mamba_expand")
    width, rank, bias = d_inner // n, dt_rank(c, "mamba_dt_rank"), c.flag("mamba_proj_bias")
    yield from linear(f"{p}.in_proj", 2 * d_inner, d, "ssm.in", layers, bias)
    yield from conv(f"{p}.conv1d", d_inner, c.d_conv, layers, c.flag("mamba_conv_bias"))
    yield tensor(f"{p}.x_proj_weight", (n, rank + 2 * c.d_state, width), "matmul", "ssm.x", layers)
    yield tensor(f"{p}.dt_proj_weight", (n, width, rank), "matmul", "ssm.dt", layers)
    yield tensor(f"{p}.dt_proj_bias", (n, width), "add", "ssm.dt", layers)
    yield tensor(f"{p}.A_log", (n, width, c.d_state), "state", "ssm.a", layers)
    yield tensor(f"{p}.D", (n, width), "scale", "ssm.d", layers)
    yield state_mixer(
        layers, State("conv", d_inner, c.d_conv), State("recurrent", d_inner, c.d_state, "float32")
    )
    yield from linear(f"{p}.out_proj", d, d_inner, "ssm.out", layers, bias)


@family("zamba2")
def zamba2(c: Config) -> Parts:
    """Zamba2 (arXiv 2411.15242): shared blocks in turn, each with an adapter per use,
    over Mamba 2.
    """
    d, layers = c.d_model, Layers.all(c.n_layers)
    default = [*"m" * 6, *"hmmmmm" * 6, "h", *"mmmm", "h", *"mmm", "h", *"mm"]
    kinds = zamba_kinds(c, ["hybrid" if k == "h" else "mamba" for k in default])
    hybrid = layers.where("n_hybrid_layers", lambda i: kinds[i] == "hybrid")
    plain = layers.where("n_linear_layers", lambda i: kinds[i] != "hybrid")
    blocks, rank, bias = c.num_mem_blocks, c.adapter_rank, c.flag("add_bias_linear")
    wide, d_h = 2 * d, Dim(2 * int(d) // int(c.n_heads), "head_dim")
    d_ff = c.optional("d_ff") or 4 * d
    d_inner = expanded(c, "mamba_expand")
    heads, groups = (
        c.size("n_ssm_heads", None, "n_mamba_heads"),
        c.size("n_groups", None, "mamba_ngroups"),
    )
    scan = Scan(d_inner, c.d_state, c.d_conv, heads=heads, groups=groups)

    def shared(owners: Layers, block: int) -> Parts:
        p, kv = f"{BLOCK}.shared_transformer", c.n_kv_heads * d_h
        uses = range(block, len(hybrid.indices), int(blocks))
        yield from norm(f"{p}.input_layernorm", wide, owners)
        for name, out in (("q", c.n_heads * d_h), ("k", kv), ("v", kv)):
            yield from linear(f"{p}.self_attn.{name}_proj", out, wide, f"attn.{name}", owners)
        yield from linear(f"{p}.self_attn.o_proj", d, c.n_heads * d_h, "attn.o", owners)
        if c.flag("use_shared_attention_adapter"):
            for name in "qkv":
                for use in uses:
                    adapter = f"{p}.self_attn.linear_{name}_adapter_list.{use}"
                    yield from linear(f"{adapter}.0", rank, wide, "adapter", owners)
                    yield from linear(f"{adapter}.1", wide, rank, "adapter", owners)
        yield from norm(f"{p}.pre_ff_layernorm", d, owners)
        yield from linear(
            f"{p}.feed_forward.gate_up_proj", 2 * d_ff, d, "mlp.gate_up", owners, bias
        )
        yield from linear(f"{p}.feed_forward.down_proj", d, d_ff, "mlp.down", owners, bias)
        for use in uses:
            adapter = f"{p}.feed_forward.gate_up_proj_adapter_list.{use}"
            yield from linear(f"{adapter}.0", rank, d, "adapter", owners)
            yield from linear(f"{adapter}.1", 2 * d_ff, rank, "adapter", owners)

    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.input_layernorm", d, plain)
    yield from mamba2(f"{BLOCK}.mamba", d, scan, plain, True, bias, bias)
    yield from zamba_blocks(c, kinds, shared, int(blocks))
    yield from kv_in(c, hybrid, d_h)
    yield from linear(f"{BLOCK}.linear", d, d, "attn.join", hybrid)
    yield from norm(f"{BLOCK}.mamba_decoder.input_layernorm", d, hybrid)
    yield from mamba2(f"{BLOCK}.mamba_decoder.mamba", d, scan, hybrid, True, bias, bias)
    yield from norm("model.final_layernorm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


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


@family("recurrent_gemma")
def recurrent_gemma(c: Config) -> Parts:
    """RecurrentGemma (arXiv 2404.07839): two gated linear recurrences to one layer of local
    attention.
    """
    d, layers, p = c.d_model, Layers.all(c.n_layers), f"{BLOCK}.temporal_block"
    pattern = c.get("block_types") or ["recurrent", "recurrent", "attention"]
    recurrent, full = two_kinds(c, lambda i: pattern[i % len(pattern)] == "recurrent")
    w, n, d_conv = c.optional("lru_width") or d, c.n_heads, c.size("d_conv", 4, "conv1d_width")
    window = c.size("window", None, "sliding_window", "attention_window_size")
    half = c.d_ff // 2
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{BLOCK}.temporal_pre_norm", d, layers)
    for name in ("linear_y", "linear_x"):
        yield from linear(f"{p}.{name}", w, d, "ssm.in", recurrent, True)
    yield from conv(f"{p}.conv_1d", w, d_conv, recurrent, True)
    yield tensor(f"{p}.rg_lru.recurrent_param", (w,), "state", "ssm.a", recurrent)
    for name in ("input_gate", "recurrent_gate"):
        yield tensor(f"{p}.rg_lru.{name}_weight", (n, w // n, w // n), "matmul", "ssm.x", recurrent)
        yield tensor(f"{p}.rg_lru.{name}_bias", (n, w // n), "add", "ssm.x", recurrent)
    yield state_mixer(
        recurrent, State("conv", w, d_conv - 1), State("recurrent", w, Dim(1), "float32")
    )
    yield from linear(f"{p}.linear_out", d, w, "ssm.out", recurrent, True)
    if full.indices:
        yield from qkv(p, c, full, c.flag("attention_bias"))
        yield mix(c, full, window)
        yield from linear(f"{p}.o_proj", d, c.n_heads * c.head_dim, "attn.o", full, True)
    yield from norm(f"{BLOCK}.channel_pre_norm", d, layers)
    yield from swiglu(f"{BLOCK}.mlp_block", d, half, layers, True)
    yield from norm("model.final_norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))
