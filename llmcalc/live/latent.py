"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

The cache keeps latents; the heads' keys and values are made of them anew.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.forward import Forward
from llmcalc.live.cache import Kept
from llmcalc.live.forward_pass import Pass
from llmcalc.live.ops import See, linear, norm
from llmcalc.live.rotary import turn
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan


def project(
    style: Forward, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept, run: Pass
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of x (B, T, d), and the places (S) of the keys.

    Queries are (B, n_h, T, d_n + d_r), keys (B, n_h, S, d_n + d_r), values (B, n_h, S, d_v): the
    first d_n numbers of a head know no position, the other d_r are turned.
    """
    m = plan.mixers[0]
    r_kv, d_r = int(m.keys), int(m.values)
    n_h, d_v = int(m.n_heads), int(m.d_v)
    d_n = int(m.d_qk) - d_r
    see = run.at(plan.index)
    q = _heads(_queries(style, w, x, see), n_h)  # (B, n_h, T, d_n + d_r)
    down = linear(w, "attn.kv_a", x)  # (B, T, r_kv + d_r)
    see("attn.kv_a", down)
    latent, key = torch.split(down, [r_kv, d_r], -1)
    rotary = style.rotary
    assert rotary is not None
    cos, sin = run.angles(rotary, x.dtype)
    turned = turn(q[..., d_n:], cos, sin, rotary.interleaved)  # (B, n_h, T, d_r)
    key = turn(key.unsqueeze(1), cos, sin, rotary.interleaved)  # (B, 1, T, d_r)
    latent = norm(style, w, "attn.kv_a_norm", latent)  # (B, T, r_kv)
    see("attn.kv_a_norm", latent)
    # the cache has the latents as its keys and the one rotary key as its values
    latents, keys, places = kept.extend(latent.unsqueeze(1), key)  # (B, 1, S, r_kv), (B, 1, S, d_r)
    wide = F.linear(latents[:, 0], w["attn.kv_b"])  # (B, S, n_h·(d_n + d_v))
    k_nope, v = torch.split(_heads(wide, n_h), [d_n, d_v], -1)
    see("attn.kv_b", wide)
    # every head has the same rotary key: transformers 5.24, modeling_deepseek_v3.py
    k = torch.cat((k_nope, keys.expand(-1, n_h, -1, -1)), -1)  # (B, n_h, S, d_n + d_r)
    q = torch.cat((q[..., :d_n], turned), -1)
    return q, k, v, places


def _queries(style: Forward, w: Slots, x: Tensor, see: See) -> Tensor:
    """(B, T, n_h · (d_n + d_r)), by way of a latent of r_q numbers where the layer has one."""
    slot = "attn.q"
    if "attn.q_a" in w:
        slot = "attn.q_b"
        x = linear(w, "attn.q_a", x)  # (B, T, r_q)
        see("attn.q_a", x)
        x = norm(style, w, "attn.q_a_norm", x)
        see("attn.q_a_norm", x)
    q = linear(w, slot, x)
    see(slot, q)
    return q


def _heads(x: Tensor, n_h: int) -> Tensor:
    """(B, T, heads · width) as (B, heads, T, width)."""
    return x.view(*x.shape[:2], n_h, -1).transpose(1, 2)
