"""Attention: queries, keys and values from a layer's weights, turned, cached, and mixed.

The mixing itself is torch's ``scaled_dot_product_attention``, unless the weights are asked for or
scores are capped or have sinks: then the same in plain steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.anatomy import Mixer
from llmcalc.forward import Rotary, Style
from llmcalc.live.cache import Kept
from llmcalc.live.ops import See, linear, nobody, norm
from llmcalc.live.rotary import angles, slopes, turn
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan

Watch = Callable[[int | None, str, Tensor], None]
"""Called with layer, slot and tensor as they come about."""


@dataclass(slots=True)
class Pass:
    """One forward pass: where its tokens stand, which are padding, and what has been worked out
    once for all layers.
    """

    positions: Tensor
    first: int
    valid: Tensor | None
    watch: Watch | None = None
    weights_of: frozenset[int] = frozenset()
    _masks: dict[int | None, Tensor | None] = field(default_factory=dict)
    _angles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def new(self) -> int:
        """Tokens per sequence in this pass."""
        return int(self.positions.shape[1])

    def see(self, layer: int | None, slot: str, tensor: Tensor) -> None:
        """Shows a tensor to whoever watches."""
        if self.watch is not None:
            self.watch(layer, slot, tensor)

    def at(self, layer: int) -> See:
        """Shows tensors of one layer to whoever watches."""
        return nobody if self.watch is None else lambda slot, tensor: self.see(layer, slot, tensor)

    def angles(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of this pass's positions."""
        key = id(rotary)
        if key not in self._angles:
            self._angles[key] = angles(rotary, self.positions, dtype)
        return self._angles[key]

    def mask(self, window: int | None, places: Tensor) -> Tensor | None:
        """Which keys each query may see, (B or 1, 1, T, S), or None where plain causality says it
        all.
        """
        if window not in self._masks:
            self._masks[window] = self._mask(window, places)
        return self._masks[window]

    def _mask(self, window: int | None, places: Tensor) -> Tensor | None:
        if self.valid is None and (
            self.new == 1 or (self.first == 0 and (window is None or self.new <= window))
        ):
            return None
        at = torch.arange(self.first, self.first + self.new, device=places.device)[:, None]
        sees = places[None, :] <= at
        if window is not None:
            sees &= at - places[None, :] < window
        if self.valid is None:
            return sees[None, None]
        real = self.valid[:, None, None, places]
        return (sees[None, None] & real) | (at == places[None, :])[None, None]


def attend(style: Style, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept, run: Pass) -> Tensor:
    """One layer's attention of x (B, T, d)."""
    mixer = plan.mixers[0]
    if mixer.kind == "latent":
        from llmcalc.live.latent import project

        q, k, v, places = project(style, plan, w, x, kept, run)
    else:
        q, k, v = _project(style, plan, w, x, run.at(plan.index))
        rotary = _rotary(style, plan.index, kept.window)
        if rotary is not None:
            cos, sin = run.angles(rotary, x.dtype)
            q, k = turn(q, cos, sin, rotary.interleaved), turn(k, cos, sin, rotary.interleaved)
        k, v, places = kept.extend(k, v)
    mixed = mix(style, plan, w, (q, k, v), run, run.mask(kept.window, places))
    joined = mixed.transpose(1, 2).flatten(2)
    run.see(plan.index, "attn.mix", joined)
    return linear(w, "attn.o", joined)


def _rotary(style: Style, layer: int, window: int | None) -> Rotary | None:
    if layer in style.unrotated:
        return None
    return (
        style.local_rotary
        if window is not None and style.local_rotary is not None
        else style.rotary
    )


def _project(
    style: Style, plan: LayerPlan, w: Slots, x: Tensor, see: See
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, T, D), keys and values (B, H_kv, T, D), normed where the layer does so."""
    m = plan.mixers[0]
    d_qk, d_v = int(m.d_qk), int(m.d_v)
    if "attn.qkv" in w:
        both = linear(w, "attn.qkv", x)
        see("attn.qkv", both)
        q, k, v = _split(style, m, both)
    else:
        q, k, v = (linear(w, f"attn.{n}", x) for n in "qkv")
    see("attn.q", _heads(q, d_qk))
    see("attn.k", _heads(k, d_qk))
    see("attn.v", _heads(v, d_v))
    q, k = (
        _qk_norm(style, w, "attn.q_norm", q, d_qk, see),
        _qk_norm(style, w, "attn.k_norm", k, d_qk, see),
    )
    return _heads(q, d_qk), _heads(k, d_qk), _heads(v, d_v)


def _heads(x: Tensor, width: int) -> Tensor:
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


def _qk_norm(style: Style, w: Slots, slot: str, x: Tensor, width: int, see: See) -> Tensor:
    """A norm over one head, or over all heads at once, by the size of its weight."""
    if slot not in w:
        return x
    if w[slot].numel() != width:
        whole = norm(style, w, slot, x, style.qk_norm_kind)
        see(slot, whole)
        return whole
    each = norm(style, w, slot, x.view(*x.shape[:2], -1, width), style.qk_norm_kind)
    see(slot, each.transpose(1, 2))
    return each.flatten(2)


def _split(style: Style, m: Mixer, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A fused projection's three sides, each (B, T, heads · width)."""
    n, n_kv, d = int(m.n_heads), int(m.n_kv_heads), int(m.d_qk)
    if style.qkv == "sides":
        q, k, v = torch.split(both, [n * d, n_kv * d, n_kv * int(m.d_v)], -1)
        return q, k, v
    if style.qkv == "heads":
        q, k, v = both.view(*both.shape[:2], n, 3, d).unbind(-2)
    else:
        groups = both.view(*both.shape[:2], n_kv, n // n_kv + 2, d)
        q, k, v = groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]
    return q.flatten(2), k.flatten(2), v.flatten(2)


def scale_of(style: Style, m: Mixer, layer: int) -> float:
    """What a layer's scores are multiplied by."""
    scale = style.scale if style.scale is not None else float(m.d_qk) ** -0.5
    return scale / (layer + 1) if style.scale_by_layer else scale


def mix(
    style: Style,
    plan: LayerPlan,
    w: Slots,
    qkv: tuple[Tensor, Tensor, Tensor],
    run: Pass,
    mask: Tensor | None,
) -> Tensor:
    """Values mixed by how well queries and keys agree, (B, H, T, D_v)."""
    q, k, v = qkv
    scale = scale_of(style, plan.mixers[0], plan.index)
    if style.positions == "alibi":
        mask = _alibi(style, q, k, run, mask, scale)
    sinks = w.get("attn.sinks")
    if style.score_cap or sinks is not None or plan.index in run.weights_of:
        return _by_hand(style, plan.index, qkv, run, mask, scale, sinks)
    causal = mask is None and run.new > 1
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _by_hand(
    style: Style,
    layer: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    run: Pass,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    q, k, v = qkv
    each = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    scores = (q @ k.transpose(-1, -2)) * scale
    if style.score_cap:
        scores = torch.tanh(scores / style.score_cap) * style.score_cap
    run.see(layer, "attn.scores", scores)
    if mask is None and run.new > 1:
        mask = torch.ones(run.new, k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.float().softmax(-1).to(v.dtype)
    weights = weights[..., : k.shape[2]]
    run.see(layer, "attn.weights", weights)
    return weights @ v


def _alibi(
    style: Style, q: Tensor, k: Tensor, run: Pass, mask: Tensor | None, scale: float
) -> Tensor:
    """A bias that grows with the key's position, and minus infinity where a query may not look."""
    n, seen = q.shape[1], k.shape[2]
    at = torch.arange(seen, device=q.device)[None]
    if run.valid is not None:
        real = run.valid[:, :seen].long()
        at = (real.cumsum(-1) - 1) * real
    kind = torch.bfloat16 if style.alibi_dtype == "bfloat16" else q.dtype
    bias = (slopes(n, kind, q.device)[None, :, None, None] * at[:, None, None, :]).to(q.dtype)
    bias = bias * scale if style.alibi_scaled else bias
    if mask is None:
        mask = torch.ones(run.new, seen, dtype=torch.bool, device=q.device).tril(seen - run.new)
    return bias.masked_fill(~mask, float("-inf"))
