"""Configs that lack a size on which the answer does not depend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmcalc.config import SIZES
from llmcalc.errors import ConfigError, InputError
from llmcalc.sources.model import Model

_MOST = 4


def without_what_the_cache_needs_not(model: Model) -> Model:
    """The model, its missing sizes filled where no layer's cache depends on them.

    Whether it depends is tried: the layers keep the same whatever the sizes are. One that they
    depend on stays missing.
    """
    try:
        model.anatomy  # noqa: B018 - to see whether it lacks anything
    except ConfigError as error:
        if error.lacks is None:
            return model
    except InputError:
        return model
    else:
        return model
    found = [_filled(model, n) for n in (64, 128)]
    if found[0] is None or found[1] is None:
        return model
    (small, lacking), (large, _) = found[0], found[1]
    if small.anatomy.mixers != large.anatomy.mixers:
        return model
    note = f"the cache does not depend on {' and '.join(lacking)}, which the config does not have"
    return replace(small, notes=(*model.notes, note), mixers_only=True)


def _filled(model: Model, value: int) -> tuple[Model, list[str]] | None:
    """The model with every missing size set to that value, and which they are."""
    lacking: list[str] = []
    for _ in range(_MOST):
        try:
            model.anatomy  # noqa: B018 - to see what it lacks
        except ConfigError as error:
            filled = error.lacks and _with(model, *error.lacks, value)
            if not error.lacks or not filled:
                return None
            model, lacking = filled, [*lacking, error.lacks[1]]
        else:
            return model, lacking
    return None


def _with(model: Model, section: str | None, name: str, value: int) -> Model | None:
    key = SIZES.get(name, (name,))[0]
    raw: dict[str, Any] = dict(model.raw or {})
    inside = raw
    for step in (section or "").split("."):
        if step:
            there = inside.get(step)
            if not isinstance(there, Mapping):
                return None
            inside[step] = dict(there)
            inside = inside[step]
    inside[key] = value
    return replace(model, raw=raw)
