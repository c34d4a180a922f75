"""Slots: what each tensor of a layer is for, under one short name, for whoever walks or runs a list
of parts.

A slot is the weight's role, with ``.routed`` or ``.shared`` for experts and ``.bias`` for what is
added; norms between the blocks are ``norm.0``, ``norm.1`` ... in forward order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Mixer, Part, Weight


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer: its slots in forward order, its mixers, and how many norms stand between its
    blocks.
    """

    index: int
    weights: dict[str, Weight]
    mixers: tuple[Mixer, ...]
    n_norms: int
    order: tuple[Part, ...]

    @property
    def has_experts(self) -> bool:
        """Whether its feed-forward is routed."""
        return "router" in self.weights

    @property
    def attends(self) -> bool:
        """Whether queries look at keys here."""
        return any(m.n_heads and m.kind != "state" for m in self.mixers)


def inside(part: Part) -> bool:
    """Whether a part belongs to the stack of layers."""
    return isinstance(part, Mixer) or part.in_stack


def stem(weight: Weight) -> str:
    """The name of the module that a weight belongs to: without ``.weight``, ``.bias`` or
    ``_bias``.
    """
    name = weight.name
    for ending in (".weight", ".bias", "_bias"):
        name = name.removesuffix(ending)
    return name


def _slot(weight: Weight, norms: Sequence[str]) -> str:
    base = f"norm.{norms.index(stem(weight))}" if weight.role == "norm" else weight.role
    if weight.routed:
        base += ".routed"
    elif "shared" in weight.name:
        base += ".shared"
    if weight.buffer and weight.role == "router":
        return "router.correction"
    if weight.op == "add" and weight.role != "attn.sinks":
        base += ".bias"
    return base


def by_slot(weights: Sequence[Weight]) -> tuple[dict[str, Weight], int]:
    """Weights under their slots, and how many norms there are.

    Two in one slot are told apart by a number.
    """
    norms = list(dict.fromkeys(stem(w) for w in weights if w.role == "norm"))
    found: dict[str, Weight] = {}
    for weight in weights:
        slot = _slot(weight, norms)
        again = slot
        while again in found:
            again = f"{again}'"
        found[again] = weight
    return found, len(norms)


def layer_plan(anatomy: Anatomy, index: int) -> LayerPlan:
    """The parts of one layer, by slot."""
    order = tuple(p for p in anatomy.parts if inside(p) and index in p.layers.indices)
    weights, n_norms = by_slot([p for p in order if isinstance(p, Weight)])
    return LayerPlan(
        index, weights, tuple(p for p in order if isinstance(p, Mixer)), n_norms, order
    )


def outside(anatomy: Anatomy) -> tuple[dict[str, Weight], dict[str, Weight]]:
    """What stands before the stack and what behind it, each by slot."""
    at = [i for i, p in enumerate(anatomy.parts) if inside(p)]
    first = at[0] if at else len(anatomy.parts)
    plain = [(i, p) for i, p in enumerate(anatomy.parts) if isinstance(p, Weight) and not inside(p)]
    before, _ = by_slot([p for i, p in plain if i < first])
    behind, _ = by_slot([p for i, p in plain if i >= first])
    return before, behind
