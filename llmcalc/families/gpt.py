"""The GPT line: learned positions or rotary ones, LayerNorm with bias, the two-matrix MLP."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from llmcalc.anatomy import Layers, Parts
from llmcalc.blocks import attention, conv1d_gpt2, embed, linear, lm_head, mlp, norm, tie
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family


@family("gpt2")
def gpt2(c: Config) -> Parts:
    """GPT-2 and GPT-3: Conv1D storage, fused q, k and v, tied head (Radford et al. 2019)."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "h.{layer}"
    d_ff = c.size("d_ff", 4 * d)
    yield from embed("wte", c.vocab, d)
    yield from embed("wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    yield from conv1d_gpt2(f"{block}.attn.c_attn", d, 3 * d, "attn.qkv", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.head_dim, c.head_dim)
    yield from conv1d_gpt2(f"{block}.attn.c_proj", d, d, "attn.o", layers)
    if c.flag("add_cross_attention"):
        yield from norm(f"{block}.ln_cross_attn", d, layers, bias=True)
        yield from conv1d_gpt2(f"{block}.crossattention.q_attn", d, d, "cross.q", layers)
        yield from conv1d_gpt2(f"{block}.crossattention.c_attn", d, 2 * d, "cross.kv", layers)
        yield from conv1d_gpt2(f"{block}.crossattention.c_proj", d, d, "cross.o", layers)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from conv1d_gpt2(f"{block}.mlp.c_fc", d, d_ff, "mlp.up", layers)
    yield from conv1d_gpt2(f"{block}.mlp.c_proj", d_ff, d, "mlp.down", layers)
    yield from norm("ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "wte.weight"))


@family("gpt_bigcode")
def gpt_bigcode(c: Config) -> Parts:
    """StarCoder (arXiv 2305.06161):

    GPT-2 with ordinary matrices, one key/value head unless told otherwise.
    """
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_ff, d_h = c.size("d_ff", 4 * d), c.split_head_dim
    n_kv = Dim(1, "n_kv_heads") if c.flag("multi_query") else c.n_heads
    width = d + 2 * n_kv * d_h if c.flag("multi_query") else 3 * d
    yield from embed("transformer.wte", c.vocab, d)
    yield from embed("transformer.wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    yield from linear(f"{block}.attn.c_attn", width, d, "attn.qkv", layers, True)
    yield attention(layers, c.n_heads, n_kv, d_h, d_h)
    yield from linear(f"{block}.attn.c_proj", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("c_fc", "c_proj"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


@family("gpt_neo")
def gpt_neo(c: Config) -> Parts:
    """GPT-Neo: every other layer masks to a window, which the cache does not use."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    d_ff = c.size("d_ff", 4 * d)
    yield from embed("transformer.wte", c.vocab, d)
    yield from embed("transformer.wpe", c.max_context, d, "embed.position")
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    for name in ("q", "k", "v"):
        yield from linear(f"{block}.attn.attention.{name}_proj", d, d, f"attn.{name}", layers)
    kinds = _gpt_neo_kinds(c)
    local, others = layers.split("local", lambda i: kinds[i] == "local")
    mixer = attention(others, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield mixer
    yield replace(mixer, layers=local, sight=Dim(c.size("window_size"), "window"))
    yield from linear(f"{block}.attn.attention.out_proj", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.ln_2", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("c_fc", "c_proj"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


def _gpt_neo_kinds(c: Config) -> list[str]:
    """``global`` or ``local`` per layer, from ``attention_types`` = [[kinds, how often], ...], else
    alternating.
    """
    listed = c.kinds("attention_layers")
    if listed is not None:
        return [str(kind) for kind in listed]
    groups = c.get("attention_types") or [[["global", "local"], -(-c.layers // 2)]]
    try:
        named = (str(kind) for pattern, times in groups for _ in range(times) for kind in pattern)
        kinds = list(islice(named, int(c.layers)))
    except (TypeError, ValueError):
        raise ConfigError("gpt_neo: attention_types is not a list of [kinds, how often]") from None
    if len(kinds) < c.layers:
        raise ConfigError(
            f"gpt_neo: attention_types names {len(kinds)} kinds for {c.layers} layers"
        )
    return kinds


@family("gptj", "codegen")
def gptj(c: Config) -> Parts:
    """GPT-J and CodeGen: rotary positions, parallel residual behind one LayerNorm, a bias on the
    head.
    """
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.ln_1", d, layers, bias=True)
    if c.family == "codegen":
        yield from linear(f"{block}.attn.qkv_proj", 3 * d, d, "attn.qkv", layers)
    else:
        for name in ("q", "k", "v"):
            yield from linear(f"{block}.attn.{name}_proj", d, d, f"attn.{name}", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.attn.out_proj", d, d, "attn.o", layers)
    yield from mlp(f"{block}.mlp.", d, c.size("d_ff", 4 * d), layers, ("fc_in", "fc_out"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"), bias=True)


def joint_attention(p: str, c: Config, layers: Layers, bias: bool) -> Parts:
    """Multi-head attention with q, k and v interleaved by head in one matrix, GPT-NeoX's and
    BLOOM's.
    """
    d = c.d_model
    yield from linear(f"{p}.query_key_value", 3 * d, d, "attn.qkv", layers, bias)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{p}.dense", d, d, "attn.o", layers, bias)


@family("gpt_neox")
def gpt_neox(c: Config) -> Parts:
    """GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373)."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "gpt_neox.layers.{layer}"
    yield from embed("gpt_neox.embed_in", c.vocab, d)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from joint_attention(f"{block}.attention", c, layers, c.flag("attention_bias"))
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, c.d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("gpt_neox.final_layer_norm", d, bias=True)
    yield from lm_head("embed_out", c.vocab, d, tie(c, "gpt_neox.embed_in.weight"))


@family("bloom")
def bloom(c: Config) -> Parts:
    """BLOOM (arXiv 2211.05100): ALiBi positions, a norm on the embedding."""
    c = (
        Config({**c.raw, "hidden_size": c.raw["n_embed"]}, defaults=c.defaults)
        if c.raw.get("n_embed")
        else c
    )
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.h.{layer}"
    yield from embed("transformer.word_embeddings", c.vocab, d)
    yield from norm("transformer.word_embeddings_layernorm", d, bias=True)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from joint_attention(f"{block}.self_attention", c, layers, True)
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, 4 * d, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.word_embeddings.weight"))


@family("mpt")
def mpt(c: Config) -> Parts:
    """MPT: ALiBi, no biases, four times the width in the MLP."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "transformer.blocks.{layer}"
    yield from embed("transformer.wte", c.vocab, d)
    yield from norm(f"{block}.norm_1", d, layers)
    yield from linear(f"{block}.attn.Wqkv", 3 * d, d, "attn.qkv", layers)
    yield attention(layers, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim)
    yield from linear(f"{block}.attn.out_proj", d, d, "attn.o", layers)
    yield from norm(f"{block}.norm_2", d, layers)
    yield from mlp(f"{block}.ffn.", d, 4 * d, layers, ("up_proj", "down_proj"), False)
    yield from norm("transformer.norm_f", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.wte.weight"))


@family("persimmon")
def persimmon(c: Config) -> Parts:
    """Persimmon: joint q, k, v, LayerNorm on queries and keys, squared ReLU."""
    d, layers, block = c.d_model, Layers.all(c.n_layers), "model.layers.{layer}"
    p, d_h = f"{block}.self_attn", c.split_head_dim
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from norm(f"{block}.input_layernorm", d, layers, bias=True)
    yield from linear(f"{p}.query_key_value", 3 * d, d, "attn.qkv", layers, True)
    if c.flag("qk_layernorm"):
        yield from norm(f"{p}.q_layernorm", d_h, layers, True, "attn.q_norm")
        yield from norm(f"{p}.k_layernorm", d_h, layers, True, "attn.k_norm")
    yield attention(layers, c.n_heads, c.n_heads, d_h, d_h)
    yield from linear(f"{p}.dense", d, d, "attn.o", layers, True)
    yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    yield from mlp(f"{block}.mlp.", d, c.d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"))
    yield from norm("model.final_layernorm", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


@family("falcon")
def falcon(c: Config) -> Parts:
    """Falcon (arXiv 2311.16867): one or two norms before a parallel block, or the serial one of the
    RW models.
    """
    c = (
        Config({**c.raw, "hidden_size": c.raw["n_embed"]}, defaults=c.defaults)
        if c.raw.get("n_embed")
        else c
    )
    d, layers, block, bias = (
        c.d_model,
        Layers.all(c.n_layers),
        "transformer.h.{layer}",
        c.flag("bias"),
    )
    new, d_h = c.flag("new_decoder_architecture"), c.split_head_dim
    n_kv = c.n_kv_heads if new else Dim(1, "n_kv_heads") if c.flag("multi_query") else c.n_heads
    width = (c.n_heads + 2 * n_kv) * d_h if new or c.flag("multi_query") else 3 * d
    two = c.get("num_ln_in_parallel_attn") == 2 or (
        c.get("num_ln_in_parallel_attn") is None and new
    )
    first = ("ln_attn", "ln_mlp") if c.flag("parallel_attn") and two else ("input_layernorm",)
    yield from embed("transformer.word_embeddings", c.vocab, d)
    for name in first:
        yield from norm(f"{block}.{name}", d, layers, bias=True)
    yield from linear(f"{block}.self_attention.query_key_value", width, d, "attn.qkv", layers, bias)
    yield replace(
        attention(layers, c.n_heads, n_kv, d_h, d_h), cached_heads=c.n_heads if new else None
    )
    yield from linear(f"{block}.self_attention.dense", d, d, "attn.o", layers, bias)
    if not c.flag("parallel_attn"):
        yield from norm(f"{block}.post_attention_layernorm", d, layers, bias=True)
    d_ff = c.size("d_ff", 4 * d, "ffn_hidden_size")
    yield from mlp(f"{block}.mlp.", d, d_ff, layers, ("dense_h_to_4h", "dense_4h_to_h"), bias)
    yield from norm("transformer.ln_f", d, bias=True)
    yield from lm_head("lm_head", c.vocab, d, tie(c, "transformer.word_embeddings.weight"))
