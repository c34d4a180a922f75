"""What low-rank adapters add to a model: r·(in + out) for every matrix, and out more where it
learns magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import Dim, total


@dataclass(frozen=True, slots=True)
class Added:
    """What one of the model's weights gets: the rank, and the parameters of all its layers and
    experts.
    """

    weight: Weight
    rank: int
    params: Dim


def on_weight(weight: Weight, rank: int, dora: bool = False) -> Dim:
    """A is r x in and B is out x r (LoRA, arXiv 2106.09685).

    DoRA adds a magnitude per output (arXiv 2402.09353).
    """
    out, into = weight.outputs, weight.inputs
    each = Dim(rank, "rank") * total([into, out])
    return weight.layers.count * weight.experts * (total([each, out]) if dora else each)


def added(
    anatomy: Anatomy, rank_of: Callable[[Weight], int], dora: bool = False
) -> Iterator[Added]:
    """Every matrix or table with a rank above 0, in forward order; a tied one is its owner's."""
    for weight in anatomy.weights:
        if weight.op in ("matmul", "lookup") and len(weight.shape) == 2 and not weight.tied_to:
            rank = rank_of(weight)
            if rank:
                yield Added(weight, rank, on_weight(weight, rank, dora and weight.op == "matmul"))
