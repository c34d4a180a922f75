"""The small operations of a layer: linear, norm, activation, gated MLP, choice of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.errors import UnavailableError
from llmcalc.forward import Clamp, Forward, Router
from llmcalc.live.weights import Slots

_TANH: Callable[[Tensor], Tensor] = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": _TANH,
    "gelu_fast": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""Activations under the names that configs use for them."""


See = Callable[[str, Tensor], None]
"""Called with a slot and the tensor that came about there."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of that name; an unknown one is an UnavailableError."""
    if name not in ACTIVATIONS:
        raise UnavailableError(f"the activation {name!r} is not supported when a model is run")
    return ACTIVATIONS[name]


def linear(w: Slots, slot: str, x: Tensor) -> Tensor:
    """``x @ W.T + b`` with the weight and bias of a slot."""
    return F.linear(x, w[slot], w.get(f"{slot}.bias"))


def norm(style: Forward, w: Slots, slot: str, x: Tensor, kind: str | None = None) -> Tensor:
    """RMSNorm or LayerNorm over the last axis with the weights of a slot."""
    weight: Tensor = w[slot]  # as wide as the last axis of x
    if (kind or style.norm) == "layer":
        return F.layer_norm(x, weight.shape, weight, w.get(f"{slot}.bias"), style.eps)
    if style.norm_adds_one:
        # in float32 until the weight is applied: transformers 5.24, modeling_gemma.py
        wide = F.rms_norm(x.float(), weight.shape, None, style.eps)
        return (wide * (1.0 + weight.float())).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, style.eps)


def nobody(slot: str, tensor: Tensor) -> None:
    """Sees a tensor and keeps nothing."""


def same(x: Tensor) -> Tensor:
    """What one rank alone makes is the whole."""
    return x


def mlp(
    style: Forward,
    w: Slots,
    x: Tensor,
    place: str = "",
    see: See = nobody,
    whole: Callable[[Tensor], Tensor] = same,
) -> Tensor:
    """A feed-forward of x (B, T, d) or (tokens, d): gated where there is a gate.

    ``place`` is ``.shared`` or nothing. ``whole`` joins the ranks' shares of what the down
    projection makes.
    """
    act = activation(style.activation)
    if f"mlp.gate_up{place}" in w:
        both = linear(w, f"mlp.gate_up{place}", x)  # (B, T, 2·d_ff)
        see(f"mlp.gate_up{place}", both)
        inner = _gated(both, act, style.clamp)
    elif f"mlp.gate{place}" in w:
        gate = linear(w, f"mlp.gate{place}", x)  # (B, T, d_ff)
        up = linear(w, f"mlp.up{place}", x)  # (B, T, d_ff)
        see(f"mlp.gate{place}", gate)
        see(f"mlp.up{place}", up)
        inner = act(gate) * up
    else:
        up = linear(w, f"mlp.up{place}", x)  # (B, T, d_ff)
        see(f"mlp.up{place}", up)
        inner = act(up)
    see(f"mlp.act{place}", inner)  # (B, T, d_ff)
    down = whole(linear(w, f"mlp.down{place}", inner))  # (B, T, d)
    see(f"mlp.down{place}", down)
    return down


def _gated(both: Tensor, act: Callable[[Tensor], Tensor], clamp: Clamp | None) -> Tensor:
    """The inner values (B, T, d_ff) of a joint gate and up projection (B, T, 2·d_ff)."""
    if clamp is None:
        gate, up = both.chunk(2, -1)  # (B, T, d_ff) each
        return act(gate) * up
    # gate and up take turns, and both are clamped: transformers 5.24, modeling_gpt_oss.py
    gate = both[..., ::2].clamp(max=clamp.limit)  # (B, T, d_ff)
    up = both[..., 1::2].clamp(-clamp.limit, clamp.limit)  # (B, T, d_ff)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def choose(
    router: Router, logits: Tensor, correction: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The experts that every token passes through and their weights, both (tokens, k).

    ``logits`` are the router's, (tokens, E).
    """
    if not router.before:
        top, chosen = logits.topk(k, -1)  # (tokens, k)
        return chosen, top.float().softmax(-1).to(logits.dtype)
    sigmoid = router.scores == "sigmoid"
    wide = logits.float()
    scores = wide.sigmoid() if sigmoid else wide.softmax(-1)  # (tokens, E)
    # a correction decides who is chosen and does not weight: modeling_deepseek_v3.py
    preferred = scores if correction is None else scores + correction.float()
    if router.groups > 1:
        preferred = _best_groups(router, preferred)
    chosen = preferred.topk(k, -1).indices  # (tokens, k)
    weights = scores.gather(-1, chosen)  # (tokens, k)
    if router.normalise:
        total = weights.sum(-1, keepdim=True)  # (tokens, 1)
        weights = weights / (total + (1e-20 if sigmoid else 0))
    return chosen, (weights * router.scale).to(logits.dtype)


def _best_groups(router: Router, scores: Tensor) -> Tensor:
    """Scores (tokens, E) with the experts of all but the best groups left out."""
    grouped = scores.view(len(scores), router.groups, -1)  # (tokens, groups, E/groups)
    judged_by = min(router.group_best, grouped.shape[-1])
    group_scores = grouped.topk(judged_by, -1).values.sum(-1)  # (tokens, groups)
    kept = group_scores.topk(router.kept, -1).indices  # (tokens, kept groups)
    out = torch.ones_like(group_scores, dtype=torch.bool)
    out.scatter_(1, kept, False)
    return grouped.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(1)


def experts(
    style: Forward,
    w: Slots,
    x: Tensor,
    k: int,
    see: See = nobody,
    whole: Callable[[Tensor], Tensor] = same,
) -> Tensor:
    """Routed experts, and shared ones beside them, of tokens (B, T, d).

    ``whole`` joins the ranks' shares.
    """
    flat = x.reshape(-1, x.shape[-1])  # (B·T, d)
    logits = linear(w, "router", flat)  # (B·T, E)
    see("router", logits)
    chosen, weights = choose(style.router, logits, w.get("router.correction"), k)  # (B·T, k)
    see("router.chosen", chosen)
    out = torch.zeros_like(flat)
    routed = {slot: each for slot, each in w.items() if ".routed" in slot}
    for expert in torch.unique(chosen).tolist():
        token, at = torch.where(chosen == expert)  # rows of flat, and which choice it was
        own = {slot.replace(".routed", ""): each[expert] for slot, each in routed.items()}
        made = mlp(style, own, flat[token]) * weights[token, at, None]  # (rows, d)
        out.index_add_(0, token, made)
        del made  # not beside what the next expert makes
    out = whole(out).view_as(x)  # (B, T, d)
    if "mlp.down.shared" in w:
        beside = mlp(style, w, x, ".shared", see, whole)
        if "router.shared" in w:
            # one gate for the shared expert: transformers 5.24, modeling_qwen2_moe.py
            beside = beside * torch.sigmoid(F.linear(x, w["router.shared"]))
        out = out + beside
    see("mlp.out", out)
    return out
