"""Mamba's selective scan (arXiv 2312.00752), token by token: slow, plain, and the same on every
device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.forward import Style
from llmcalc.live.attention import Pass
from llmcalc.live.cache import States
from llmcalc.live.ops import activation, linear
from llmcalc.live.weights import Slots
from llmcalc.questions.layer_plan import LayerPlan


def scan(style: Style, plan: LayerPlan, w: Slots, x: Tensor, states: States, run: Pass) -> Tensor:
    """One layer of x (B, T, d); its convolution window and its state move on."""
    act = activation(style.activation)
    real = (
        None
        if run.valid is None
        else run.valid[:, run.first : run.first + run.new, None].to(x.dtype)
    )
    see = run.at(plan.index)
    both = linear(w, "ssm.in", x if real is None else x * real)
    see("ssm.in", both)
    inner, gate = both.transpose(1, 2).chunk(2, 1)
    inner = act(_convolve(w, inner, states))
    inner = inner if real is None else inner * real.transpose(1, 2)
    see("ssm.conv", inner.transpose(1, 2))
    d_state, rank = states.recurrent.shape[2], w["ssm.dt"].shape[1]
    chosen = linear(w, "ssm.x", inner.transpose(1, 2))
    see("ssm.x", chosen)
    step, into, out_of = torch.split(chosen, [rank, d_state, d_state], -1)
    step = F.softplus(F.linear(step, w["ssm.dt"]).float() + w["ssm.dt.bias"].float())
    see("ssm.dt", step)
    mixed = _scan(
        inner.float(), step, -torch.exp(w["ssm.a"].float()), into.float(), out_of.float(), states
    )
    mixed = (mixed + inner.float() * w["ssm.d"].float()[:, None]) * act(gate.float())
    see("state.conv", states.conv)
    see("state.recurrent", states.recurrent)
    return linear(w, "ssm.out", mixed.transpose(1, 2).to(x.dtype))


def _convolve(w: Slots, inner: Tensor, states: States) -> Tensor:
    """A causal convolution per channel over what came before and what is new."""
    width = states.conv.shape[2]
    whole = torch.cat((states.conv, inner), 2)
    states.conv.copy_(whole[:, :, -width:])
    return F.conv1d(whole[:, :, 1:], w["ssm.conv"], w.get("ssm.conv.bias"), groups=inner.shape[1])


def _scan(
    inner: Tensor, step: Tensor, decay: Tensor, into: Tensor, out_of: Tensor, states: States
) -> Tensor:
    """``h = exp(Δ·A)·h + Δ·B·x``, ``y = C·h`` for every token in turn, (B, C, T)."""
    h, found = states.recurrent.float(), []
    for t in range(inner.shape[2]):
        delta = step[:, t, :, None]
        h = torch.exp(delta * decay) * h + delta * into[:, t, None, :] * inner[:, :, t, None]
        found.append((h * out_of[:, t, None, :]).sum(-1))
    states.recurrent.copy_(h)
    return torch.stack(found, -1)
