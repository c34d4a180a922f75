"""Models that other programs keep on this machine, by the names that people know: only read.

Ollama: manifests name blobs by their hash (``OLLAMA_MODELS``, else ~/.ollama/models). LM Studio:
publisher/model/file below ~/.lmstudio/models, earlier ~/.cache/lm-studio/models. llama.cpp:
``LLAMA_CACHE``, else the user's cache.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from llmcalc.errors import InputError, LlmcalcError, UnavailableError
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten

SCHEMES = ("ollama", "lmstudio", "llama.cpp")
_ELSEWHERE = {
    "ollama": "OLLAMA_MODELS names another place than ~/.ollama/models",
    "lmstudio": "it is looked for in ~/.lmstudio/models and ~/.cache/lm-studio/models",
    "llama.cpp": "LLAMA_CACHE names another place than the user's cache directory",
}
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_PART = re.compile(r"[\w.-]+")
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """A model on this machine: what it is called, and its file or directory."""

    name: str
    path: Path
    owner: str


def scheme_of(name: str) -> tuple[str, str] | None:
    """Program and model of ``ollama:…``, ``lmstudio:…`` or ``llama.cpp:…``; else None."""
    program, colon, rest = name.partition(":")
    return (program, rest) if colon and rest and program in SCHEMES else None


def find(program: str, name: str) -> Path:
    """The file of a model of that program.

    An unknown one is an InputError that names those that are there.
    """
    if program == "ollama":
        return _ollama(name)
    known = list(_lmstudio_models() if program == "lmstudio" else _llamacpp_models())
    wanted = name.lower()
    matching = [m for m in known if wanted in (m.name.lower(), m.path.name.lower())]
    if not matching:
        words = re.split("[:/]", wanted)
        matching = [m for m in known if all(word in m.name.lower() for word in words)]
    if len(matching) == 1:
        return matching[0].path
    raise _unknown(program, name, [m.name for m in matching or known], several=bool(matching))


def models() -> Iterator[Found]:
    """Everything that is here, program by program; the hub's own cache first."""
    for repo in hub_repositories():
        yield Found(repo, _hub_cache() / ("models--" + repo.replace("/", "--")), "hub")
    for name in _ollama_names():
        yield Found(f"ollama:{name}", _ollama_root(), "ollama")
    for m in _lmstudio_models():
        yield Found(f"lmstudio:{m.name}", m.path, m.owner)
    for m in _llamacpp_models():
        yield Found(f"llama.cpp:{m.name}", m.path, m.owner)


def hub_repositories() -> list[str]:
    """Repositories in the hub's cache on this machine."""
    folders = [path.name for path in _listed(_hub_cache()) if path.name.startswith("models--")]
    return [name.removeprefix("models--").replace("--", "/", 1) for name in folders]


def close_to(repo: str) -> list[str]:
    """Repositories in the cache whose name is nearly that one."""
    return get_close_matches(repo, hub_repositories(), 4, 0.6)


def _hub_cache() -> Path:
    named = os.environ.get("HF_HUB_CACHE")
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    return Path(named) if named else home / "hub"


def _listed(folder: Path) -> list[Path]:
    """What is in a directory, in order; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())[:_MOST]
    except OSError:
        return []


def _below(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(p for p, _ in zip(folder.rglob(pattern), range(_MOST), strict=False))
    except OSError:
        return []


def _unknown(program: str, name: str, known: list[str], several: bool) -> LlmcalcError:
    if not known:
        return UnavailableError(
            f"{program} keeps no models on this machine", hint=_ELSEWHERE[program]
        )
    what = "names several models" if several else "is not there"
    close = known if several else get_close_matches(name, known, 4, 0.3) or known
    return InputError(
        f"{program}:{shorten(name)} {what}",
        hint=f"here: {', '.join(shorten(k) for k in close[:8])}",
    )


def _ollama_root() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path("~/.ollama/models").expanduser())


def _ollama_names() -> list[str]:
    """As ``ollama list`` shows them: the registry and the library are left away."""
    root = _ollama_root() / "manifests"
    names = []
    for path in _below(root, "*"):
        parts = path.relative_to(root).parts
        if not path.is_file() or len(parts) < 3:
            continue
        host, *middle, tag = parts
        if host != "registry.ollama.ai":
            middle = [host, *middle]
        elif middle[0] == "library":
            middle = middle[1:]
        names.append(f"{'/'.join(middle)}:{tag}")
    return names


def _ollama(name: str) -> Path:
    """The blob that a manifest names as the model.

    The manifest is registry.ollama.ai/library/NAME/TAG unless the name says more.
    """
    model, _, tag = name.partition(":")
    parts = model.split("/")
    tag = tag or "latest"
    plain = all(_PART.fullmatch(part) and part.strip(".") for part in [*parts, tag])
    if not plain or len(parts) > 3:
        raise InputError(f"ollama:{shorten(name)} is no name of a model")
    # a name of three parts has its registry, one of two its owner
    full = [*("registry.ollama.ai", "library")[: 3 - len(parts)], *parts]
    manifest = _ollama_root().joinpath("manifests", *full, tag)
    if not manifest.is_file():
        raise _unknown("ollama", name, _ollama_names(), several=False)
    layers = read_json(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            digest = _DIGEST.fullmatch(str(layer.get("digest")))
            if digest is None:
                raise InputError(f"{manifest.name}: the model's digest is no sha256")
            blob = _ollama_root() / "blobs" / f"sha256-{digest[1]}"
            if not blob.is_file():
                called = f"ollama:{shorten(name)}"
                raise UnavailableError(
                    f"{called}: its blob is missing", hint=f"ollama pull {shorten(name)}"
                )
            return blob
    raise InputError(f"ollama:{shorten(name)} has no model of its own in its manifest")


def _lmstudio_models() -> Iterator[Found]:
    for place in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        root = Path(place).expanduser()
        for path in _below(root, "*.gguf"):
            yield Found("/".join(path.relative_to(root).parts), path, "lmstudio")
        for path in _below(root, "config.json"):  # MLX models are directories
            yield Found("/".join(path.parent.relative_to(root).parts), path.parent, "lmstudio")


def _llamacpp_models() -> Iterator[Found]:
    named = os.environ.get("LLAMA_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    if sys.platform == "darwin":
        home = "~/Library/Caches"
    root = Path(named) if named else Path(home).expanduser() / "llama.cpp"
    for path in _below(root, "*.gguf"):
        yield Found("/".join(path.relative_to(root).parts), path, "llama.cpp")
