"""A model described by sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmcalc.anatomy import Anatomy, Layers
from llmcalc.blocks import attention
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.sources.model import Model

_FLAGS = {
    "gpt2": {
        "d": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "d_ff": "n_inner",
        "vocab": "vocab_size",
        "ctx": "n_positions",
    },
    "llama": {
        "d": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
        "vocab": "vocab_size",
        "ctx": "max_position_embeddings",
    },
}


def for_cache(sizes: Mapping[str, Any]) -> Model:
    """Attention alone, as the cache needs it: layers, key/value heads and the width of a head.

    Where sizes describe a whole model they are that model's.
    """
    whole = "d" in sizes and ("d_ff" in sizes or not {"kv_heads", "head_dim"} & sizes.keys())
    if whole or "layers" not in sizes or sizes.get("arch", "llama") not in _FLAGS:
        return from_flags(sizes)
    heads, kv_heads = sizes.get("heads"), sizes.get("kv_heads", sizes.get("heads"))
    if kv_heads is None:
        raise InputError("neither --kv-heads nor --heads is given", hint="--kv-heads 8")
    head_dim = sizes.get("head_dim")
    if head_dim is None:
        if heads is None or "d" not in sizes:
            lacking = "--head-dim is not given, nor are --d and --heads, whose quotient it is"
            raise InputError(lacking, hint="--head-dim 128")
        if sizes["d"] % heads:
            raise InputError(f"--heads {heads} does not divide --d {sizes['d']}")
        head_dim = sizes["d"] // heads
    if (heads or kv_heads) % kv_heads:
        raise InputError(f"--kv-heads {kv_heads} does not divide --heads {heads}")
    layers = Layers.all(Dim(sizes["layers"], "n_layers"))
    width = Dim(head_dim, "head_dim")
    kept = attention(
        layers, Dim(heads or kv_heads, "n_heads"), Dim(kv_heads, "n_kv_heads"), width, width
    )
    notes = ("sizes from flags: attention alone",)
    return Model("sizes", "flags", notes=notes, described=Anatomy("attention", (kept,)))


def from_flags(sizes: Mapping[str, Any]) -> Model:
    """A model described by sizes alone.

    Without a vocabulary only its blocks are counted, and that is said.
    """
    # GPT-2 has neither of these two sizes
    modern = {"kv_heads", "head_dim"} & sizes.keys()
    arch = str(sizes.get("arch") or ("llama" if modern else "gpt2"))
    if arch not in _FLAGS:
        raise InputError(
            f"--arch {arch!r} is not one of {', '.join(_FLAGS)}",
            hint="other families need a config.json",
        )
    for need in ("d", "layers"):
        if need not in sizes:
            raise InputError(
                f"no MODEL is named and --{need} is not given",
                hint="name a preset, a file or a directory, or give sizes: --d 768 --layers 12",
            )
    keys = _FLAGS[arch]
    unknown = [key for key in sizes if key not in keys and key not in ("arch", "tied")]
    if unknown:
        raise InputError(
            f"--{unknown[0].replace('_', '-')} does not apply to --arch {arch}",
            hint="try `--arch llama`",
        )
    raw: dict[str, Any] = {"model_type": arch}
    raw |= {keys[key]: value for key, value in sizes.items() if key in keys}
    if "tied" in sizes:
        raw["tie_word_embeddings"] = sizes["tied"]
    notes = [f"sizes from flags, structure of {arch}"]
    if "heads" not in sizes:
        width = raw[keys["d"]]
        # the number of heads whose width comes nearest to 64
        divisors = [n for n in range(1, min(width, 4096) + 1) if width % n == 0]
        heads = min(divisors, key=lambda n: abs(width / n - 64))
        raw[keys["heads"]] = heads
        notes.append(
            f"--heads is not given: {heads} of {width // heads}, about 64 wide as in GPT-2; neither"
            " parameters nor the cache of plain attention depend on it"
        )
    blocks_only = "vocab" not in sizes
    if blocks_only:
        raw |= {"vocab_size": 1, keys["ctx"]: sizes.get("ctx", 1)}
        notes.append(
            "--vocab is not given: only the blocks are counted, without embeddings, final norm and"
            " head"
        )
    return Model("sizes", "flags", raw, notes=tuple(notes), blocks_only=blocks_only)
