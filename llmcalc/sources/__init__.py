"""Anything a user can name, resolved to one record: a path, a preset, a hub id, or sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError
from llmcalc.sources import local, presets
from llmcalc.sources.from_flags import for_cache, from_flags
from llmcalc.sources.from_path import from_path
from llmcalc.sources.model import Model
from llmcalc.text import shorten

__all__ = ["Model", "resolve"]


def resolve(
    name: str | None,
    sizes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    as_family: str | None = None,
    cache_only: bool = False,
) -> Model:
    """The model behind a name, or behind sizes given as flags.

    ``overrides`` and ``as_family`` change its config. ``cache_only``: sizes that the cache does not
    depend on may be missing.
    """
    if name is None:
        model = (for_cache if cache_only else from_flags)(sizes or {})
    elif sizes:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in sizes)
        raise InputError(
            f"a model without a name is described by {flags}",
            hint="a named model's sizes are changed one by one with `--set key=value`",
        )
    else:
        model = _from_name(name)
    if model.raw is not None and (overrides or as_family):
        from llmcalc.sources import config_json

        raw = config_json.override(model.raw, overrides)
        notes = list(model.notes)
        if as_family:
            notes.append(
                f"counted as {as_family} because --as asked for it; its own model_type is"
                f" {raw.get('model_type')!r}"
            )
            raw["model_type"] = as_family
        notes += [f"set by hand: {setting}" for setting in overrides]
        model = replace(model, raw=raw, notes=tuple(notes))
    if cache_only and model.raw is not None:
        from llmcalc.sources.lacking import without_what_the_cache_needs_not

        return without_what_the_cache_needs_not(model)
    return model


def _from_name(name: str) -> Model:
    if not name.strip():
        raise InputError("MODEL is empty", hint="name a preset, a file, a directory or a hub id")
    path = Path(name)
    if name == "toy" and not path.exists():
        toy = from_path(presets.TOY, "toy")
        return replace(toy, name="toy", source="the toy model that comes with llmcalc")
    kept = local.scheme_of(name)
    if kept is not None and not path.exists():
        return replace(from_path(local.find(*kept), name), name=name)
    if ":" in name and not path.exists():
        from llmcalc.sources import far

        if far.is_address(name):
            return replace(far.read(name), name=far.read_name(name))
    # org/repo:file is inside a repository, whatever the file's ending
    inside = ":" in name and "/" in name and not name.startswith((".", "/", "~"))
    if not (inside and not path.exists()) and _is_path(name, path):
        return from_path(path, name)
    preset = presets.find(name)
    if preset and ("/" not in name):
        raw = presets.load(preset)
        notes = () if preset == name else (f"{name} has the sizes of the preset {preset}",)
        return Model(preset, f"preset {preset}: {raw.pop('_source')}", raw, notes=notes)
    if "/" in name:
        from llmcalc.sources.from_hub import from_hub

        found = from_hub(name, preset)
        if found is not None:
            return found
    close = presets.close_to(name)
    raise InputError(
        f"no file and no preset is called {shorten(name)!r}",
        hint=(f"close: {', '.join(close)}" if close else "`llmcalc list presets` shows all"),
    )


def _is_path(name: str, path: Path) -> bool:
    if name.endswith((".json", ".safetensors", ".gguf", "/")) or name.startswith((".", "/", "~")):
        return True
    try:
        if not path.exists():
            return False
        # a directory that happens to be called like a preset holds no model
        holds_model = not path.is_dir() or (path / "config.json").exists()
        return holds_model or presets.find(name) != name
    except (OSError, ValueError):
        return False
