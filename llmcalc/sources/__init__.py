"""Anything a user can name, resolved to one record: a path, a preset, sizes given as flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from llmcalc.anatomy import Anatomy
from llmcalc.config import Config
from llmcalc.errors import ConfigError, InputError, UnavailableError
from llmcalc.families import anatomy, config_for
from llmcalc.sources import presets
from llmcalc.sources.header import Header
from llmcalc.text import shorten

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Model:
    """What a user named: a raw config, the header of a checkpoint, or both."""

    name: str
    source: str
    raw: Mapping[str, Any] | None = None
    header: Header | None = None
    notes: tuple[str, ...] = ()
    blocks_only: bool = False
    folder: Path | None = None
    """Where its files lie, for whoever reads more of them than the header."""
    fetch: Callable[[], Header] | None = None
    """What reads the header from where the model is, where that is far away."""

    fetch_file: Callable[[str], Path | None] | None = None
    """What brings one more file of it here, None where it has no such file."""

    def with_header(self) -> Model:
        """The model with its header, fetched where it has none yet."""
        if self.header is not None or self.fetch is None:
            return self
        header = self.fetch()
        return replace(self, header=header, notes=(*self.notes, *header.notes))

    @cached_property
    def config(self) -> Config:
        """The sizes, with the family's class defaults."""
        if self.raw is None:
            raise InputError(
                f"{self.name} has no config, only tensors", hint="name a directory that holds a config.json"
            )
        return config_for(self.raw)

    @property
    def longest_context(self) -> int | None:
        """The longest context that the model was made for, in its own config or in the language model's inside."""
        if self.raw is None or self.blocks_only:
            return None
        inside = self.raw.get("text_config")
        for c in (self.config, *([Config(inside)] if isinstance(inside, Mapping) else [])):
            found = c.optional("max_context")
            if found is not None:
                return int(found)
        return None

    @cached_property
    def anatomy(self) -> Anatomy:
        """The list of parts."""
        try:
            whole = anatomy(self.config)
        except ConfigError as error:
            if self.source != "flags":
                raise
            raise ConfigError(
                str(error), hint="sizes are --d, --layers, --heads, --kv-heads, --head-dim, --d-ff"
            ) from None
        if not self.blocks_only:
            return whole
        return replace(whole, parts=tuple(p for p in whole.parts if "{layer}" in getattr(p, "name", "{layer}")))


def resolve(
    name: str | None,
    sizes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    as_family: str | None = None,
) -> Model:
    """The model behind a name, or behind sizes given as flags; ``overrides`` and ``as_family`` change its config."""
    if name is None:
        model = _from_flags(sizes or {})
    elif sizes:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in sizes)
        raise InputError(
            f"{flags} describe a model without a name",
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
                f"counted as {as_family} because --as asked for it; its own model_type is {raw.get('model_type')!r}"
            )
            raw["model_type"] = as_family
        model = replace(model, raw=raw, notes=(*notes, *(f"set by hand: {o}" for o in overrides)))
    return model


def _from_name(name: str) -> Model:
    path = Path(name)
    if name == "toy" and not path.exists():
        return replace(_from_directory(presets.TOY, "toy"), name="toy", source="the toy model that comes with llmcalc")
    inside = ":" in name and "/" in name and not name.startswith((".", "/", "~")) and not path.exists()
    if not inside and _is_path(name, path):
        return _from_path(path, name)
    preset = presets.find(name)
    if preset and ("/" not in name):
        raw = presets.load(preset)
        notes = () if preset == name else (f"{name} has the sizes of the preset {preset}",)
        return Model(preset, f"preset {preset}: {raw.pop('_source')}", raw, notes=notes)
    if "/" in name:
        found = _from_hub(name, preset)
        if found is not None:
            return found
    close = presets.close_to(name)
    raise InputError(
        f"no file and no preset is called {shorten(name)!r}",
        hint=(f"close: {', '.join(close)}" if close else "`llmcalc list presets` shows all"),
    )


def _from_hub(name: str, preset: str | None) -> Model | None:
    """A model of the hub: its config, and a header that is fetched when somebody asks for it."""
    from llmcalc.sources import config_json, hub

    where = hub.place(name)
    if where is None:
        return None
    try:
        path = hub.config(where)
    except UnavailableError as error:
        if preset is None:
            raise
        raise UnavailableError(str(error), hint=f"the preset {preset} has its sizes") from None
    if path is None:
        header = hub.header(where)
        return Model(where.repo, f"hub {where}", None, header, header.notes)
    return Model(
        where.repo,
        f"hub {where}",
        config_json.read(path),
        folder=path.parent,
        fetch=partial(hub.header, where),
        fetch_file=partial(hub.file, where),
    )


def _is_path(name: str, path: Path) -> bool:
    if name.endswith((".json", ".safetensors", ".gguf", "/")) or name.startswith((".", "/", "~")):
        return True
    try:
        return path.exists() and not (
            presets.find(name) == name and path.is_dir() and not (path / "config.json").exists()
        )
    except (OSError, ValueError):
        return False


def _from_path(path: Path, name: str) -> Model:
    path = path.expanduser()
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise InputError(
            f"{shorten(name)} is a pickle, which can run code when it is read",
            hint="convert it to safetensors where it comes from; llmcalc never unpickles",
        )
    try:
        if path.is_dir():
            return _from_directory(path, name)
        if path.exists() and not path.is_file():
            raise InputError(f"{shorten(name)} is neither a file nor a directory")
        if not path.is_file():
            close = (
                sorted(p.name for p in path.parent.glob("*") if p.suffix == path.suffix)[:4]
                if path.parent.is_dir()
                else []
            )
            raise InputError(f"no file is called {shorten(name)}", hint=f"here: {', '.join(close)}" if close else None)
        return _from_file(path, name)
    except OSError as error:
        raise InputError(f"{shorten(name)} cannot be read: {error.strerror or 'unreadable'}") from None


def _from_directory(path: Path, name: str) -> Model:
    from llmcalc.sources import config_json

    config = path / "config.json"
    raw = config_json.read(config) if config.is_file() else None
    header = _checkpoint(path)
    if raw is None and header is None:
        raise InputError(
            f"the directory {shorten(name)} holds no config.json and no checkpoint",
            hint="name a directory with a config.json, a .safetensors or a .gguf file",
        )
    notes = header.notes if header else ()
    return Model(path.resolve().name, f"directory {name}", raw, header, notes, folder=path)


def _checkpoint(path: Path) -> Header | None:
    """The one checkpoint in a directory: an index, a single file, or a GGUF."""
    from llmcalc.sources import gguf, safetensors

    if (path / _INDEX).is_file():
        return safetensors.read_index(path / _INDEX)
    indexes = sorted(path.glob("*.safetensors.index.json"))
    files = sorted(path.glob("*.safetensors"))
    ggufs = sorted(path.glob("*.gguf"))
    if indexes:
        return safetensors.read_index(indexes[0])
    if (path / "model.safetensors").is_file():
        return safetensors.read(path / "model.safetensors")
    if len(files) == 1:
        return safetensors.read(files[0])
    if not files and len(ggufs) == 1:
        return gguf.read(ggufs[0])
    if len(files) > 1:
        raise InputError(f"{path.name} holds {len(files)} .safetensors files and no index", hint="name one file")
    return None


def _from_file(path: Path, name: str) -> Model:
    from llmcalc.sources import config_json, gguf, safetensors

    if path.suffix == ".gguf" or _begins(path, b"GGUF"):
        header = gguf.read(path)
        return Model(path.name, f"GGUF file {name}", gguf.to_config(header), header, header.notes, folder=path.parent)
    if path.suffix == ".safetensors":
        header = safetensors.read(path)
        return Model(path.name, f"safetensors file {name}", None, header, header.notes, folder=path.parent)
    if path.name.endswith(".index.json"):
        header = safetensors.read_index(path)
        return Model(path.name, f"safetensors index {name}", None, header, header.notes, folder=path.parent)
    return Model(
        path.resolve().parent.name if path.name == "config.json" else path.stem,
        f"config {name}",
        config_json.read(path),
        folder=path.parent,
    )


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


_FLAGS = {
    "gpt2": {
        "d": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "d_ff": "n_inner",
        "vocab": "vocab_size",
        "ctx": "n_positions",
    },
    "llama": {
        "d": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
        "vocab": "vocab_size",
        "ctx": "max_position_embeddings",
    },
}


def _from_flags(sizes: Mapping[str, Any]) -> Model:
    """A model described by sizes alone; without a vocabulary only its blocks are counted, and that is said."""
    arch = str(sizes.get("arch") or ("llama" if {"kv_heads", "head_dim"} & sizes.keys() else "gpt2"))
    if arch not in _FLAGS:
        raise InputError(f"--arch {arch!r} is not one of {', '.join(_FLAGS)}", hint="other families need a config.json")
    for need in ("d", "layers"):
        if need not in sizes:
            raise InputError(
                f"no MODEL is named and --{need} is not given",
                hint="name a preset, a file or a directory, or give sizes: --d 768 --layers 12",
            )
    keys = _FLAGS[arch]
    unknown = [key for key in sizes if key not in keys and key not in ("arch", "tied")]
    if unknown:
        raise InputError(f"--{unknown[0].replace('_', '-')} does not apply to --arch {arch}", hint="try `--arch llama`")
    raw: dict[str, Any] = {"model_type": arch, **{keys[k]: v for k, v in sizes.items() if k in keys}}
    if "tied" in sizes:
        raw["tie_word_embeddings"] = sizes["tied"]
    notes = [f"sizes from flags, structure of {arch}"]
    if "heads" not in sizes:
        heads = raw["n_embd" if arch == "gpt2" else "hidden_size"] // 64 or 1
        raw["n_head" if arch == "gpt2" else "num_attention_heads"] = heads
        notes.append(
            f"--heads is not given: {heads} of 64, as GPT-2 and Llama choose; parameter counts do not depend on it"
        )
    blocks_only = "vocab" not in sizes
    if blocks_only:
        raw |= {"vocab_size": 1, keys["ctx"]: sizes.get("ctx", 1)}
        notes.append("--vocab is not given: only the blocks are counted, without embeddings, final norm and head")
    return Model("sizes", "flags", raw, notes=tuple(notes), blocks_only=blocks_only)
