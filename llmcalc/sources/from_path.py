"""A model in a file or a directory on this machine."""

from __future__ import annotations

from pathlib import Path

from llmcalc.errors import InputError
from llmcalc.sources.header import Header
from llmcalc.sources.model import Model
from llmcalc.text import shorten

_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"


def from_path(path: Path, name: str) -> Model:
    """The model in a config, a checkpoint or a directory; ``name`` is how the user called it.

    Pickles are refused.
    """
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
    from llmcalc.sources import config_json

    config = path / "config.json"
    raw = config_json.read(config) if config.is_file() else None
    if raw is None and (path / _ADAPTER).is_file():
        return _adapter(path, name)
    header = _checkpoint(path)
    if raw is None and header is None:
        raise InputError(
            f"the directory {shorten(name)} holds no config.json and no checkpoint",
            hint="name a directory with a config.json, a .safetensors or a .gguf file",
        )
    if raw is None and header is not None and header.format == "gguf":
        from llmcalc.sources import gguf

        raw = gguf.to_config(header)
    notes = header.notes if header else ()
    return Model(path.resolve().name, f"directory {name}", raw, header, notes, folder=path)


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
    # one model in all its parts, and no other
    if not files and ggufs and {p.name for p in ggufs} == set(gguf.parts(ggufs[0].name)):
        return gguf.read_all(ggufs[0])
    if len(files) > 1:
        raise InputError(
            f"{path.name} holds {len(files)} .safetensors files and no index", hint="name one file"
        )
    return None


def _from_file(path: Path, name: str) -> Model:
    from llmcalc.sources import config_json, gguf, safetensors

    folder = path.parent
    if path.name == _ADAPTER:
        return _adapter(folder, name)
    if path.suffix == ".gguf" or _begins(path, b"GGUF"):
        header = gguf.read_all(path)
        raw = gguf.to_config(header)
        return Model(path.name, f"GGUF file {name}", raw, header, header.notes, folder=folder)
    if path.suffix == ".safetensors":
        header = safetensors.read(path)
        source = f"safetensors file {name}"
        return Model(path.name, source, None, header, header.notes, folder=folder)
    if path.name.endswith(".index.json"):
        header = safetensors.read_index(path)
        source = f"safetensors index {name}"
        return Model(path.name, source, None, header, header.notes, folder=folder)
    own = path.resolve().parent.name if path.name == "config.json" else path.stem
    return Model(own, f"config {name}", config_json.read(path), folder=folder)


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
