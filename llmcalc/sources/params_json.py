"""Mistral's and Meta's own ``params.json``: the sizes of a checkpoint that has no config.json.

Mistral's keys are read as vLLM 0.33 reads them (``transformers_utils/configs/mistral.py``), Meta's
as the first Llama's ``model.py`` computes its inner width from ``multiple_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmcalc.errors import ConfigError
from llmcalc.sources.json_file import read_json

NAME = "params.json"
_KEYS = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_EXPERTS = {
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "moe_layer_freq",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
    "routed_scale": "routed_scaling_factor",
}


def read(path: Path) -> dict[str, Any]:
    """The file as a config in the reference implementation's keys; what it lacks is a ConfigError.

    Pictures and sound stand in sections of their own beside the language model's.
    """
    raw = read_json(path)
    if "dim" not in raw or "n_layers" not in raw:
        raise ConfigError(f"{path.name} has no dim and no n_layers: it is not Mistral's or Meta's")
    towers = _towers(raw)
    config = _text(raw)
    if not towers:
        return config
    return {"model_type": "mistral-multimodal", "text_config": config, **towers}


def _text(raw: Mapping[str, Any]) -> dict[str, Any]:
    config = {_KEYS.get(key, key): value for key, value in raw.items() if key not in _TOWERS}
    config |= _quantised(config.pop("quantization", None))
    if "multiple_of" in config:
        return _llama(config)
    moe = config.pop("moe", None)
    if raw.get("model_type") == "mamba":
        return {**config, "model_type": "mamba2"}
    if raw.get("qk_nope_head_dim") or (isinstance(moe, Mapping) and moe.get("num_shared_experts")):
        given = moe if isinstance(moe, Mapping) else {}
        alike = {_EXPERTS.get(str(k), str(k)): v for k, v in given.items()}
        return {**config, "model_type": "deepseek_v3", **alike}
    if isinstance(moe, Mapping):
        found = {
            "num_local_experts": moe.get("num_experts"),
            "num_experts_per_tok": moe.get("num_experts_per_tok"),
        }
        return {"sliding_window": None, **_windows(config), "model_type": "mixtral", **found}
    # absent means no window here, and 4,096 in the reference implementation's class
    return {"sliding_window": None, **_windows(config), "model_type": "mistral"}


def _windows(config: dict[str, Any]) -> dict[str, Any]:
    """A list of windows repeats over the layers; None in it is a layer that sees everything."""
    window, layers = config.get("sliding_window"), config.get("num_hidden_layers")
    if not isinstance(window, list) or not window or not isinstance(layers, int):
        return config
    kinds = ["full_attention" if size is None else "sliding_attention" for size in window]
    widths = {size for size in window if size is not None}
    if len(widths) > 1:
        raise ConfigError(f"{NAME}: sliding_window has windows of {len(widths)} widths")
    repeated = (kinds * (layers // len(kinds) + 1))[:layers]
    return {**config, "sliding_window": next(iter(widths), None), "layer_types": repeated}


def _llama(config: dict[str, Any]) -> dict[str, Any]:
    """Meta's: the inner width is 8/3 of the width, times a factor, in whole multiples."""
    if config.get("vocab_size", -1) in (-1, None):
        raise ConfigError(
            f"{NAME}: vocab_size is -1, which leaves it to a tokenizer that is not here",
            hint="write the number of its tokens into the file: Llama 1 and 2 have 32000",
        )
    multiple, factor = config.pop("multiple_of"), config.pop("ffn_dim_multiplier", None)
    width = int(2 * 4 * config["hidden_size"] / 3)
    width = int(factor * width) if factor is not None else width
    config["intermediate_size"] = multiple * ((width + multiple - 1) // multiple)
    return {**config, "model_type": "llama"}


_TOWERS = ("vision_encoder", "multimodal", "audio_encoder")


def _towers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What sees or hears, each as a section that no family describes."""
    inside = raw.get("multimodal") if isinstance(raw.get("multimodal"), Mapping) else {}
    assert isinstance(inside, Mapping)
    vision = raw.get("vision_encoder") or inside.get("vision_encoder_args")
    audio = raw.get("audio_encoder") or inside.get("whisper_model_args")
    found = {"vision_config": vision, "audio_config": audio}
    return {key: value for key, value in found.items() if isinstance(value, Mapping)}


def _quantised(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, Mapping) or not settings:
        return {}
    if settings.get("qformat_weight") == "fp8_e4m3":
        return {"quantization_config": {"quant_method": "fp8"}}
    method = str(settings.get("quant_method", "")).lower().replace("_", "-")
    return {"quantization_config": {**settings, "quant_method": method}}
