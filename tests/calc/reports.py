"""Turns a public report about an engine into a call: by rule, never by its id.

A record names an engine, a model's sizes, the settings, and one printed number. ``answer`` returns
what llmcalc says for it, or raises ``Skip`` with the reason why the commands do not cover it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from llmcalc.anatomy import Anatomy, Layers, Mixer, State
from llmcalc.blocks import attention
from llmcalc.dims import Dim
from llmcalc.engines import ENGINES, choose
from llmcalc.engines.cache import Cache, Load
from llmcalc.families import anatomy, config_for
from llmcalc.formats.element import DType, dtype
from llmcalc.formats.file_type import mix
from llmcalc.parallel import rank_params
from llmcalc.questions.params import parameters
from llmcalc.questions.recipe import Recipe
from llmcalc.questions.training import train, zero_bytes

GIB = 2**30


class Skip(Exception):
    """A record that the commands do not cover, with the reason."""


def number(record: dict[str, Any]) -> float:
    """What llmcalc says for a record of the field."""
    answers = {
        "kv_bytes": kv_bytes,
        "k_bytes": lambda r: side_bytes(r, "keys"),
        "v_bytes": lambda r: side_bytes(r, "values"),
        "kv_bytes_per_token": per_token,
        "kv_tokens": kv_tokens,
        "kv_blocks": kv_blocks,
        "cpu_blocks": kv_blocks,
        "kv_block_bytes": block_bytes,
        "recurrent_state_bytes": state_bytes,
        "attention_block_tokens": lambda r: float(cache(r).facts["block_size"]),
        "params": params,
        "weights_bytes": weights_bytes,
        "training_bytes": training_bytes,
        "train_flops": train_flops,
    }
    if record["quantity"] not in answers:
        raise Skip(f"{record['quantity']} is no quantity of these commands")
    return float(answers[record["quantity"]](record))


def get(config: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        if isinstance(config.get(key), int):
            return int(config[key])
    return None


def layers(n: int, name: str = "n_layers") -> Layers:
    return Layers.all(n, name)


def mixers(record: dict[str, Any]) -> list[Mixer]:
    """What the record's model keeps between tokens."""
    c, flags = record["config"], record["flags"]
    n, heads = get(c, "num_hidden_layers", "layers"), get(c, "num_attention_heads", "heads")
    kv, d_h = get(c, "num_key_value_heads", "kv_heads"), get(c, "head_dim")
    out: list[Mixer] = []
    if "kv_lora_rank" in c and n:
        return [latent(record, n)]
    if "linear_layers" in c:
        out.append(delta(c, c["linear_layers"]))
    if "d_inner" in c and n:
        state = State("recurrent", Dim(c["d_inner"]), Dim(c["d_state"]))
        return [
            Mixer(
                "state",
                layers(n),
                states=(State("conv", Dim(c["d_inner"]), Dim(c["d_conv"])), state),
            )
        ]
    if "mamba_d_ssm" in c and n:
        inner, wide = (
            c["mamba_d_ssm"],
            c["mamba_d_ssm"] + 2 * c["mamba_n_groups"] * c["mamba_d_state"],
        )
        states = (
            State("conv", Dim(wide), Dim(c["mamba_d_conv"])),
            State("recurrent", Dim(inner), Dim(c["mamba_d_state"])),
        )
        out.append(Mixer("state", layers(n), states=states))
    if kv is None or d_h is None:
        if out:
            return out
        raise Skip("the record gives no key/value heads")
    full = get(c, "full_attention_layers", "attention_layers", "full_layers", "global_layers") or n
    if full is None:
        raise Skip("the record gives no number of layers")
    near = get(c, "swa_layers") or 0
    full = get(flags, "full_layers") or full
    d_v = get(c, "v_head_dim") or d_h
    wide = get(c, "global_head_dim") or d_h
    far_kv = get(c, "global_kv_heads") or kv
    if near:
        window = get(c, "sliding_window", "window", "attention_chunk_size")
        size = Dim(window, "window") if window else None
        swa_kv = get(c, "swa_kv_heads") or kv
        out.append(
            attention(layers(near, "n_sliding_layers"), heads or swa_kv, swa_kv, d_h, d_v, size)
        )
    d_far = d_v if wide == d_h else wide
    out.append(attention(layers(full, "n_full_layers"), heads or far_kv, far_kv, wide, d_far))
    return out


def latent(record: dict[str, Any], n: int) -> Mixer:
    """Latent attention, or what engines without it keep: keys and values of every head."""
    c = record["config"]
    rope, nope = c["qk_rope_head_dim"], c.get("qk_nope_head_dim", 128)
    heads, d_v = c["num_attention_heads"], c.get("v_head_dim", 128)
    if record["flags"].get("mla") == 0 or "as MHA" in record["arch_class"]:
        return attention(layers(n), heads, heads, nope + rope, d_v)
    keys, values = Dim(c["kv_lora_rank"]), Dim(rope)
    return Mixer(
        kind="latent",
        layers=layers(n),
        n_heads=Dim(heads),
        n_kv_heads=Dim(heads),
        d_qk=Dim(nope + rope),
        d_v=Dim(d_v),
        keys=keys,
        values=values,
    )


def delta(c: dict[str, Any], n: int) -> Mixer:
    """A gated delta net's states."""
    keys, values, d = c["linear_key_heads"], c["linear_value_heads"], c["linear_head_dim"]
    conv = State("conv", Dim((2 * keys + values) * d), Dim(c.get("conv_kernel", 4)))
    return Mixer(
        "state",
        layers(n),
        Dim(values),
        states=(conv, State("recurrent", Dim(values * d), Dim(d), "float32")),
    )


def kind(text: Any) -> DType:
    name = re.split(r"[ (]", str(text))[0].lower()
    return dtype({"16-bit": "float16", "fp8_e4m3": "fp8", "auto": "bfloat16"}.get(name, name))


def load(record: dict[str, Any]) -> Load:
    flags = record["flags"]
    tokens = get(flags, "ctx", "kv_tokens", "max_model_len", "swa_tokens", "cells") or 1
    tokens = get(flags, "ctx_requested") or tokens
    batch = get(flags, "n_seq", "parallel", "batch_size", "max_num_seqs") or 1
    keys = kind(flags.get("k_dtype") or flags.get("kv_dtype") or flags.get("dtype") or "float16")
    values = kind(flags.get("v_dtype") or flags.get("kv_dtype") or flags.get("dtype") or "float16")
    plain = keys.block == 1 and keys.size > 1
    state = (
        kind(flags["conv_dtype"]) if "conv_dtype" in flags else keys if plain else dtype("bfloat16")
    )
    return Load(
        context=Dim(tokens, "context"),
        batch=Dim(batch, "batch"),
        key_dtype=keys,
        value_dtype=values,
        state_dtype=state,
        ssm_dtype=kind(flags["ssm_dtype"]) if "ssm_dtype" in flags else None,
        tp=get(flags, "tp") or 1,
        block_size=get(flags, "block_size"),
        speculative=get(flags, "num_speculative_tokens") or 0,
        ubatch=get(flags, "n_ubatch", "ubatch", "batch") or 512,
        unified=bool(flags.get("kv_unified")),
        swa_full=record["engine"] == "ik_llama.cpp",
    )


def engine(record: dict[str, Any]) -> str:
    """The engine whose rules apply; papers and tools without rules of their own are plain
    arithmetic.
    """
    name, version = record["engine"], str(record.get("engine_version") or "")
    if name.startswith("MLC"):
        raise Skip("MLC-LLM's rules (5 % of auxiliary memory) are not described")
    if name == "Ollama":
        minor = re.match(r"0\.(\d+)", version)
        return f"ollama@0.{minor[1]}" if minor else "ollama"
    known = {
        "vLLM": "vllm",
        "llama.cpp": "llama.cpp",
        "ik_llama.cpp": "llama.cpp",
        "SGLang": "sglang",
        "TensorRT-LLM": "tensorrt-llm",
    }
    return known.get(name, "formula")


def cache(record: dict[str, Any]) -> Cache:
    parts: list[Mixer] = mixers(record)
    return choose(engine(record)).rules.cache(Anatomy(record["model"], tuple(parts)), load(record))


def kv_bytes(record: dict[str, Any]) -> float:
    """Bytes of keys and values; a log that prints one line per kind of layers is compared with that
    kind.
    """
    flags, c, rules = record["flags"], record["config"], engine(record)
    if "656" in str(flags.get("kv_dtype", "")):
        index = 132 if "indexer" in flags["kv_dtype"] else 0
        return float(
            (flags["kv_tokens"] + 64)
            * c["num_hidden_layers"]
            * (c["kv_lora_rank"] + 16 + 2 * c["qk_rope_head_dim"] + index)
        )
    if get(flags, "kv_tokens") and rules not in ("sglang", "tensorrt-llm"):
        return float(get(flags, "kv_tokens") or 0) * float(
            ENGINES["formula"]
            .newest.cache(Anatomy("", tuple(mixers(record))), load(record))
            .per_token
        )
    found = cache(record)
    rows = {r.kind: int(r.kv_bytes) for r in found.rows}
    if record["engine"] == "llama.cpp" and "sliding" in rows:
        cells = get(flags, "cells")
        held = {r.kind: int(r.tokens) for r in found.rows if r.tokens is not None}
        return float(
            rows["sliding"] if cells is not None and cells == held["sliding"] else rows["full"]
        )
    return float(int(found.kv_bytes) - int(found.state_bytes))


def side_bytes(record: dict[str, Any], side: str) -> float:
    """Keys alone or values alone, as SGLang prints them for the pool of one kind of layers."""
    tp = get(record["flags"], "tp") or 1
    tokens = get(record["flags"], "swa_tokens", "kv_tokens") or 0
    tokens += (
        get(record["flags"], "page_size") or 64
    )  # one page of padding; 64 is what the kernels of wide keys need
    chosen = mixers(record)
    m = chosen[0] if "swa_tokens" in record["flags"] or len(chosen) == 1 else chosen[-1]
    width = (m.d_qk if side == "keys" else m.d_v) * max(1, int(m.n_kv_heads) // tp)
    return float(tokens * len(m.layers.indices) * width * load(record).key_dtype.size)


def per_token(record: dict[str, Any]) -> float:
    return float(
        ENGINES["formula"].newest.cache(Anatomy("", tuple(mixers(record))), load(record)).per_token
    )


def kv_tokens(record: dict[str, Any]) -> float:
    """Tokens that a pool of a printed size holds, in whole blocks."""
    flags = record["flags"]
    if "blocks" in flags and "block_tokens" in flags:
        return float(flags["blocks"] * flags["block_tokens"])
    pool = flags.get("kv_budget_gib") or flags.get("kv_pool_gib")
    if pool is None:
        raise Skip("the record gives no pool")
    block = get(flags, "block_size") or 1
    return float(int(pool * GIB / (block * per_token(record))) * block)


def kv_blocks(record: dict[str, Any]) -> float:
    flags = record["flags"]
    pool = flags.get("swap_space_gib") or flags.get("kv_budget_gib") or flags.get("kv_pool_gib")
    if pool is None:
        raise Skip("the record gives no pool")
    return float(int(pool * GIB / (get(flags, "block_size") or 16) / per_token(record)))


def block_bytes(record: dict[str, Any]) -> float:
    if "num_hidden_layers" not in record["config"] or record["engine"] == "InfLLM":
        raise Skip("blocks of a single layer are no quantity of these commands")
    return per_token(record) * (get(record["flags"], "block_tokens", "block_size") or 16)


def state_bytes(record: dict[str, Any]) -> float:
    return float(cache(record).state_bytes)


def model(record: dict[str, Any]) -> Anatomy:
    """The record's model as a config of the family whose structure it describes."""
    c = dict(record["config"])
    d, n, v = (
        get(c, "hidden_size", "hidden", "d_model"),
        get(c, "num_hidden_layers", "layers"),
        get(c, "vocab_size", "vocab"),
    )
    if record["flags"].get("part") or c.get("note") or c.get("release_note"):
        raise Skip("a part of a model, or one whose layers differ without the record saying how")
    if "layers_enc" in c:
        raise Skip("an encoder-decoder without its head is no model of these commands")
    if (
        c.get("mlp")
        or c.get("layernorm_bias")
        or "learned_positions" in c
        or "positions" in c
        or "type_vocab_size" in c
    ):
        return other_model(record)
    if "n_ctx" in c or "seq" in c:
        return anatomy(config_for(gpt(d, n, v or 50257, c.get("n_ctx") or c["seq"])))
    if d is None or n is None or v is None:
        raise Skip("the record gives no width, depth or vocabulary")
    if get(c, "linear_layers", "full_layers", "mamba_layers") and "swa_layers" not in c:
        raise Skip("a hybrid whose layers the record does not describe in full")
    base = {
        "hidden_size": d,
        "num_hidden_layers": n,
        "vocab_size": v,
        "num_attention_heads": c.get("num_attention_heads"),
        "num_key_value_heads": c.get("num_key_value_heads") or c.get("num_attention_heads"),
        "head_dim": c.get("head_dim"),
        "intermediate_size": c.get("intermediate_size") or c.get("moe_intermediate") or 1,
        "tie_word_embeddings": bool(c.get("tied")),
    }
    return anatomy(config_for({**base, **structure(c)}))


def structure(c: dict[str, Any]) -> dict[str, Any]:
    """What the record says beyond Llama's structure."""
    experts = {
        "num_experts": c.get("num_experts"),
        "num_experts_per_tok": c.get("experts_per_token") or 1,
    }
    experts["moe_intermediate_size"] = c.get("moe_intermediate") or c.get("intermediate_size")
    if "kv_lora_rank" in c:
        keys = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        extra = {k: c.get(k) for k in keys} | {
            "n_routed_experts": c.get("num_experts"),
            "n_shared_experts": c.get("n_shared", 0),
        }
        width = {} if c.get("intermediate_size") else {"intermediate_size": 12288}
        dense = {"first_k_dense_replace": c.get("first_k_dense", 0), "head_dim": None}
        return {"model_type": "deepseek_v3", **experts, **extra, **width, **dense}
    if "sliding_window" in c and c.get("num_experts"):
        return {
            "model_type": "gpt_oss",
            **experts,
            "sliding_window": c["sliding_window"],
            "attention_bias": True,
        }
    if c.get("num_experts"):
        kind_of = "qwen3_moe" if c.get("qk_norm") else "mixtral"
        return {"model_type": kind_of, **experts}
    return {
        "model_type": "qwen3" if c.get("qk_norm") else "qwen2" if c.get("qkv_bias") else "llama"
    }


def gpt(d: int | None, n: int | None, v: int, ctx: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": d,
        "n_layer": n,
        "n_head": 1,
        "vocab_size": v,
        "n_positions": ctx,
    }


def other_model(record: dict[str, Any]) -> Anatomy:
    c = record["config"]
    if str(c.get("mlp", "")).startswith("relu2") and c.get("layernorm_bias"):
        keys = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "intermediate_size",
        )
        return anatomy(
            config_for(
                {
                    "model_type": "nemotron",
                    **{k: c[k] for k in keys},
                    "tie_word_embeddings": bool(c.get("tied")),
                }
            )
        )
    raise Skip("a structure of which the record does not say enough, or that no family here has")


def params(record: dict[str, Any]) -> float:
    if record["engine"].startswith("ik_llama") and "MLA GGUF" in record["model"]:
        raise Skip("a GGUF with a second copy of kv_b, split")
    return float(parameters(model(record)))


def weights_bytes(record: dict[str, Any]) -> float:
    """Plain weights in one dtype, per rank; quantised files are a question of their layout."""
    flags, c = record["flags"], record["config"]
    text = str(flags.get("dtype") or flags.get("file") or "")
    if flags.get("file") == "Q8_0" and (get(flags, "tp") or 1) == 1:
        return float(sum(t.n_bytes for t in mix(model(record), "Q8_0")))
    if text.lower() not in ("bf16", "fp16", "bfloat16", "float16", "fp32", "float32", "f16"):
        raise Skip(
            f"weights as {text or 'an unnamed format'} follow a quantiser's layout, not one dtype"
        )
    if flags.get("file"):
        raise Skip("a GGUF file keeps norms in float32 and splits host and device")
    a = model(record)
    tp = get(flags, "tp") or 1
    rope = (
        2
        * (get(c, "max_position_embeddings") or 0)
        * int((c.get("head_dim") or 0) * c.get("partial_rotary", 1))
    )
    table = rope if record["engine"] == "vLLM" else 0
    return float(rank_params(a, tp, get(c, "num_key_value_heads")) * dtype(text).size + table)


def training_bytes(record: dict[str, Any]) -> float:
    """States of training: ZeRO's own table, or a Megatron rank's with its distributed optimizer."""
    flags, c = record["flags"], record["config"]
    if "params" in c and "stage" in flags:
        return float(zero_bytes(Fraction(int(c["params"])), int(flags["dp"]), int(flags["stage"])))
    if flags.get("distributed_optimizer"):
        recipe = Recipe(
            like="megatron", zero=1, dp=int(flags.get("dp") or 1), tp=int(flags.get("tp") or 1)
        )
        return float(sum(p.n_bytes for p in train(recipe, model(record)).parts if p.exact))
    raise Skip("an estimator's rule of its own")


def train_flops(record: dict[str, Any]) -> float:
    """6·N·D, N every parameter; a GPT whose vocabulary is not said has GPT-2's."""
    c = record["config"]
    found = (
        model(record)
        if get(c, "vocab_size")
        else anatomy(config_for(gpt(c["hidden_size"], c["num_hidden_layers"], 50257, 2048)))
    )
    return 6.0 * parameters(found) * float(record["flags"]["tokens"])
