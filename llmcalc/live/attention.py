"""Attention: queries, keys and values from a layer's weights, turned, cached, and mixed.

The mixing itself is torch's ``scaled_dot_product_attention``, unless the weights are asked for or
scores are capped or have sinks: then the same in plain steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.anatomy import Mixer
from llmcalc.forward import Forward, Rotary
from llmcalc.live.cache import Kept
from llmcalc.live.forward_pass import Pass
from llmcalc.live.latent import project as project_latents
from llmcalc.live.ops import See, linear, norm
from llmcalc.live.rotary import slopes, turn
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan


def attend(style: Forward, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept, run: Pass) -> Tensor:
    """One layer's attention of x (B, T, d)."""
    if plan.mixers[0].kind == "latent":
        q, k, v, places = project_latents(style, plan, w, x, kept, run)
    else:
        q, k, v = _project(style, plan, w, x, run.at(plan.index))
        rotary = _rotary(style, plan.index, kept.window)
        if rotary is not None:
            cos, sin = run.angles(rotary, x.dtype)
            q = turn(q, cos, sin, rotary.interleaved)  # (B, n_h, T, d_h)
            k = turn(k, cos, sin, rotary.interleaved)  # (B, n_kv, T, d_h)
        k, v, places = kept.extend(k, v)  # (B, n_kv, S, d_h), places (S)
    mixed = mix(style, plan, w, (q, k, v), run, run.mask(kept.window, places))
    joined = mixed.transpose(1, 2).flatten(2)  # (B, T, n_h·d_v)
    run.see(plan.index, "attn.mix", joined)
    return linear(w, "attn.o", joined)  # (B, T, d)


def _rotary(style: Forward, layer: int, window: int | None) -> Rotary | None:
    if layer in style.unrotated:
        return None
    if window is not None and style.local_rotary is not None:
        return style.local_rotary
    return style.rotary


def _project(
    style: Forward, plan: LayerPlan, w: Slots, x: Tensor, see: See
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, n_h, T, d_h), keys and values (B, n_kv, T, d_h), normed where the layer does."""
    m = plan.mixers[0]
    d_qk, d_v = int(m.d_qk), int(m.d_v)
    if "attn.qkv" in w:
        both = linear(w, "attn.qkv", x)  # (B, T, (n_h + 2·n_kv)·d_h)
        see("attn.qkv", both)
        q, k, v = _split(style, m, both)
    else:
        q = linear(w, "attn.q", x)  # (B, T, n_h·d_h)
        k = linear(w, "attn.k", x)  # (B, T, n_kv·d_h)
        v = linear(w, "attn.v", x)  # (B, T, n_kv·d_v)
    see("attn.q", _heads(q, d_qk))
    see("attn.k", _heads(k, d_qk))
    see("attn.v", _heads(v, d_v))
    q = _qk_norm(style, w, "attn.q_norm", q, d_qk, see)
    k = _qk_norm(style, w, "attn.k_norm", k, d_qk, see)
    return _heads(q, d_qk), _heads(k, d_qk), _heads(v, d_v)


def _heads(x: Tensor, width: int) -> Tensor:
    """(B, T, heads · width) as (B, heads, T, width)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)


def _qk_norm(style: Forward, w: Slots, slot: str, x: Tensor, width: int, see: See) -> Tensor:
    """A norm over one head, or over all heads at once, by the size of its weight."""
    if slot not in w:
        return x
    if w[slot].numel() != width:
        whole = norm(style, w, slot, x, style.qk_norm_kind)  # (B, T, heads·d_h)
        see(slot, whole)
        return whole
    by_head = x.view(*x.shape[:2], -1, width)  # (B, T, heads, d_h)
    each = norm(style, w, slot, by_head, style.qk_norm_kind)
    see(slot, each.transpose(1, 2))
    return each.flatten(2)


def _split(style: Forward, m: Mixer, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A fused projection's three sides, each (B, T, heads · width)."""
    n_h, n_kv, d_h = int(m.n_heads), int(m.n_kv_heads), int(m.d_qk)
    if style.qkv == "sides":
        q, k, v = torch.split(both, [n_h * d_h, n_kv * d_h, n_kv * int(m.d_v)], -1)
        return q, k, v
    if style.qkv == "heads":
        by_head = both.view(*both.shape[:2], n_h, 3, d_h)
        q, k, v = by_head.unbind(-2)  # (B, T, n_h, d_h) each
    else:
        # a key/value head stands behind the queries that share it: modeling_falcon.py
        groups = both.view(*both.shape[:2], n_kv, n_h // n_kv + 2, d_h)
        q = groups[..., :-2, :]  # (B, T, n_kv, n_h/n_kv, d_h)
        k = groups[..., -2, :]  # (B, T, n_kv, d_h)
        v = groups[..., -1, :]  # (B, T, n_kv, d_h)
    return q.flatten(2), k.flatten(2), v.flatten(2)


def scale_of(style: Forward, m: Mixer, layer: int) -> float:
    """What a layer's scores are multiplied by."""
    scale = style.scale if style.scale is not None else float(m.d_qk) ** -0.5
    return scale / (layer + 1) if style.scale_by_layer else scale


def mix(
    style: Forward,
    plan: LayerPlan,
    w: Slots,
    qkv: tuple[Tensor, Tensor, Tensor],
    run: Pass,
    mask: Tensor | None,
) -> Tensor:
    """Values mixed by how well queries and keys agree, (B, n_h, T, d_v)."""
    q, k, v = qkv  # (B, n_h, T, d_h), (B, n_kv, S, d_h), (B, n_kv, S, d_v)
    scale = scale_of(style, plan.mixers[0], plan.index)
    if style.positions == "alibi":
        mask = _alibi(style, q, k, run, mask, scale)  # (B or 1, n_h, T, S)
    sinks = w.get("attn.sinks")  # (n_h)
    if style.score_cap or sinks is not None or plan.index in run.weights_of:
        return _by_hand(style, plan.index, qkv, run, mask, scale, sinks)
    causal = mask is None and run.new > 1
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def _by_hand(
    style: Forward,
    layer: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    run: Pass,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """What torch's kernel does, in steps that can be watched."""
    q, k, v = qkv
    queries_per_key = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(queries_per_key, 1)  # (B, n_h, S, d_h)
    v = v.repeat_interleave(queries_per_key, 1)  # (B, n_h, S, d_v)
    seen = k.shape[2]
    scores = (q @ k.transpose(-1, -2)) * scale  # (B, n_h, T, S)
    if style.score_cap:
        # capped before the mask: transformers 5.24, modeling_gemma2.py
        scores = torch.tanh(scores / style.score_cap) * style.score_cap
    run.see(layer, "attn.scores", scores)
    if mask is None and run.new > 1:
        mask = torch.ones(run.new, seen, dtype=torch.bool, device=q.device).tril()  # (T, S)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        # a sink takes weight and gives no value: transformers 5.24, modeling_gpt_oss.py
        column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)  # (B, n_h, T, 1)
        scores = torch.cat((scores, column), -1)  # (B, n_h, T, S + 1)
    weights = scores.float().softmax(-1).to(v.dtype)
    weights = weights[..., :seen]  # (B, n_h, T, S)
    run.see(layer, "attn.weights", weights)
    return weights @ v  # (B, n_h, T, d_v)


def _alibi(
    style: Forward, q: Tensor, k: Tensor, run: Pass, mask: Tensor | None, scale: float
) -> Tensor:
    """A bias that grows with the key's position, and minus infinity where a query may not look."""
    n_h, seen = q.shape[1], k.shape[2]
    at = torch.arange(seen, device=q.device)[None]  # (1, S)
    if run.valid is not None:
        # positions count real tokens alone: build_alibi_tensor of modeling_bloom.py
        real = run.valid[:, :seen].long()  # (B, S)
        at = (real.cumsum(-1) - 1) * real
    kind = torch.bfloat16 if style.alibi_dtype == "bfloat16" else q.dtype
    steep = slopes(n_h, kind, q.device)[None, :, None, None]  # (1, n_h, 1, 1)
    bias = (steep * at[:, None, None, :]).to(q.dtype)  # (B or 1, n_h, 1, S)
    if style.alibi_scaled:
        bias = bias * scale
    if mask is None:
        mask = torch.ones(run.new, seen, dtype=torch.bool, device=q.device)
        mask = mask.tril(seen - run.new)  # (T, S)
    return bias.masked_fill(~mask, float("-inf"))  # (B or 1, n_h, T, S)
