"""Shrunk models of the families that can be run: one entry per structure that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
LATENT = BASE | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": {"type": "longrope", "short_factor": [1.1] * 8, "long_factor": [2.5] * 8},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 97},
    ),
    "gpt2-scaled": (
        "gpt2",
        {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": 97,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 4,
            "num_heads": 4,
            "max_position_embeddings": 128,
            "vocab_size": 97,
            "window_size": 8,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    "bloom": (
        "bloom",
        {"hidden_size": 64, "n_layer": 4, "n_head": 6, "vocab_size": 97, "n_embed": 96},
    ),
    "falcon-new": ("falcon", GPT | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-mqa": ("falcon", GPT),
    "falcon-rw": (
        "falcon",
        GPT | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "gpt_neox": ("gpt_neox", BASE | {"num_key_value_heads": None}),
    "gpt_neox-serial": (
        "gpt_neox",
        BASE | {"num_key_value_heads": None, "use_parallel_residual": False},
    ),
    "llama": ("llama", BASE),
    "llama-biased": (
        "llama",
        BASE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    **{
        f"llama-{k}": ("llama", BASE | {"rope_scaling": ROPES[k]})
        for k in ("linear", "yarn", "llama3")
    },
    "llama-dynamic": (
        "llama",
        BASE | {"max_position_embeddings": 16, "rope_scaling": ROPES["dynamic"]},
    ),
    "mistral": ("mistral", BASE | {"sliding_window": 8, "head_dim": 24}),
    "ministral": ("ministral", BASE | {"sliding_window": 8, "head_dim": 16}),
    "mixtral": (
        "mixtral",
        BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "qwen2": (
        "qwen2",
        BASE | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        BASE
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen3": ("qwen3", BASE | {"head_dim": 32}),
    "qwen3_moe": (
        "qwen3_moe",
        BASE
        | {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmo2": ("olmo2", BASE),
    "olmo3": ("olmo3", BASE | {"sliding_window": 8}),
    "olmoe": ("olmoe", BASE | {"num_experts": 6, "num_experts_per_tok": 2}),
    "seed_oss": ("seed_oss", BASE | {"head_dim": 16}),
    "smollm3": ("smollm3", BASE | {"pad_token_id": 0}),
    "starcoder2": ("starcoder2", BASE | {"sliding_window": 8}),
    "gemma": ("gemma", BASE | {"head_dim": 24}),
    "gemma2": ("gemma2", BASE | {"head_dim": 24, "sliding_window": 8, "query_pre_attn_scalar": 20}),
    "gemma3_text": (
        "gemma3_text",
        BASE
        | {
            "head_dim": 24,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 7,
        },
    ),
    "phi3": ("phi3", BASE | {"pad_token_id": 0, "sliding_window": 8}),
    "phi3-long": (
        "phi3",
        BASE
        | {
            "pad_token_id": 0,
            "original_max_position_embeddings": 16,
            "rope_scaling": ROPES["longrope"],
        },
    ),
    "granite": ("granite", BASE | GRANITE),
    "granitemoe": (
        "granitemoe",
        BASE | GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "granitemoeshared": (
        "granitemoeshared",
        BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
    ),
    "gpt_oss": (
        "gpt_oss",
        BASE
        | {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        LATENT
        | {
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek_v2-yarn": (
        "deepseek_v2",
        LATENT
        | {
            "q_lora_rank": None,
            "topk_method": "greedy",
            "rope_scaling": ROPES["yarn"] | {"mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        LATENT
        | {
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "rope_scaling": ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "mamba": (
        "mamba",
        {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 97, "state_size": 8},
    ),
}


def reference(name: str, folder: Path) -> Any:
    """The reference's model of that entry, its weights random and none of them zero, saved in
    ``folder``.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    # eager attention adds Falcon's ALiBi twice in this version of the reference
    attention = "sdpa" if kind == "falcon" else "eager"
    model = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[kind](**sizes), attn_implementation=attention
    ).eval()
    with torch.no_grad():
        corrections = [b for n, b in model.named_buffers() if "correction" in n]
        for tensor in [*model.parameters(), *corrections]:
            tensor.add_(torch.randn_like(tensor) * 0.08)
    model.save_pretrained(folder)
    return model
