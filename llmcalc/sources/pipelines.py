"""Pipelines of diffusers: several components in directories, each with weights of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmcalc.errors import InputError
from llmcalc.sources import safetensors
from llmcalc.sources.header import Header, Stored
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten

NAME = "model_index.json"


def class_of(raw: dict[str, Any]) -> str:
    """What the pipeline, or the component, calls itself."""
    return shorten(str(raw.get("_class_name", "a pipeline")), 60)


def read(folder: Path) -> tuple[str, Header]:
    """The pipeline's class, and the tensors of all components under ``component/tensor``.

    A component without weights here is an InputError that names it.
    """
    raw = read_json(folder / NAME)
    tensors: dict[str, Stored] = {}
    notes: list[str] = []
    for component in components(raw):
        for name, stored in _component(folder / component).items():
            tensors[f"{component}/{name}"] = stored
        if not any(name.startswith(f"{component}/") for name in tensors):
            notes.append(f"{shorten(component)} has no weights here")
    if not tensors:
        raise InputError(
            f"{shorten(folder.name)} is a diffusers pipeline ({class_of(raw)}), and no component"
            " has safetensors files here",
            hint="its weights are counted from the files; caches and text do not apply to it",
        )
    return class_of(raw), Header("safetensors", tensors, {}, {}, tuple(notes))


def components(raw: dict[str, Any]) -> list[str]:
    """Names of the directories that the index lists: those whose library and class are given."""
    listed = (
        key
        for key, value in raw.items()
        if isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)
    )
    return [key for key in listed if key.isidentifier()]


def _component(folder: Path) -> dict[str, Stored]:
    """The tensors of one component: of several variants of it (fp16), the plain one."""
    if not folder.is_dir():
        return {}
    indexes = sorted(folder.glob("*.safetensors.index.json"), key=lambda p: len(p.name))
    if indexes:
        return dict(safetensors.read_index(indexes[0]).tensors)
    files = sorted(folder.glob("*.safetensors"), key=lambda p: len(p.name))
    return dict(safetensors.read(files[0]).tensors) if files else {}
