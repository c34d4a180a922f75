"""What the ranks of a training step send each other, in bytes, and the time that takes at a link's
rate.

A ring's all-reduce sends 2·(n - 1)/n of its data per rank; reduce-scatter and all-gather half of
that each.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmcalc.anatomy import Anatomy
from llmcalc.questions.activations import Widths
from llmcalc.questions.recipe import Recipe
from llmcalc.questions.training import rank_of, stored


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of exchange: among how many ranks, and what each sends per step."""

    name: str
    ranks: int
    n_bytes: int
    why: str


def traffic(r: Recipe, anatomy: Anatomy, micro_batches: int = 1) -> list[Traffic]:
    """Everything that one rank sends in a step of so many micro-batches.

    What is not divided sends nothing.
    """
    found = [*_data(r, anatomy, micro_batches), *_tensor(r, anatomy, micro_batches)]
    found += [*_pipeline(r, anatomy, micro_batches), *_experts(r, anatomy, micro_batches)]
    return [t for t in found if t.n_bytes]


def _part(n_bytes: int, ranks: int, times: int) -> int:
    return n_bytes * times * (ranks - 1) // ranks


def _data(r: Recipe, anatomy: Anatomy, micro_batches: int) -> list[Traffic]:
    """Gradients and weights among ranks that hold the same parameters: of routed experts they are
    ep times fewer.
    """
    weights = stored(rank_of(r, anatomy))
    routed = sum(int(w.params) for w in weights if r.ep > 1 and w.routed)
    others = sum(int(w.params) for w in weights) - routed
    ranks = r.dp * r.cp
    found = _exchanges(r, others, ranks, micro_batches, "")
    return found + (
        _exchanges(r, routed, ranks // r.ep, micro_batches, " of experts") if routed else []
    )


def _exchanges(r: Recipe, params: int, n: int, micro_batches: int, of: str) -> list[Traffic]:
    if n == 1:
        return []
    grads, weights = params * min(r.profile.grads, 4), params * 2
    if r.zero == 0:
        return [
            Traffic(
                f"all-reduce of gradients{of}",
                n,
                _part(grads, n, 2),
                "2·(n - 1)/n of the gradients",
            )
        ]
    out = [
        Traffic(
            f"reduce-scatter of gradients{of}", n, _part(grads, n, 1), "(n - 1)/n of the gradients"
        )
    ]
    once = Traffic(
        f"all-gather of weights{of}", n, _part(weights, n, 1), "(n - 1)/n of the 16-bit weights"
    )
    if r.zero < 3:
        return [*out, once]
    often = _part(weights, n, 2 * micro_batches)
    return [*out, Traffic(once.name, n, often, "forward and backward, every micro-batch")]


def _stream(r: Recipe, anatomy: Anatomy) -> int:
    """Bytes of one micro-batch's residual stream in 16 bits."""
    return 2 * r.local_tokens * Widths(anatomy, 0).stream


def _tensor(r: Recipe, anatomy: Anatomy, micro_batches: int) -> list[Traffic]:
    if r.tp == 1:
        return []
    layers = -(-anatomy.n_layers // r.pp)
    n = _part(_stream(r, anatomy), r.tp, 2) * 4 * layers * micro_batches
    return [
        Traffic("all-reduce of activations", r.tp, n, "two forward and two backward in every layer")
    ]


def _pipeline(r: Recipe, anatomy: Anatomy, micro_batches: int) -> list[Traffic]:
    if r.pp == 1:
        return []
    n = 2 * _stream(r, anatomy) * micro_batches * r.interleave
    return [
        Traffic(
            "point to point",
            r.pp,
            n,
            "activations forward, gradients back, at every stage's border",
        )
    ]


def _experts(r: Recipe, anatomy: Anatomy, micro_batches: int) -> list[Traffic]:
    routed = [w for w in anatomy.text if w.role == "mlp.down" and w.routed]
    if r.ep == 1 or not routed:
        return []
    layers = -(-sum(len(w.layers.indices) for w in routed) // r.pp)
    n = 4 * _part(_stream(r, anatomy) * int(routed[0].active), r.ep, 1) * layers * micro_batches
    return [
        Traffic(
            "all-to-all of tokens",
            r.ep,
            n,
            "there and back, forward and backward, in every layer of experts",
        )
    ]
