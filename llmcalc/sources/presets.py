"""Presets: the sizes of well-known models, one file each, found by the names people type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "presets"
TOY = _FOLDER / "toy"
"""The toy model's files: a character-level Llama of about 140,000 parameters
(scripts/train_toy.py).
"""
_LONGEST = 200
_TUNED = re.compile(r"(?:-?(?:instruct|chat|it|hf|base|pretrain|preview|v0\.1|v1\.0))+$")


def names() -> list[str]:
    """All presets, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json") if path.stem != "aliases")


def by_model_type() -> dict[str, list[str]]:
    """Presets under the model_type of their configs."""
    groups: dict[str, list[str]] = {}
    for name in names():
        groups.setdefault(load(name).get("model_type", ""), []).append(name)
    return groups


@cache
def _index() -> Mapping[str, str]:
    """Squeezed spelling to preset; names win over aliases, aliases over names without endings."""
    aliases = json.loads((_FOLDER / "aliases.json").read_text())
    # reversed, so that of several tuned variants the first name wins
    found = {squeeze(_TUNED.sub("", name)): name for name in reversed(names())}
    found |= {squeeze(alias): name for alias, name in aliases.items()}
    found |= {squeeze(name): name for name in names()}
    return found


def squeeze(name: str) -> str:
    """A name without what people vary: case, separators, an organisation before a slash.

    >>> squeeze("Meta-Llama-3-8B"), squeeze("llama3-8b")
    ('llama38b', 'llama38b')
    """
    last = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
    return re.sub(r"[-_ .:]", "", last)


def find(name: str) -> str | None:
    """The preset that a name means: itself, another spelling, or the base of a tuned variant."""
    if len(name) > _LONGEST:
        return None
    if (_FOLDER / f"{name}.json").is_file() and "/" not in name and name != "aliases":
        return name
    index = _index()
    return index.get(squeeze(name)) or index.get(squeeze(_TUNED.sub("", name.lower())))


def close_to(name: str) -> list[str]:
    """The presets that a name most likely means: the same lineage first, then version and size.

    A word that both have counts more than letters that happen to be alike: gemma-4-31b is nearer
    to gemma-4-9b than gemma-3-1b is.
    """
    import difflib

    wanted, spelt = _words(name), squeeze(name)

    def nearness(preset: str) -> float:
        words = _words(preset)
        alike = difflib.SequenceMatcher(None, spelt, squeeze(preset)).ratio()
        first = 2.0 if words[:1] == wanted[:1] else 0.0
        version = 1.0 if words[1:2] == wanted[1:2] else 0.0
        return first + version + 0.5 * len(set(words) & set(wanted)) / len(wanted) + alike

    if not wanted:
        return []
    ranked = sorted(names(), key=nearness, reverse=True)
    return [preset for preset in ranked[:4] if nearness(preset) >= 1.8]


def _words(name: str) -> list[str]:
    """Lineage, version, size and kind, as people write them.

    >>> _words("google/gemma-4-31b-it"), _words("Qwen2.5-7B")
    (['gemma', '4', '31b', 'it'], ['qwen', '2.5', '7b'])
    """
    last = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
    return re.findall(r"[a-z]?\d+(?:\.\d+)?[bm]?(?![a-z0-9])|[a-z]+|\d+(?:\.\d+)?", last)


def load(name: str) -> dict[str, Any]:
    """The raw config of a preset, with ``_source``: where its sizes were published."""
    return json.loads((_FOLDER / f"{name}.json").read_text())  # type: ignore[no-any-return]
