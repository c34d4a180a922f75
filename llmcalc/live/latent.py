"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache keeps latents, heads are
made of them anew.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.forward import Style
from llmcalc.live.attention import Pass
from llmcalc.live.cache import Kept
from llmcalc.live.ops import See, linear, norm
from llmcalc.live.rotary import turn
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan


def project(
    style: Style, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept, run: Pass
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys (B, H, T, d_nope + d_rope), values (B, H, T, d_v), and the places of the
    keys.
    """
    m = plan.mixers[0]
    rank, d_rope, n, d_v = int(m.keys), int(m.values), int(m.n_heads), int(m.d_v)
    d_nope = int(m.d_qk) - d_rope
    see = run.at(plan.index)
    q = _heads(_queries(style, w, x, see), n)
    down = linear(w, "attn.kv_a", x)
    see("attn.kv_a", down)
    latent, key = torch.split(down, [rank, d_rope], -1)
    rotary = style.rotary
    assert rotary is not None
    cos, sin = run.angles(rotary, x.dtype)
    turned = turn(q[..., d_nope:], cos, sin, rotary.interleaved)
    key = turn(key.unsqueeze(1), cos, sin, rotary.interleaved)
    latent = norm(style, w, "attn.kv_a_norm", latent)
    see("attn.kv_a_norm", latent)
    latents, keys, places = kept.extend(latent.unsqueeze(1), key)
    wide = F.linear(latents[:, 0], w["attn.kv_b"])
    k_nope, v = torch.split(_heads(wide, n), [d_nope, d_v], -1)
    see("attn.kv_b", wide)
    k = torch.cat((k_nope, keys.expand(-1, n, -1, -1)), -1)
    return torch.cat((q[..., :d_nope], turned), -1), k, v, places


def _queries(style: Style, w: Slots, x: Tensor, see: See) -> Tensor:
    slot = "attn.q"
    if "attn.q_a" in w:
        x, slot = linear(w, "attn.q_a", x), "attn.q_b"
        see("attn.q_a", x)
        x = norm(style, w, "attn.q_a_norm", x)
        see("attn.q_a_norm", x)
    q = linear(w, slot, x)
    see(slot, q)
    return q


def _heads(x: Tensor, n: int) -> Tensor:
    return x.view(*x.shape[:2], n, -1).transpose(1, 2)
