"""The tensors of a file that stand for one packed weight, under whatever names its writer uses."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from math import prod

from llmcalc.formats.recipe import Recipe
from llmcalc.formats.scheme import full_name
from llmcalc.sources.names import Want

Shapes = Mapping[str, tuple[int, ...]]

_MAY_LACK = (
    *("g_idx", "weight_g_idx", "weight_shape", "weight_format", "pre_quant_scale"),
    *("input_scale", "output_scale", "activation_scale", "input_global_scale", "global_scale"),
    *("input_zero_point", "output_zero_point"),
)
"""Endings that some versions of a writer leave away."""
_BESIDE = (
    *_MAY_LACK,
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale"),
    *("weight_zero_point", "weight.nested_absmax", "weight.nested_quant_map"),
    *("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
)
"""Endings that may stand beside a packed weight."""
_OF_THE_CACHE = ("k_scale", "v_scale", "q_scale", "kv_scale", "k_zero_point", "v_zero_point")
_SWITCH = re.compile(r"(.*)[.]switch_mlp[.](\w+)[.](.*)")
_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def is_cache_scale(name: str) -> bool:
    """Whether a tensor scales the cache's keys or values."""
    return name.rpartition(".")[2] in _OF_THE_CACHE


def take(
    name: str,
    want: Want,
    found: tuple[int, ...] | None,
    have: dict[str, tuple[int, ...]],
    recipe: Recipe | None,
) -> list[str]:
    """The tensors that stand for a weight, taken out of ``have``; none where they do not.

    The largest must have the shape that the recipe says, scales as many numbers. A matrix that the
    writer left as it was is one tensor, with what it wrote beside it all the same.
    """
    if recipe is None:
        return []
    shapes = _shapes(name, want, recipe)
    parts = _packed(shapes, ChainMap({name: found} if found else {}, have))
    if not parts and found != want.shape:
        return []
    beside = [full_name(name, ending) for ending in _BESIDE] if want.weight.is_matrix else []
    # a scale of another shape than the recipe's is no part of what is right
    beside = [b for b in beside if b not in shapes or have.get(b) == shapes[b]]
    taken = [part for part in dict.fromkeys((*parts, name, *beside)) if part in have]
    if not parts or name in parts:
        taken = list(dict.fromkeys((name, *taken)))
    for part in taken:
        have.pop(part, None)
    return taken


def _shapes(name: str, want: Want, recipe: Recipe) -> Shapes:
    """What the recipe makes of a weight: nothing where it leaves it wide."""
    weight = want.weight
    layout = recipe.of(weight, name)
    if layout is None:
        return {}
    inputs, outputs = weight.inputs, weight.outputs
    if weight.op == "lookup":
        inputs, outputs = outputs, inputs
    stack = (int(weight.experts),) if weight.stacked else ()
    return {
        full_name(name, ending): (*stack, *(int(n) for n in piece.shape))
        for ending, piece in layout(inputs, outputs).items()
    }


def _packed(shapes: Shapes, seen: Shapes) -> list[str]:
    """The parts that are there, nothing where they are not what the recipe makes."""
    if not shapes:
        return []
    largest = max(shapes, key=lambda part: prod(shapes[part]))
    if seen.get(largest) != shapes[largest]:
        return []
    for part, shape in shapes.items():
        there = seen.get(part)
        if there is None and not (part.endswith(_MAY_LACK) or _fused(part, seen)):
            return []
        if there is not None and prod(there) != prod(shape):
            return []
    return [part for part in shapes if part in seen]


def _fused(part: str, seen: Shapes) -> bool:
    """Whether the scales of all experts are one tensor, as transformers 5 writes them."""
    stack, experts, _ = part.partition(".experts.")
    return bool(experts) and any(
        f"{stack}.experts.{side}_scale_inv" in seen for side in ("gate_up_proj", "down_proj")
    )


def is_fused_scale(name: str) -> bool:
    """Whether a tensor has the scales of all experts of a layer."""
    return name.endswith((".experts.gate_up_proj_scale_inv", ".experts.down_proj_scale_inv"))


def unstacked(have: Shapes, experts_of: str) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """MLX's stacks of experts as single ones, and which tensor of the file each is of.

    ``experts_of`` is the name of one promised expert: Mixtral calls its matrices otherwise.
    """
    expanded: dict[str, tuple[int, ...]] = {}
    origin: dict[str, str] = {}
    mixtral = ".w1." in experts_of or ".w2." in experts_of
    for name, shape in have.items():
        found = _SWITCH.fullmatch(name)
        if found is None or not shape or shape[0] > 100_000:
            expanded[name] = shape
            continue
        matrix = _MIXTRAL.get(found[2], found[2]) if mixtral else found[2]
        for expert in range(shape[0]):
            single = f"{found[1]}.experts.{expert}.{matrix}.{found[3]}"
            expanded[single], origin[single] = shape[1:], name
    return expanded, origin
