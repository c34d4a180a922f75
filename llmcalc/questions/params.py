"""How many parameters, where, and which of them one token passes through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from llmcalc.anatomy import ONCE, Anatomy, Layers, Weight
from llmcalc.dims import Dim, total


@dataclass(frozen=True, slots=True)
class Group:
    """Some weights that are counted together, under one name."""

    name: str
    weights: tuple[Weight, ...]

    @property
    def params(self) -> Dim:
        """Parameters of the group, each once."""
        return count(w for w in self.weights if w.counted)


def count(
    weights: Iterable[Weight], per_layer: Callable[[Weight], Dim] = lambda w: w.per_layer
) -> Dim:
    """The sum over some weights, those of the same layers gathered in one bracket:

    ``V·d + L·(12d² + 13d) + 2d``.
    """
    stacks: dict[tuple[object, ...], tuple[Layers, list[Dim]]] = {}
    for number, weight in enumerate(weights):
        once = weight.layers is ONCE or weight.layers == ONCE
        key = (number,) if once else (weight.layers.indices, weight.layers.count.node)
        stacks.setdefault(key, (weight.layers, []))[1].append(per_layer(weight))
    return total(layers.count * total(sizes) for layers, sizes in stacks.values())


def stored(anatomy: Anatomy) -> Dim:
    """Elements that the checkpoint holds: every parameter once, and the buffers."""
    return count(w for w in anatomy.weights if not w.tied_to and not w.extra)


def parameters(anatomy: Anatomy) -> Dim:
    """Parameters, tied weights once, without buffers and without multi-token-prediction layers."""
    return count(w for w in anatomy.weights if w.counted)


def buffers(anatomy: Anatomy) -> Dim:
    """Elements of tensors that are stored and are not parameters."""
    return count(w for w in anatomy.weights if w.buffer and not w.tied_to and not w.extra)


def active(anatomy: Anatomy) -> Dim:
    """Parameters that a text token passes through: of the experts the chosen ones, the embedding
    whole, no tower.
    """
    return count((w for w in anatomy.weights if w.counted and w.text), lambda w: w.used)


def active_without_embedding(anatomy: Anatomy) -> Dim:
    """The active parameters without lookup tables, unless the head uses the table too."""
    heads = {w.tied_to for w in anatomy.weights if w.role == "head"}
    kept = (
        w for w in anatomy.weights if w.counted and w.text and (w.op != "lookup" or w.name in heads)
    )
    return count(kept, lambda w: w.used)


def embeddings(anatomy: Anatomy) -> Dim:
    """Lookup tables: tokens, positions, types."""
    return count(w for w in anatomy.weights if w.counted and w.op == "lookup")


def positions(anatomy: Anatomy) -> Dim:
    """Tables of positions alone."""
    return count(w for w in anatomy.weights if w.counted and w.role == "embed.position")


def n_tensors(anatomy: Anatomy) -> int:
    """Tensors that the checkpoint holds: tied ones once, buffers left out."""
    return sum(tensor_count(w) for w in anatomy.weights if w.counted)


def explains(anatomy: Anatomy, difference: int) -> str | None:
    """What a counted total and another one differ by, where it is one thing: a part, the tables, an
    untied head.

    ``difference`` is the counted total minus the other. A tied head that somebody counts is -V·d,
    no part of ours.
    """
    for group in (*by_part(anatomy), *by_role(anatomy)):
        if difference and int(group.params) == difference:
            return f"which is {group.name} ({group.params.formula})"
    for weight in anatomy.weights:
        if weight.tied_to and int(weight.per_layer) == -difference:
            return (
                f"which is {part_name(weight)}, tied to {weight.tied_to} and counted once"
                f" ({weight.per_layer.formula})"
            )
    for name, kept in (
        ("the lookup tables", embeddings(anatomy)),
        ("the buffers", -int(buffers(anatomy))),
    ):
        if difference and int(kept) == difference:
            return f"which is {name}"
    return None


def tensor_count(weight: Weight) -> int:
    """How many tensors one weight stands for."""
    return len(weight.layers.indices) * (int(weight.experts) if weight.by_expert else 1)


def by_part(anatomy: Anatomy) -> list[Group]:
    """The weights by the module they belong to, in forward order."""
    return _group(anatomy.weights, part_name)


def by_role(anatomy: Anatomy) -> list[Group]:
    """The weights by what they do."""
    return _group(anatomy.weights, lambda w: w.role)


def by_weight(anatomy: Anatomy) -> list[Group]:
    """Every kind of tensor on its own."""
    return [Group(w.name, (w,)) for w in anatomy.weights]


def by_layer(anatomy: Anatomy) -> list[Group]:
    """One group per layer; layers that follow one another and hold the same are one row."""
    groups = []
    for name, weights in _outside_and_stacks(anatomy):
        if isinstance(weights, Weight):
            groups.append(Group(name, (weights,)))
            continue
        runs: list[tuple[tuple[object, ...], list[int]]] = []
        for i in sorted(weights):
            held = tuple((w.name, w.shape, w.experts) for w in weights[i])
            if runs and runs[-1][0] == held:
                runs[-1][1].append(i)
            else:
                runs.append((held, [i]))
        for _, layers in runs:
            first, last = layers[0], layers[-1]
            where = Layers(tuple(layers), Dim(len(layers)))
            members = tuple(replace(w, layers=where) for w in weights[first])
            groups.append(
                Group(f"{name} {first}" if first == last else f"{name} {first}-{last}", members)
            )
    return groups


GROUPS: dict[str, Callable[[Anatomy], list[Group]]] = {
    "part": by_part,
    "layer": by_layer,
    "role": by_role,
    "weight": by_weight,
}


def _outside_and_stacks(anatomy: Anatomy) -> Iterable[tuple[str, Weight | dict[int, list[Weight]]]]:
    """What stands outside of layers, and each stack as the weights of every layer, in forward
    order.
    """
    stacks: dict[str, dict[int, list[Weight]]] = {}
    order: list[tuple[str, Weight | dict[int, list[Weight]]]] = []
    for weight in anatomy.weights:
        if not weight.in_stack:
            order.append((weight.name, weight))
            continue
        name = weight.name.split("{layer}")[0].rstrip(".")
        if name not in stacks:
            stacks[name] = {}
            order.append((name, stacks[name]))
        for i in weight.layers.indices:
            stacks[name].setdefault(i, []).append(weight)
    return order


def part_name(weight: Weight) -> str:
    """The module that a weight belongs to: its path without what tells the tensors of one module
    apart.
    """
    head, layer, tail = weight.name.rpartition("{layer}.")
    if not layer:
        return weight.name.removesuffix(".weight").removesuffix(".bias")
    first, _, rest = tail.partition(".")
    if "experts" in rest:
        kind = "shared_experts" if "shared" in rest else "experts"
        return f"{head}{layer}{first}.{kind}"
    return f"{head}{layer}{first.removesuffix('_bias')}"


def _group(weights: Iterable[Weight], name: Callable[[Weight], str]) -> list[Group]:
    groups: dict[str, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(name(weight), []).append(weight)
    return [Group(key, tuple(members)) for key, members in groups.items()]
