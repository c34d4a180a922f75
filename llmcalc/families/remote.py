"""Families whose own code lives beside their weights: described from their published tensors, never
by running it.
"""

from __future__ import annotations

from typing import Any

from llmcalc.anatomy import Layers, Parts, rename
from llmcalc.blocks import (
    W123,
    attention,
    embed,
    experts,
    gqa,
    linear,
    lm_head,
    norm,
    swiglu,
    tie,
)
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.frame import ATTENTION, BLOCK, MLP, gated, pre_norm, routed_with_shared, split


def refuse(c: Config, key: str, what: str) -> None:
    """An error for a variant under the same model_type whose tensors are not described."""
    if c.raw.get(key):
        raise ConfigError(
            f"{c.family}: {what} ({key}) are not described",
            hint="name the checkpoint file for its exact count",
        )


@family("baichuan")
def baichuan(c: Config) -> Parts:
    """Baichuan 1 and 2 (arXiv 2309.10305): q, k and v in one matrix."""

    def attend(layers: Layers, _: Dim | None) -> Parts:
        yield from linear(f"{ATTENTION}.W_pack", 3 * c.d_model, c.d_model, "attn.qkv", layers)
        yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
        yield from linear(f"{ATTENTION}.o_proj", c.d_model, c.d_model, "attn.o", layers)

    yield from pre_norm(c, attend, gated(c), frozenset())


@family("xverse")
def xverse(c: Config) -> Parts:
    """XVERSE: Llama's structure."""
    refuse(c, "num_experts", "experts")
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c))


@family("orion")
def orion(c: Config) -> Parts:
    """Orion 14B: Llama with LayerNorm."""
    refuse(c, "num_experts", "experts")
    yield from pre_norm(
        c, lambda layers, window: gqa(ATTENTION, c, layers, window), gated(c), bias=True
    )


@family("internlm")
def internlm(c: Config) -> Parts:
    """InternLM 1: Llama with biases in attention."""
    bias = c.flag("bias", True)
    yield from pre_norm(c, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), gated(c))


@family("internlm2")
def internlm2(c: Config) -> Parts:
    """InternLM 2 and 2.5 (arXiv 2403.17297): q, k and v of each group side by side."""
    d, layers, bias = c.d_model, Layers.all(c.n_layers), c.flag("bias", True)
    p = f"{BLOCK}.attention"
    yield from embed("model.tok_embeddings", c.vocab, d)
    yield from norm(f"{BLOCK}.attention_norm", d, layers)
    yield from linear(
        f"{p}.wqkv", (c.n_heads + 2 * c.n_kv_heads) * c.head_dim, d, "attn.qkv", layers, bias
    )
    yield attention(layers, c.n_heads, c.n_kv_heads, c.head_dim, c.head_dim)
    yield from linear(f"{p}.wo", d, c.n_heads * c.head_dim, "attn.o", layers, bias)
    yield from norm(f"{BLOCK}.ffn_norm", d, layers)
    yield from swiglu(f"{BLOCK}.feed_forward", d, c.d_ff, layers, names=W123)
    yield from norm("model.norm", d)
    yield from lm_head("output", c.vocab, d, tie(c, "model.tok_embeddings.weight"))


@family("chatglm")
def chatglm(c: Config) -> Parts:
    """ChatGLM 2 and 3, GLM-4 9B in its first form: fused gate and up, two key/value groups."""
    refuse(c, "vision_config", "vision towers")
    refuse(c, "pre_seq_len", "prefix encoders")
    if "ffn_hidden_size" not in c.raw:
        raise ConfigError(
            "chatglm: the first ChatGLM (inner_hidden_size) is not described",
            hint="name its checkpoint file",
        )
    d, layers, p = c.d_model, Layers.all(c.n_layers), "transformer.encoder.layers.{layer}"
    d_h, ln = c.size("head_dim", 128, "kv_channels"), not c.flag("rmsnorm", True)
    n_kv = (
        c.size("n_kv_heads", 1, "multi_query_group_num")
        if c.flag("multi_query_attention")
        else c.n_heads
    )
    bias, qkv_bias = c.flag("add_bias_linear"), c.flag("add_bias_linear") or c.flag("add_qkv_bias")
    yield from embed("transformer.embedding.word_embeddings", c.vocab, d)
    yield from norm(f"{p}.input_layernorm", d, layers, ln)
    yield from linear(
        f"{p}.self_attention.query_key_value",
        (c.n_heads + 2 * n_kv) * d_h,
        d,
        "attn.qkv",
        layers,
        qkv_bias,
    )
    yield attention(layers, c.n_heads, n_kv, d_h, d_h)
    yield from linear(f"{p}.self_attention.dense", d, c.n_heads * d_h, "attn.o", layers, bias)
    yield from norm(f"{p}.post_attention_layernorm", d, layers, ln)
    yield from linear(f"{p}.mlp.dense_h_to_4h", 2 * c.d_ff, d, "mlp.gate_up", layers, bias)
    yield from linear(f"{p}.mlp.dense_4h_to_h", d, c.d_ff, "mlp.down", layers, bias)
    if c.flag("post_layer_norm", True):
        yield from norm("transformer.encoder.final_layernorm", d, bias=ln)
    yield from lm_head("transformer.output_layer", c.vocab, d)
    from llmcalc.blocks import tensor

    yield tensor(
        "transformer.rotary_pos_emb.inv_freq", (d_h // 4,), "state", "position", buffer=True
    )


@family("qwen")
def qwen1(c: Config) -> Parts:
    """Qwen 1 (arXiv 2309.16609): each half of the given inner width is one of the two gates."""
    refuse(c, "visual", "vision towers")
    refuse(c, "audio", "audio towers")
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_h, bias, half = (
        c.size("head_dim", 128, "kv_channels"),
        not c.flag("no_bias", True),
        c.d_ff // 2,
    )
    a = c.n_heads * d_h
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.ln_1", d, layers)
    yield from linear(f"{block}.attn.c_attn", 3 * a, d, "attn.qkv", layers, True)
    yield attention(layers, c.n_heads, c.n_heads, d_h, d_h)
    yield from linear(f"{block}.attn.c_proj", d, a, "attn.o", layers, bias)
    yield from norm(f"{block}.ln_2", d, layers)
    yield from linear(f"{block}.mlp.w1", half, d, "mlp.up", layers, bias)
    yield from linear(f"{block}.mlp.w2", half, d, "mlp.gate", layers, bias)
    yield from linear(f"{block}.mlp.c_proj", d, half, "mlp.down", layers, bias)
    yield from norm("transformer.ln_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


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


@family("openelm")
def openelm(c: Config) -> Parts:
    """OpenELM (arXiv 2404.14619): heads and inner widths that grow from layer to layer."""
    d, d_h, layers, block = (
        c.d_model,
        c.head_dim,
        Layers.all(c.n_layers),
        "transformer.layers.{layer}",
    )
    q, kv, factors = (c.kinds(k) for k in ("num_query_heads", "num_kv_heads", "ffn_multipliers"))
    if q is None or kv is None or factors is None:
        raise ConfigError(
            "openelm: the config lacks num_query_heads, num_kv_heads or ffn_multipliers, one per"
            " layer"
        )
    unit, gates = int(c.size("ffn_dim_divisor", 256)), 2 if c.flag("ffn_with_glu", True) else 1
    yield from embed("transformer.token_embeddings", c.vocab, d)
    yield from norm(f"{block}.attn_norm", d, layers)
    for (n, n_kv), group in layers.by("heads", lambda i: (q[i], kv[i])):
        heads, kv_heads = Dim(n, f"n_heads_{n}"), Dim(n_kv, f"n_kv_heads_{n_kv}")
        yield from linear(
            f"{block}.attn.qkv_proj", (heads + 2 * kv_heads) * d_h, d, "attn.qkv", group
        )
        yield attention(group, heads, kv_heads, d_h, d_h)
        yield from linear(f"{block}.attn.out_proj", d, heads * d_h, "attn.o", group)
    if c.flag("normalize_qk_projections", True):
        for name in "qk":
            yield from norm(f"{block}.attn.{name}_norm", d_h, layers, role=f"attn.{name}_norm")
    yield from norm(f"{block}.ffn_norm", d, layers)
    for width, group in layers.by("width", lambda i: divisible(factors[i] * int(d), unit)):
        d_ff = Dim(width, f"d_ff_{width}")
        yield from linear(f"{block}.ffn.proj_1", gates * d_ff, d, "mlp.gate_up", group)
        yield from linear(f"{block}.ffn.proj_2", d, d_ff, "mlp.down", group)
    yield from norm("transformer.norm", d)
    shared = c.flag("share_input_output_layers", True)
    yield from lm_head(
        "transformer.classifier",
        c.vocab,
        d,
        "transformer.token_embeddings.weight" if shared else None,
    )


def divisible(value: float, unit: int) -> int:
    """The multiple of ``unit`` nearest to a value, never more than a tenth below it (MobileNet's
    rule).
    """
    nearest = max(unit, int(value + unit / 2) // unit * unit)
    return nearest + unit if nearest < 0.9 * value else nearest


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


@family("deepseek")
def deepseek_v1(c: Config) -> Parts:
    """DeepSeekMoE 16B (arXiv 2401.06066) and DeepSeek LLM: ordinary attention, routed and shared
    experts.
    """
    bias, first, every = (
        c.flag("attention_bias"),
        c.size("n_dense_layers", 0, least=0),
        c.size("moe_layer_freq", 1),
    )
    sparse = c.optional("n_experts")

    def moe(layers: Layers) -> Parts:
        whole = (
            c
            if c.raw.get("n_shared_experts") is not None
            else Config({**c.raw, "n_shared_experts": 0}, defaults=c.defaults)
        )
        yield from routed_with_shared(whole, layers, None)

    yield from pre_norm(
        c,
        lambda layers, window: gqa(ATTENTION, c, layers, window, bias),
        split(lambda i: not sparse or i < first or i % every != 0, gated(c), moe),
    )


@family("minicpm")
def minicpm(c: Config) -> Parts:
    """MiniCPM 1 (arXiv 2404.06395):

    Llama's structure, tied unless the config says otherwise; Mixtral-like experts.
    """
    bias = c.flag("attention_bias")
    tied = Config({"tie_word_embeddings": True, **c.raw}, defaults=c.defaults)

    def moe(layers: Layers) -> Parts:
        yield from linear(f"{MLP}.gate", c.n_experts, c.d_model, "router", layers)
        one = swiglu(f"{MLP}.experts.{{expert}}", c.d_model, c.d_ff, layers, names=W123)
        yield from experts(one, c.n_experts, c.n_active_experts)

    feed_forward = moe if c.size("n_experts", 0, least=0) else gated(c)
    yield from pre_norm(
        tied, lambda layers, window: gqa(ATTENTION, c, layers, window, bias), feed_forward
    )


@family("minimax_m3")
def minimax_m3_text(c: Config) -> Parts:
    """MiniMax-M3's language model under its published names.

    The vision tower of its files is not counted.
    """
    from llmcalc.families.moe import minimax_m3

    c.notes.append(
        "the published file also holds a vision tower, which this config does not describe and"
        " which is not counted"
    )
    fused = minimax_m3(c)
    yield from rename(fused, (".self_attn.indexer.", ".self_attn.index_"))
