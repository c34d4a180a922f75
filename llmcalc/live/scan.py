"""Mamba's selective scan (arXiv 2312.00752), token by token.

Slow, plain, and the same on every device. Channels are d_in, the rank of the steps is R.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.forward import Forward
from llmcalc.live.cache import States
from llmcalc.live.forward_pass import Pass
from llmcalc.live.ops import activation, linear
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan


def scan(style: Forward, plan: LayerPlan, w: Slots, x: Tensor, states: States, run: Pass) -> Tensor:
    """One layer of x (B, T, d); its convolution window and its state move on."""
    act = activation(style.activation)
    see = run.at(plan.index)
    real: Tensor | None = None
    if run.valid is not None:
        new = run.valid[:, run.first : run.first + run.new]  # (B, T)
        real = new[:, :, None].to(x.dtype)  # (B, T, 1)
    both = linear(w, "ssm.in", x if real is None else x * real)  # (B, T, 2·d_in)
    see("ssm.in", both)
    inner, gate = both.transpose(1, 2).chunk(2, 1)  # (B, d_in, T) each
    inner = act(_convolve(w, inner, states))  # (B, d_in, T)
    if real is not None:
        # zeros again where there is padding, as MambaMixer does (modeling_mamba.py)
        inner = inner * real.transpose(1, 2)
    see("ssm.conv", inner.transpose(1, 2))
    d_state = states.recurrent.shape[2]
    rank = w["ssm.dt"].shape[1]
    chosen = linear(w, "ssm.x", inner.transpose(1, 2))  # (B, T, R + 2·N)
    see("ssm.x", chosen)
    step, into, out_of = torch.split(chosen, [rank, d_state, d_state], -1)
    step = F.linear(step, w["ssm.dt"]).float() + w["ssm.dt.bias"].float()
    step = F.softplus(step)  # (B, T, d_in)
    see("ssm.dt", step)
    mixed = _scan(inner.float(), step, w["ssm.a"], into.float(), out_of.float(), states)
    skip = w["ssm.d"].float()[:, None]  # (d_in, 1)
    mixed = (mixed + inner.float() * skip) * act(gate.float())  # (B, d_in, T)
    see("state.conv", states.conv)
    see("state.recurrent", states.recurrent)
    return linear(w, "ssm.out", mixed.transpose(1, 2).to(x.dtype))  # (B, T, d)


def _convolve(w: Slots, inner: Tensor, states: States) -> Tensor:
    """A causal convolution per channel over what came before and what is new, (B, d_in, T)."""
    width = states.conv.shape[2]
    whole = torch.cat((states.conv, inner), 2)  # (B, d_in, K + T)
    states.conv.copy_(whole[:, :, -width:])  # (B, d_in, K)
    # of the K columns before, the oldest is out of the first output's reach
    seen = whole[:, :, 1:]  # (B, d_in, K - 1 + T)
    return F.conv1d(seen, w["ssm.conv"], w.get("ssm.conv.bias"), groups=inner.shape[1])


def _scan(
    inner: Tensor, step: Tensor, a_log: Tensor, into: Tensor, out_of: Tensor, states: States
) -> Tensor:
    """``h = exp(Δ·A)·h + Δ·B·x``, ``y = C·h`` for every token in turn, (B, d_in, T)."""
    decay = -torch.exp(a_log.float())  # (d_in, N), A itself
    h = states.recurrent.float()  # (B, d_in, N)
    found: list[Tensor] = []
    for t in range(inner.shape[2]):
        delta = step[:, t, :, None]  # (B, d_in, 1)
        h = torch.exp(delta * decay) * h  # (B, d_in, N)
        h = h + delta * into[:, t, None, :] * inner[:, :, t, None]
        found.append((h * out_of[:, t, None, :]).sum(-1))  # (B, d_in)
    states.recurrent.copy_(h)
    return torch.stack(found, -1)
