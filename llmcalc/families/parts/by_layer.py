"""Layers whose sizes a config overrides one by one (``per_layer_config``), for every family.

The reference implementation builds such a layer from a config of its own. So does this: the model
is described once as if no layer differed and once for each set of overrides, and every layer takes
its parts from the description that is its own (transformers 5.24,
``integrations/heterogeneity/configuration_utils.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from llmcalc.anatomy import Layers, Part, Weight
from llmcalc.config import KEY, SIZES, Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.text import shorten, shown

SIZELESS = (
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "partial_rotary_factor",
    "swiglu_limit",
)
"""What layers may differ in without a size that changes."""

Described = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """What some layers have instead of the config's own values."""

    values: Mapping[str, Any]
    layers: tuple[int, ...]


def resolved(c: Config, section: str | None, describe: Callable[[Config], Described]) -> Described:
    """The parts of a model some of whose layers are overridden.

    ``section`` is the config inside that holds the overrides, None for the top level. An override
    that changes nothing is one that no rule here reads: a ConfigError.
    """
    inside = c.raw if section is None else c.raw[section]
    changes = overrides(inside, c.family)
    plain = describe(_changed(c, section, {}))
    for change in changes:
        for key, value in change.values.items():
            alone = describe(_changed(c, section, {key: value}))
            if key not in SIZELESS and alone == plain:
                first = change.layers[0]
                raise ConfigError(
                    f"{c.family}: {KEY} sets {shorten(key)} of layer {first}, and no rule reads"
                    " that here, layer by layer",
                    hint="a checkpoint beside the config is counted by its own header",
                )
    own = [(change, describe(_changed(c, section, change.values))) for change in changes]
    return _woven(c.family, plain, own)


def overrides(raw: Mapping[str, Any], family: str) -> list[Override]:
    """What differs from the config's own values, the layers that differ alike in one record.

    Layers are written as numbers in text, with zeros before them.
    """
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for layer, values in raw[KEY].items():
        if not str(layer).isdecimal() or len(str(layer)) > 6 or not isinstance(values, Mapping):
            raise ConfigError(f"{family}: {KEY} has {shown(layer)}: {shown(values)}, no layer")
        if values.get("skip"):
            raise ConfigError(f"{family}: {KEY} leaves parts of layer {int(layer)} out (skip)")
        differs = {k: v for k, v in values.items() if k != "skip" and raw.get(k, KEY) != v}
        if differs:
            key = json.dumps(differs, sort_keys=True, default=str)
            groups.setdefault(key, (differs, []))[1].append(int(layer))
    return [Override(values, tuple(sorted(layers))) for values, layers in groups.values()]


def _changed(c: Config, section: str | None, values: Mapping[str, Any]) -> Config:
    """The config with some values in place of its own, and no overrides left.

    A size that is overridden has a name of its own: one name has one value.
    """
    named = {key: _named(key, value) for key, value in values.items()}
    inside = c.raw if section is None else c.raw[section]
    spelt = {s for key in named for s in _spellings(key)}
    kept = {k: v for k, v in inside.items() if k not in spelt}
    changed = {**kept, KEY: {}, **named}
    raw = changed if section is None else {**c.raw, section: changed}
    return Config(raw, defaults=c.defaults, nested=c.is_nested)


def _spellings(key: str) -> tuple[str, ...]:
    return next((spelt for spelt in SIZES.values() if key in spelt), (key,))


def _named(key: str, value: Any) -> Any:
    if type(value) is not int:
        return value
    ours = next((name for name, spelt in SIZES.items() if key in spelt), key)
    return Dim(value, f"{ours}_{value}")


def _woven(family: str, plain: Described, own: list[tuple[Override, Described]]) -> Described:
    """One list of parts: what is the same everywhere stays whole, the rest is cut by layer."""
    runs = [_runs(parts) for parts in (plain, *(parts for _, parts in own))]
    if any([stem for stem, _ in r] != [stem for stem, _ in runs[0]] for r in runs):
        raise ConfigError(f"{family}: {KEY} changes more than the sizes of layers")
    differing = {i for change, _ in own for i in change.layers}
    keeps: list[Callable[[int], bool]] = [lambda i: i not in differing]
    keeps += [set(change.layers).__contains__ for change, _ in own]
    woven: list[Part] = []
    for same in zip(*runs, strict=True):
        described = [parts for _, parts in same]
        if same[0][0] is None:
            woven += described[0]
            continue
        whole = [p for p in described[0] if all(p in parts for parts in described[1:])]
        woven += whole
        rest = [[p for p in parts if p not in whole] for parts in described]
        for column in zip_longest(*rest):
            cut = (_cut(p, keeps[n], n) for n, p in enumerate(column) if p is not None)
            woven += [p for p in cut if p.layers.indices]
    return tuple(woven)


def _runs(parts: Described) -> list[tuple[str | None, list[Part]]]:
    """Parts of one stack that follow one another, under the stack's name; None outside of any."""
    runs: list[tuple[str | None, list[Part]]] = []
    for part in parts:
        if isinstance(part, Weight):
            stem = part.name.split("{layer}")[0] if part.in_stack else None
        else:
            stem = runs[-1][0] if runs else None
        if not runs or runs[-1][0] != stem:
            runs.append((stem, []))
        runs[-1][1].append(part)
    return runs


def _cut(part: Part, keep: Callable[[int], bool], number: int) -> Part:
    indices = tuple(i for i in part.layers.indices if keep(i))
    if indices == part.layers.indices:
        return part
    # the name that the layers had, and which of the descriptions they are of
    called = part.layers.count.node[1] if part.layers.count.node[0] == "sym" else "n_layers"
    return replace(part, layers=Layers(indices, Dim(len(indices), f"{called}_{number}")))
