"""A checkpoint whose architecture no family describes: its tensors as parts that are only counted.

What a tensor is for is read off its name where that is plain (embedding, head, norm, tower), and
is ``other`` where it is not: nothing that depends on a purpose is answered from these parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from llmcalc.anatomy import ONCE, Anatomy, Layers, Op, Weight
from llmcalc.dims import Dim
from llmcalc.sources.header import Header, is_buffer

_LAYER = re.compile(r"(?<=[.])(\d+)(?=[.])")
_EXPERT = re.compile(r"(?<=experts[.])(\d+)(?=[.])")
_ROLES = (
    (r"(^|[._])(vision|visual|vit|image|patch)", "vision.other"),
    (r"(^|[._])(audio|speech|whisper|codec|vocoder|talker|token2wav|code2wav)", "audio.other"),
    (r"(^|[.])(projector|multi_modal_projector|mm_projector|connector|aligner)", "projector"),
    (
        r"(^|[.])(embed_tokens|wte|word_embeddings|tok_embeddings|embedding|embeddings)[.]weight$",
        "embed.token",
    ),
    (r"(^|[.])(lm_head|embed_out|output)[.]weight$", "head"),
    (r"norm|(^|[.])ln_", "norm"),
)


def anatomy(name: str, header: Header) -> Anatomy:
    """The tensors of a file, layers and experts of one name and shape together."""
    note = f"no family describes {name}: its tensors are counted, and not explained"
    return Anatomy(name, tuple(weights(header)), (note,), only_counted=True)


def beside(header: Header, owned: Collection[str]) -> list[Weight]:
    """What a file holds beside the tensors that a family explains."""
    others = {n: t for n, t in header.tensors.items() if n not in owned}
    return weights(replace(header, tensors=others))


def weights(header: Header) -> list[Weight]:
    """One weight for all layers and experts that share a name and a shape."""
    places: dict[tuple[str, tuple[int, ...], bool], dict[int, list[int]]] = {}
    for name, stored in header.tensors.items():
        pattern, layer, expert = _placed(name)
        key = (pattern, stored.shape, is_buffer(name, stored))
        places.setdefault(key, {}).setdefault(layer, []).append(expert)
    found = []
    for (pattern, shape, buffer), layers in places.items():
        found += _together(pattern, shape, buffer, layers)
    return found


def _placed(name: str) -> tuple[str, int, int]:
    """A name with placeholders, its layer and its expert; 0 where it has none."""
    expert = _EXPERT.search(name)
    pattern = name if expert is None else _EXPERT.sub("{expert}", name, count=1)
    layer = _LAYER.search(pattern)
    pattern = pattern if layer is None else _LAYER.sub("{layer}", pattern, count=1)
    return pattern, int(layer[1]) if layer else 0, int(expert[1]) if expert else 0


def _together(
    pattern: str, shape: tuple[int, ...], buffer: bool, layers: dict[int, list[int]]
) -> list[Weight]:
    one = _weight(pattern, shape, buffer)
    if not one.by_expert:
        return [_in_layers(one, tuple(sorted(layers)))]
    # layers that hold the same experts stand together
    sets: dict[tuple[int, ...], list[int]] = {}
    for layer, experts in layers.items():
        sets.setdefault(tuple(sorted(experts)), []).append(layer)
    found = []
    for numbers, where in sets.items():
        if numbers == tuple(range(len(numbers))):
            n = Dim(len(numbers), f"n_experts_{len(numbers)}")
            found.append(_in_layers(replace(one, experts=n, active=n), tuple(sorted(where))))
            continue
        for expert in numbers:
            alone = replace(one, name=one.name.replace("{expert}", str(expert)))
            found.append(_in_layers(alone, tuple(sorted(where))))
    return found


def _in_layers(weight: Weight, layers: tuple[int, ...]) -> Weight:
    """The weight in those layers, whose number is called by their stack: one name, one value."""
    if not weight.in_stack:
        return weight
    stack = re.sub(r"\W+", "_", weight.name.split("{layer}")[0]).strip("_")
    return replace(weight, layers=Layers(layers, Dim(len(layers), f"n_{stack}_{len(layers)}")))


def _weight(pattern: str, shape: tuple[int, ...], buffer: bool) -> Weight:
    role = next((role for name, role in _ROLES if re.search(name, pattern)), "other")
    op: Op = "lookup" if role == "embed.token" else "matmul" if len(shape) > 1 else "scale"
    return Weight(
        name=pattern,
        shape=tuple(Dim(n) for n in shape),
        op=op,
        role=role,
        layers=ONCE,
        buffer=buffer,
    )
