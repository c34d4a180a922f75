"""The small operations of a layer: linear, norm, activation, gated MLP, and the choice
of experts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.errors import UnavailableError
from llmcalc.forward import Clamp, Router, Style
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


def norm(style: Style, w: Slots, slot: str, x: Tensor, kind: str | None = None) -> Tensor:
    """RMSNorm or LayerNorm over the last axis with the weights of a slot."""
    weight: Tensor = w[slot]
    if (kind or style.norm) == "layer":
        return F.layer_norm(x, weight.shape, weight, w.get(f"{slot}.bias"), style.eps)
    if style.norm_adds_one:
        wide = F.rms_norm(x.float(), weight.shape, None, style.eps)
        return (wide * (1.0 + weight.float())).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, style.eps)


def nobody(slot: str, tensor: Tensor) -> None:
    """Sees a tensor and keeps nothing."""


def same(x: Tensor) -> Tensor:
    """What one rank alone makes is the whole."""
    return x


def mlp(
    style: Style,
    w: Slots,
    x: Tensor,
    place: str = "",
    see: See = nobody,
    whole: Callable[[Tensor], Tensor] = same,
) -> Tensor:
    """A feed-forward: gated where there is a gate, else up, activation, down.

    ``place`` is ``.shared`` or nothing.

    ``whole`` joins the ranks' shares of what the down projection makes.
    """
    act = activation(style.activation)
    if f"mlp.gate_up{place}" in w:
        both = linear(w, f"mlp.gate_up{place}", x)
        see(f"mlp.gate_up{place}", both)
        inner = _gated(both, act, style.clamp)
    elif f"mlp.gate{place}" in w:
        gate, up = linear(w, f"mlp.gate{place}", x), linear(w, f"mlp.up{place}", x)
        see(f"mlp.gate{place}", gate)
        see(f"mlp.up{place}", up)
        inner = act(gate) * up
    else:
        up = linear(w, f"mlp.up{place}", x)
        see(f"mlp.up{place}", up)
        inner = act(up)
    see(f"mlp.act{place}", inner)
    down = whole(linear(w, f"mlp.down{place}", inner))
    see(f"mlp.down{place}", down)
    return down


def _gated(both: Tensor, act: Callable[[Tensor], Tensor], clamp: Clamp | None) -> Tensor:
    if clamp is None:
        gate, up = both.chunk(2, -1)
        return act(gate) * up
    gate = both[..., ::2].clamp(max=clamp.limit)
    up = both[..., 1::2].clamp(-clamp.limit, clamp.limit)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def choose(
    router: Router, logits: Tensor, correction: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """Numbers (N, k) of the experts that N tokens pass through, and their weights, from the
    router's logits (N, E).
    """
    if not router.before:
        top, chosen = logits.topk(k, -1)
        return chosen, top.float().softmax(-1).to(logits.dtype)
    scores = logits.float().sigmoid() if router.scores == "sigmoid" else logits.float().softmax(-1)
    preferred = scores if correction is None else scores + correction.float()
    if router.groups > 1:
        preferred = _best_groups(router, preferred)
    chosen = preferred.topk(k, -1).indices
    weights = scores.gather(-1, chosen)
    if router.normalise:
        weights = weights / (
            weights.sum(-1, keepdim=True) + (1e-20 if router.scores == "sigmoid" else 0)
        )
    return chosen, (weights * router.scale).to(logits.dtype)


def _best_groups(router: Router, scores: Tensor) -> Tensor:
    """Scores with the experts of all but the best groups left out."""
    grouped = scores.view(len(scores), router.groups, -1)
    best = grouped.topk(min(router.group_best, grouped.shape[-1]), -1).values.sum(-1)
    out = torch.ones_like(best, dtype=torch.bool)
    out.scatter_(1, best.topk(router.kept, -1).indices, False)
    return grouped.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(1)


def experts(
    style: Style,
    w: Slots,
    x: Tensor,
    k: int,
    see: See = nobody,
    whole: Callable[[Tensor], Tensor] = same,
) -> Tensor:
    """Routed experts, and shared ones beside them, of tokens (B, T, d).

    ``whole`` joins the ranks' shares.
    """
    flat = x.reshape(-1, x.shape[-1])
    logits = linear(w, "router", flat)
    see("router", logits)
    chosen, weights = choose(style.router, logits, w.get("router.correction"), k)
    see("router.chosen", chosen)
    out = torch.zeros_like(flat)
    routed = {slot: each for slot, each in w.items() if ".routed" in slot}
    for e in torch.unique(chosen).tolist():
        token, at = torch.where(chosen == e)
        one = {slot.replace(".routed", ""): each[e] for slot, each in routed.items()}
        out.index_add_(0, token, mlp(style, one, flat[token]) * weights[token, at, None])
    out = whole(out).view_as(x)
    if "mlp.down.shared" in w:
        beside = mlp(style, w, x, ".shared", see, whole)
        if "router.shared" in w:
            beside = beside * torch.sigmoid(F.linear(x, w["router.shared"]))
        out = out + beside
    see("mlp.out", out)
    return out
