"""The names of a model's tensors: what its parts promise, and what a file calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight

PREFIXES = (
    "model.",
    "transformer.",
    "language_model.",
    "model.language_model.",
    "backbone.",
    "gpt_neox.",
    "bert.",
    "roberta.",
)
_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_OUTSIDE = ("lm_head", "score")
"""What many files leave outside of a prefix."""


@dataclass(frozen=True, slots=True)
class Want:
    """One tensor that the anatomy promises."""

    shape: tuple[int, ...]
    weight: Weight
    layer: int = 0


def promised(anatomy: Anatomy) -> dict[str, Want]:
    """Every tensor of the anatomy, tied ones and buffers too."""
    wants: dict[str, Want] = {}
    for weight in anatomy.weights:
        shape = tuple(int(s) for s in weight.full_shape)
        per_layer = int(weight.experts) if weight.by_expert else 1
        for number, name in enumerate(weight.names()):
            wants[name] = Want(shape, weight, weight.layers.indices[number // per_layer])
    return wants


def names_in(anatomy: Anatomy, have: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Every promised tensor's name to the one that a file uses for it, prefixes and other published
    names allowed.
    """
    wants = promised(anatomy)
    return dict(zip(wants, alternatives(align(wants, have, []), have), strict=True))


def align(
    wants: Mapping[str, Want], have: Mapping[str, tuple[int, ...]], notes: list[str]
) -> dict[str, Want]:
    """The promised names under the prefix that the file uses."""
    best, score, said = dict(wants), sum(n in have for n in wants), ""
    if score == len(wants):
        return best
    for prefix in PREFIXES:
        for verb, changed in (
            ("without", {n.removeprefix(prefix): w for n, w in wants.items()}),
            (
                "with",
                {
                    prefix + n if not n.startswith(("lm_head", "score")) else n: w
                    for n, w in wants.items()
                },
            ),
        ):
            hits = sum(n in have for n in changed)
            if hits > score and len(changed) == len(wants):
                best, score, said = (
                    changed,
                    hits,
                    (
                        f"the file's names are those of the published checkpoint {verb} the prefix"
                        f" {prefix!r}"
                    ),
                )
    if said:
        notes.append(said)
    return best


def alternatives(wants: Mapping[str, Want], have: Mapping[str, tuple[int, ...]]) -> dict[str, Want]:
    """The promised names, with a tensor's other published name where the file uses that."""
    chosen: dict[str, Want] = {}
    for name, want in wants.items():
        if name not in have and want.weight.also:
            pattern, numbers = want.weight.also, _LAYER.findall(name)
            for number in numbers:
                pattern = re.sub(r"\{(layer|expert)\}", number, pattern, count=1)
            name = pattern if pattern in have else name
        chosen[name] = want
    return chosen
