"""How the families that can be run compute: one function per lineage, from the same config that
they are counted from.

Each line follows the reference implementation (transformers 5.24) and is held to its logits by a
test. The functions stand apart from those that list the parts, because counting knows ten times as
many families and must start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any

from llmcalc.config import Config
from llmcalc.errors import UnavailableError
from llmcalc.forward import Clamp, Rotary, Router, Style

Runs = Callable[[Config], Style]
_STYLES: dict[str, Runs] = {}
_EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
_GGUF_EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")


def runs(*model_types: str) -> Callable[[Runs], Runs]:
    """Registers a style for some ``model_type``s."""

    def register(function: Runs) -> Runs:
        _STYLES.update(dict.fromkeys(model_types, function))
        return function

    return register


def runnable() -> list[str]:
    """Every ``model_type`` that can be run."""
    return sorted(_STYLES)


def style(c: Config) -> Style:
    """How that config's family computes.

    A family that is only counted is an UnavailableError that says so.
    """
    if c.family not in _STYLES:
        raise UnavailableError(
            f"running {c.family} is not supported: only its sizes are known",
            hint=f"can be run: {', '.join(runnable())}",
        )
    return _STYLES[c.family](c)


def _first(c: Config, keys: tuple[str, ...], otherwise: Any) -> Any:
    for source in (c.raw, c.defaults):
        for key in keys:
            if source.get(key) is not None:
                return source[key]
    return otherwise


def _number(c: Config, key: str, otherwise: float = 1.0) -> float:
    value = _first(c, (key,), otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnavailableError(f"{c.family}: {key} is {value!r}, not a number")
    return float(value)


def _common(c: Config, **changes: Any) -> Style:
    """RMSNorm before, rotary positions, the config's activation and epsilon.

    ``changes`` are the family's own.
    """
    eps = _first(c, (*_EPS, *_GGUF_EPS), 1e-6)
    activation = str(_first(c, _ACTIVATIONS, "silu"))
    return Style(**{"eps": float(eps), "activation": activation, **changes})


def rotary(
    c: Config,
    dim: int,
    base: float = 10_000.0,
    layer_type: str = "full_attention",
    partial: float = 1.0,
    interleaved: bool = False,
) -> Rotary:
    """Rotary positions as a config states them:

    ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``.

    ``dim`` is the width of a head and ``partial`` the share of it that turns where the config does
    not say.
    """
    given = _first(c, ("rope_parameters", "rope_scaling"), {})
    given = given if isinstance(given, Mapping) else {}
    if isinstance(given.get(layer_type), Mapping):
        given = given[layer_type]
    theta = given.get("rope_theta") or _first(
        c, ("rope_theta", "rotary_emb_base", "rope.freq_base"), base
    )
    share = given.get("partial_rotary_factor")
    share = _first(c, ("partial_rotary_factor", "rotary_pct"), partial) if share is None else share
    kind = str(given.get("rope_type", given.get("type", "default")))
    context = int(_first(c, ("max_position_embeddings", "context_length", "n_positions"), 0))
    settings = dict(given)
    original = _first(c, ("original_max_position_embeddings",), None)
    if original is not None:
        settings["original_max_position_embeddings"] = original
    if c.raw.get("rope.scaling.type") not in (None, "none"):
        kind, settings = _gguf_scaling(c)
    if kind == "su":
        kind = "longrope"
    return Rotary(int(dim * share), float(theta), kind, settings, interleaved, context)


def _gguf_scaling(c: Config) -> tuple[str, dict[str, Any]]:
    kind = str(c.raw["rope.scaling.type"])
    settings = {
        "factor": c.raw.get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": c.raw.get("rope.scaling.original_context_length"),
    }
    return kind, settings


def _pairs(c: Config) -> bool:
    """Whether the file's queries and keys lie in neighbouring pairs: llama.cpp's converter turns
    Llama's that way.
    """
    return bool(c.raw.get("rope_interleave"))


@runs("llama", "mistral", "qwen2", "qwen3", "seed_oss", "olmo2", "olmo3", "ministral")
def llama(c: Config) -> Style:
    """Llama, Mistral, Qwen 2 and 3; OLMo 2 and 3 join after the norms."""
    base = {"olmo3": 500_000.0}.get(c.family, 10_000.0)
    if _first(c, ("clip_qkv",), None) is not None:
        raise UnavailableError(f"running {c.family} with clip_qkv is not supported")
    turn = rotary(c, int(c.head_dim), base, interleaved=_pairs(c))
    local = rotary(c, int(c.head_dim), base, "sliding_attention") if c.family == "olmo3" else None
    return _common(
        c, rotary=turn, local_rotary=local, join="post" if c.family in ("olmo2", "olmo3") else "pre"
    )


@runs("smollm3")
def smollm3(c: Config) -> Style:
    """SmolLM3: every fourth layer does not turn."""
    every = int(c.get("no_rope_layer_interval", 4))
    turned = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(c.layers)]
    plain = frozenset(i for i, flag in enumerate(turned) if not flag)
    return replace(llama(c), rotary=rotary(c, int(c.head_dim), 2_000_000.0), unrotated=plain)


@runs("granite", "granitemoe", "granitemoeshared")
def granite(c: Config) -> Style:
    """Granite: four multipliers; with experts, scores are taken over the chosen ones."""
    return replace(
        llama(c),
        scale=_number(c, "attention_multiplier"),
        embed_scale=_number(c, "embedding_multiplier"),
        residual_scale=_number(c, "residual_multiplier"),
        logit_scale=1 / _number(c, "logits_scaling"),
        router=Router(before=False),
    )


@runs("mixtral")
def mixtral(c: Config) -> Style:
    """Mixtral: the chosen experts' probabilities sum to one."""
    return replace(
        llama(c),
        rotary=rotary(c, int(c.head_dim), 1e6, interleaved=_pairs(c)),
        router=_normalised(True),
    )


@runs("qwen3_moe", "olmoe", "qwen2_moe")
def qwen3_moe(c: Config) -> Style:
    """Qwen and OLMoE with experts: probabilities over all, made to sum to one by flag."""
    return replace(llama(c), router=_normalised(c.flag("norm_topk_prob")))


def _normalised(normalise: bool) -> Router:
    return Router(normalise=normalise)


@runs("gpt_oss")
def gpt_oss(c: Config) -> Style:
    """gpt-oss: YaRN, a clamped gate, scores over the chosen experts."""
    default = {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    given = (
        c.raw
        if _first(c, ("rope_parameters", "rope_scaling"), None)
        else {**c.raw, "rope_parameters": default}
    )
    turn = rotary(Config(given, defaults=c.defaults), int(c.head_dim), 150_000.0)
    clamp = Clamp(_number(c, "swiglu_alpha", 1.702), _number(c, "swiglu_limit", 7.0))
    return _common(c, rotary=turn, router=Router(before=False), clamp=clamp)


@runs("gemma")
def gemma(c: Config) -> Style:
    """Gemma: norms scale by one more than their weight, embeddings by the root of the width."""
    added = "attention.key_length" not in c.raw  # a GGUF stores the weights with the one added
    activation = str(c.get("hidden_activation") or "gelu_pytorch_tanh")
    return replace(
        llama(c), norm_adds_one=added, activation=activation, embed_scale=sqrt(int(c.d_model))
    )


@runs("gemma2", "gemma3_text")
def gemma2(c: Config) -> Style:
    """Gemma 2 and 3: norms before and after, soft caps where set, two bases in the third."""
    third = c.family == "gemma3_text"
    scalar = _first(c, ("query_pre_attn_scalar",), None)
    caps = [_first(c, (f"{what}_logit_softcapping",), None) for what in ("attn", "final")]
    local = _first(c, ("rope_local_base_freq",), 10_000.0)
    plain = Config({**c.raw, "rope_theta": local, "rope_scaling": None}, defaults=c.defaults)
    return replace(
        gemma(c),
        activation=str(_first(c, ("hidden_activation", "hidden_act"), "gelu_pytorch_tanh")),
        join="sandwich",
        rotary=rotary(c, int(c.head_dim), 1e6 if third else 10_000.0),
        local_rotary=rotary(plain, int(c.head_dim), local, "sliding_attention") if third else None,
        scale=None if scalar is None else float(scalar) ** -0.5,
        score_cap=caps[0],
        logit_cap=caps[1],
    )


@runs("phi3")
def phi3(c: Config) -> Style:
    """Phi-3 and 4-mini: part of each head may turn, LongRoPE for the long ones."""
    return _common(c, rotary=rotary(c, int(c.head_dim)))


@runs("starcoder2")
def starcoder2(c: Config) -> Style:
    """StarCoder2: LayerNorm and biases around grouped-query attention."""
    return _common(c, norm="layer", rotary=rotary(c, int(c.head_dim)))


@runs("gpt2", "gpt_neo")
def gpt2(c: Config) -> Style:
    """GPT-2 and GPT-Neo: learned positions, LayerNorm; GPT-Neo does not scale its scores."""
    if c.flag("add_cross_attention"):
        raise UnavailableError(
            "running gpt2 with cross-attention is not supported: it needs a second sequence"
        )
    scaled = c.family == "gpt2" and c.flag("scale_attn_weights", True)
    return _common(
        c,
        norm="layer",
        positions="learned",
        scale=None if scaled else 1.0,
        scale_by_layer=c.flag("scale_attn_by_inverse_layer_idx"),
        activation=str(_first(c, _ACTIVATIONS, "gelu_new")),
    )


@runs("gpt_neox")
def gpt_neox(c: Config) -> Style:
    """GPT-NeoX and Pythia: attention and MLP in parallel behind two norms, a quarter of each head
    turns.
    """
    join = "parallel" if c.flag("use_parallel_residual", True) else "pre"
    return _common(
        c,
        norm="layer",
        join=join,
        qkv="heads",
        rotary=rotary(c, int(c.split_head_dim), partial=0.25),
    )


@runs("bloom")
def bloom(c: Config) -> Style:
    """BLOOM: ALiBi, a norm on the embedding, tanh GELU."""
    if c.flag("apply_residual_connection_post_layernorm"):
        raise UnavailableError("running bloom with residuals after its norms is not supported")
    return _common(c, norm="layer", positions="alibi", qkv="heads", activation="gelu_pytorch_tanh")


@runs("falcon")
def falcon(c: Config) -> Style:
    """Falcon: heads by group in one projection, parallel blocks.

    The RW models use ALiBi, scaled with the scores.
    """
    new = c.flag("new_decoder_architecture")
    alibi = c.flag("alibi")
    return _common(
        c,
        norm="layer",
        join="parallel" if new or c.flag("parallel_attn") else "pre",
        qkv="groups" if new or c.flag("multi_query") else "heads",
        positions="alibi" if alibi else "rotary",
        alibi_dtype="bfloat16",
        alibi_scaled=True,
        rotary=None if alibi else rotary(c, int(c.split_head_dim)),
    )


@runs("deepseek_v2", "deepseek_v3")
def deepseek(c: Config) -> Style:
    """DeepSeek-V2 and V3: latent attention, experts in groups; YaRN also scales the scores."""
    third = c.family == "deepseek_v3"
    turn = rotary(
        c, int(c.qk_rope_head_dim), interleaved=not third or c.flag("rope_interleave", True)
    )
    scale = float(int(c.qk_nope_head_dim) + int(c.qk_rope_head_dim)) ** -0.5
    stretch, weight = turn.settings.get("factor"), turn.settings.get("mscale_all_dim")
    if turn.kind != "default" and weight and stretch and stretch > 1:
        scale *= (0.1 * weight * log(stretch) + 1.0) ** 2
    return _common(c, rotary=turn, scale=scale, router=_deepseek_router(c, third))


def _deepseek_router(c: Config, third: bool) -> Router:
    grouped = third or _first(c, ("topk_method",), "greedy") == "group_limited_greedy"
    return Router(
        scores="sigmoid" if third else "softmax",
        normalise=third and c.flag("norm_topk_prob", True),
        scale=_number(c, "routed_scaling_factor"),
        groups=int(_first(c, ("n_group",), 1)) if grouped else 1,
        kept=int(_first(c, ("topk_group",), 1)) if grouped else 1,
        group_best=2 if third else 1,
    )


@runs("mamba")
def mamba(c: Config) -> Style:
    """Mamba: selective scans alone; their sizes are those of the weights."""
    return _common(c, positions="none")
