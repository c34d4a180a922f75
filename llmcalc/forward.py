"""Forward: what has no weights and still decides what a model computes: norms, positions,
activations, how layers join.

Counting never reads it; running a model (``llmcalc.live``) reads nothing else beside the list of
parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Join = Literal["pre", "post", "sandwich", "parallel"]
Positions = Literal["rotary", "learned", "alibi", "none"]


@dataclass(frozen=True, slots=True)
class Rotary:
    """How queries and keys are turned by their position (RoPE, arXiv 2104.09864).

    ``dim`` numbers of each head are turned, in pairs of neighbours where ``interleaved``, else of
    halves; ``kind`` and ``settings`` are the scaling that stretches the context (linear, dynamic,
    yarn, longrope, llama3).
    """

    dim: int
    base: float
    kind: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False
    max_context: int = 0


@dataclass(frozen=True, slots=True)
class Router:
    """How a token's experts are chosen and weighted.

    ``before``: scores are taken over all experts and then cut to the chosen ones; else over the
    chosen ones alone. ``groups``: experts stand in so many groups, of which the ``kept`` best by
    their ``group_best`` best experts remain.
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    before: bool = True
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    group_best: int = 1


@dataclass(frozen=True, slots=True)
class Clamp:
    """gpt-oss's gate: gate and up in turn, both clamped, ``gate · sigmoid(alpha · gate) · (up +
    1)``.
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Forward:
    """What a family computes with its weights.

    ``scale`` multiplies the scores (None: one over the root of a head's width); ``caps`` are soft
    caps of scores and logits; ``qkv`` says how a fused projection lies: all queries first, head by
    head, or one group of heads after the other. ``unrotated`` are layers without rotary positions;
    ``alibi_dtype`` the format that slopes are rounded to.
    """

    eps: float
    norm: Literal["rms", "layer"] = "rms"
    norm_adds_one: bool = False
    activation: str = "silu"
    join: Join = "pre"
    positions: Positions = "rotary"
    rotary: Rotary | None = None
    local_rotary: Rotary | None = None
    unrotated: frozenset[int] = frozenset()
    alibi_dtype: str = "float32"
    alibi_scaled: bool = False
    position_offset: int = 0
    scale: float | None = None
    scale_by_layer: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    qkv: Literal["sides", "heads", "groups"] = "sides"
    qk_norm_kind: Literal["rms", "layer"] | None = None
    router: Router = field(default_factory=Router)
    clamp: Clamp | None = None
