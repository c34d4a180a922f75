"""A model in a file or a directory on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError
from llmcalc.sources import kinds, pipelines
from llmcalc.sources.header import Header
from llmcalc.sources.json_file import read_json
from llmcalc.sources.model import Model
from llmcalc.text import shorten

_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"


def from_path(path: Path, name: str) -> Model:
    """The model in a config, a checkpoint or a directory; ``name`` is how the user called it.

    Pickles are refused.
    """
    path = path.expanduser()
    kinds.refuse(path, name)
    try:
        if path.is_dir():
            return _from_directory(path, name)
        if path.exists() and not path.is_file():
            raise InputError(f"{shorten(name)} is neither a file nor a directory")
        if not path.is_file():
            beside = path.parent.glob("*") if path.parent.is_dir() else ()
            close = sorted(other.name for other in beside if other.suffix == path.suffix)[:4]
            raise InputError(
                f"no file is called {shorten(name)}",
                hint=f"here: {', '.join(close)}" if close else None,
            )
        return _from_file(path, name)
    except OSError as error:
        raise InputError(
            f"{shorten(name)} cannot be read: {error.strerror or 'unreadable'}"
        ) from None


def _from_directory(path: Path, name: str) -> Model:
    raw = _config_in(path)
    if raw is None and (path / _ADAPTER).is_file():
        return _adapter(path, name)
    if raw is None and (path / pipelines.NAME).is_file():
        return _pipeline(path, name)
    header = _checkpoint(path)
    if raw is None and header is None:
        raise kinds.nothing_in(path, name)
    if raw is None and header is not None and header.format == "gguf":
        from llmcalc.sources import gguf

        raw = gguf.to_config(header)
    notes = header.notes if header else _closed(path)
    return Model(path.resolve().name, f"directory {name}", raw, header, notes, folder=path)


def _config_in(folder: Path) -> dict[str, Any] | None:
    """The config of a directory: the hub's, else Mistral's or Meta's own."""
    from llmcalc.sources import config_json, params_json

    if (folder / "config.json").is_file():
        return with_packing(config_json.read(folder / "config.json"), _beside_config(folder))
    own = folder / params_json.NAME
    return params_json.read(own) if own.is_file() else None


PACKING = ("hf_quant_config.json", "quanto_qmap.json", "quantize_config.json")
"""Where ModelOpt, quanto and AutoGPTQ say how weights are packed, beside a config."""


def _beside_config(folder: Path) -> dict[str, dict[str, Any]]:
    return {n: read_json(folder / n) for n in PACKING if (folder / n).is_file()}


def with_packing(raw: dict[str, Any], beside: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The config with what stands beside it of its weights' packing; its own words count first."""
    own = raw.get("quantization_config")
    modelopt = beside.get("hf_quant_config.json", {}).get("quantization")
    if isinstance(modelopt, dict) and (own is None or own.get("quant_method") == "modelopt"):
        return {
            **raw,
            "quantization_config": {"quant_method": "modelopt", **modelopt, **(own or {})},
        }
    if own is None and "quanto_qmap.json" in beside:
        found = {"quant_method": "quanto", "modules": beside["quanto_qmap.json"]}
        return {**raw, "quantization_config": found}
    if own is None and "quantize_config.json" in beside and "quantization" not in raw:
        found = {"quant_method": "gptq", **beside["quantize_config.json"]}
        return {**raw, "quantization_config": found}
    return raw


def _closed(folder: Path) -> tuple[str, ...]:
    """A word where a config's weights are there and not opened."""
    pickles = kinds.pickles_in(folder)
    if not pickles:
        return ()
    return (
        f"its weights are pickles ({shorten(pickles[0])}), which are not opened: counted from the"
        " config",
    )


def _pipeline(path: Path, name: str) -> Model:
    """A pipeline of diffusers: its components' weights, and nothing that text could be asked of."""
    kind, header = pipelines.read(path)
    notes = (f"a diffusers pipeline ({kind}): counted by tensor, all components", *header.notes)
    source = f"directory {name}"
    called = path.resolve().name
    return Model(called, source, None, header, notes, folder=path, pipeline=kind)


def _adapter(path: Path, name: str) -> Model:
    """An adapter: what it adds to a base that is named in its config."""
    from llmcalc.sources import adapters, safetensors

    weights = path / adapters.WEIGHTS
    header = safetensors.read(weights) if weights.is_file() else None
    config = adapters.read(path / _ADAPTER)
    return Model(path.resolve().name, f"adapter {name}", None, header, adapter=config, folder=path)


def _checkpoint(path: Path) -> Header | None:
    """The one checkpoint in a directory: an index, a single file, or a GGUF."""
    from llmcalc.sources import gguf, safetensors

    files = sorted(path.glob("*.safetensors"))
    indexes = sorted(path.glob("*.safetensors.index.json"), key=lambda p: (p.name != _INDEX, p))
    ggufs = sorted(p.name for p in path.glob("*.gguf") if "mmproj" not in p.name.lower())
    if indexes:
        index = safetensors.open_index(indexes[0])
        return _beside(safetensors.read_shards(index), files, set(index.shards))
    whole = path / "model.safetensors"
    if whole.is_file():
        return _beside(safetensors.read(whole), files, {whole.name})
    if len(files) == 1:
        return safetensors.read(files[0])
    if not files and ggufs:
        models = {tuple(gguf.parts(n)) for n in ggufs}
        if len(models) > 1:
            raise InputError(
                f"{path.name} holds {len(models)} GGUF models",
                hint=f"name one: {', '.join(shorten(parts[0]) for parts in sorted(models)[:4])}",
            )
        return gguf.read_all(path / ggufs[0])
    if len(files) > 1:
        raise InputError(
            f"{path.name} holds {len(files)} .safetensors files and no index",
            hint=f"name one file: {', '.join(shorten(f.name) for f in files[:4])}",
        )
    return None


def _beside(header: Header, files: list[Path], own: set[str]) -> Header:
    """The header, with a word about files that belong to nothing that was read."""
    stray = [f.name for f in files if f.name not in own]
    if not stray:
        return header
    more = f" and {len(stray) - 1} more" if len(stray) > 1 else ""
    note = f"{shorten(stray[0])}{more} lies beside the model and is not counted"
    return replace(header, notes=(*header.notes, note))


def _from_file(path: Path, name: str) -> Model:
    from llmcalc.sources import adapters, config_json, gguf, params_json, safetensors

    folder = path.parent
    if path.name in (_ADAPTER, adapters.WEIGHTS) and (folder / _ADAPTER).is_file():
        return _adapter(folder, name)
    if path.name == pipelines.NAME:
        return _pipeline(folder, name)
    if path.suffix == ".gguf" or _begins(path, b"GGUF"):
        header = gguf.read_all(path)
        raw = gguf.to_config(header)
        return Model(path.name, f"GGUF file {name}", raw, header, header.notes, folder=folder)
    if path.suffix == ".safetensors":
        header = safetensors.read(path)
        source, shard = f"safetensors file {name}", _is_shard(path)
        # one shard is not what the config beside it describes
        raw = None if shard else _config_in(folder)
        notes = (*header.notes, *((shard,) if shard else ()))
        return Model(path.name, source, raw, header, notes, folder=folder)
    if path.name.endswith(".index.json"):
        header = safetensors.read_index(path)
        source = f"safetensors index {name}"
        return Model(path.name, source, _config_in(folder), header, header.notes, folder=folder)
    if path.name == params_json.NAME:
        own = path.resolve().parent.name
        return Model(own, f"config {name}", params_json.read(path), folder=folder)
    if path.name == "config.json":
        return Model(
            path.resolve().parent.name, f"config {name}", _config_in(folder), folder=folder
        )
    return Model(path.stem, f"config {name}", config_json.read(path), folder=folder)


def _is_shard(path: Path) -> str | None:
    """A word where a file is one of several that an index beside it names."""
    from llmcalc.sources import safetensors

    for index in sorted(path.parent.glob("*.safetensors.index.json")):
        shards = safetensors.open_index(index).shards
        if path.name in shards:
            return (
                f"one of the {len(shards)} files of {index.name}: its own tensors alone are counted"
            )
    return None


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
