"""A real training step on weights made for it, and what each kind of memory really took."""

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

_MOMENTS = ("exp_avg", "exp_avg_sq")


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
        self.device = device
        self.dtype = dtype
        self.ranks = ALONE
        self.loaded = Loaded()
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
            shape = [int(s) for s in weight.applied_shape]
            count = int(weight.experts) if many else 1
            drawn = [self._drawn(weight, shape) for _ in range(count)]
            self.made[key] = [t.to(self.dtype).requires_grad_(not weight.buffer) for t in drawn]
        return self.made[key] if many else self.made[key][0]

    def _drawn(self, weight: Weight, shape: list[int]) -> Tensor:
        """Ones where something is scaled, else small random numbers."""
        if weight.op == "scale":
            return torch.ones(shape, device=self.device)
        return torch.randn(shape, device=self.device) * 0.02

    def parameters(self) -> list[Tensor]:
        """Everything that is trained."""
        return [t for tensors in self.made.values() for t in tensors if t.requires_grad]


def _loss(logits: Tensor, ids: Tensor) -> Tensor:
    """How badly every token but the first was foretold."""
    guesses = logits[:, :-1].flatten(0, 1).float()  # (B·(T - 1), V)
    return F.cross_entropy(guesses, ids[:, 1:].flatten())


def step(
    model: Model, tokens: int, batch: int, device: torch.device, dtype: torch.dtype
) -> Stepped:
    """One step of AdamW on ``batch`` sequences of ``tokens`` random ids.

    Weights and moments are in ``dtype``.
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
    ids = torch.randint(0, vocab, (batch, tokens), device=device)  # (B, T)
    reset_peak(device)
    with Alive() as alive:
        logits = runner.forward(ids, runner.cache(batch, tokens), every=True)  # (B, T, V)
        loss = _loss(logits, ids)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moments = [state[key] for state in optimizer.state.values() for key in _MOMENTS]
    held = sum(p.nbytes for p in parameters)
    # the CPU's peak counts what was made in the step; the weights were there before
    peak = memory(device).peak if device.type == "cuda" else alive.peak + held
    return Stepped(
        weights=held,
        gradients=sum(p.grad.nbytes for p in parameters if p.grad is not None),
        optimizer=sum(m.nbytes for m in moments),
        peak=int(peak),
        loss=loss.item(),
    )
