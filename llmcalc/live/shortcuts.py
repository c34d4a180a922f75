"""What shortcuts do to gradients, measured: a stack of linear layers with and without them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


def mean_gradients(
    widths: Sequence[int], x: Sequence[float], target: float, seed: int, shortcuts: bool
) -> list[float]:
    """The mean |gradient| of each layer's weight under a squared error.

    Weights are torch's own, drawn with ``seed``. A shortcut adds a layer's input to its output
    where the two have one shape (arXiv 1512.03385).
    """
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    layers = [nn.Linear(width, following) for width, following in pairwise(widths)]
    torch.set_rng_state(state)
    h = torch.tensor([list(x)], dtype=torch.float32)  # (1, widths[0])
    for layer in layers:
        y = F.gelu(layer(h), approximate="tanh")  # (1, the next width)
        h = h + y if shortcuts and h.shape == y.shape else y
    loss = F.mse_loss(h, torch.full_like(h, target))
    gradients = torch.autograd.grad(loss, [layer.weight for layer in layers])
    return [float(g.abs().mean()) for g in gradients]
