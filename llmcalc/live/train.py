"""A real training step: forward, backward, AdamW, on weights made for it.

And what each kind of memory really took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.errors import UnavailableError
from llmcalc.families import forward
from llmcalc.live.measure import Alive, memory, reset_peak
from llmcalc.live.ranks import ALONE
from llmcalc.live.run import Runner
from llmcalc.live.weights import Loaded, Slots
from llmcalc.questions.layer_plan import LayerPlan
from llmcalc.sources import Model


@dataclass(frozen=True, slots=True)
class Stepped:
    """Bytes of a real step: what is held, and the most that was alive at once."""

    weights: int
    gradients: int
    optimizer: int
    peak: int
    loss: float


class _Made:
    """Random weights in the place of a checkpoint's, each a parameter that is trained."""

    def __init__(self, anatomy: Anatomy, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.ranks, self.loaded = device, dtype, ALONE, Loaded()
        self.made: dict[tuple[str, int], list[Tensor]] = {}
        torch.manual_seed(0)

    def layer(self, plan: LayerPlan) -> Slots:
        """One layer's parameters."""
        return self.of(plan.weights, plan.index)

    def of(self, weights: Mapping[str, Weight], layer: int = 0) -> Slots:
        """Parameters by slot, made when they are first asked for; tied ones are their owner's."""
        return {slot: self._one(w, layer) for slot, w in weights.items() if not w.tied_to}

    def _one(self, weight: Weight, layer: int) -> Tensor | list[Tensor]:
        many = weight.routed
        key = (weight.name, layer)
        if key not in self.made:
            shape = [int(n) for n in weight.applied_shape]  # (out, in)
            plain = torch.ones if weight.op == "scale" else torch.randn
            copies = int(weight.experts) if many else 1
            each = [plain(shape, device=self.device) for _ in range(copies)]
            spread = [t if weight.op == "scale" else t * 0.02 for t in each]
            self.made[key] = [t.to(self.dtype).requires_grad_(not weight.buffer) for t in spread]
        return self.made[key] if many else self.made[key][0]

    def parameters(self) -> list[Tensor]:
        """Everything that is trained."""
        return [t for tensors in self.made.values() for t in tensors if t.requires_grad]


def step(
    model: Model, tokens: int, batch: int, device: torch.device, dtype: torch.dtype
) -> Stepped:
    """One step of AdamW on ``batch`` sequences of ``tokens`` random ids, weights and moments in
    ``dtype``.
    """
    weights = _Made(model.anatomy, device, dtype)
    found = forward(model.config)
    if any(m.kind == "state" for m in model.anatomy.mixers):
        raise UnavailableError(
            f"training {model.anatomy.family} is not supported here: its scan has no backward pass"
        )
    runner = Runner(model.anatomy, found, weights)  # type: ignore[arg-type]
    assert model.anatomy.n_layers == len(runner.plans)
    parameters = weights.parameters()
    optimizer = torch.optim.AdamW(parameters)
    vocab = int(runner.before["embed.token"].shape[0])
    ids = torch.randint(0, vocab, (batch, tokens), device=device)
    reset_peak(device)
    with Alive() as alive:
        logits = runner.forward(ids, runner.cache(batch, tokens), every=True)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moments = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    held = sum(t.nbytes for t in parameters)
    peak = memory(device).peak if device.type == "cuda" else alive.peak + held
    grads = sum(p.grad.nbytes for p in parameters if p.grad is not None)
    return Stepped(held, grads, sum(m.nbytes for m in moments), int(peak), loss.item())
