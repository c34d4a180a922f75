"""A model of the hub, or a file inside its repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, MissingError, UnavailableError
from llmcalc.sources import config_json, hub
from llmcalc.sources import gguf as gguf_file
from llmcalc.sources.json_file import read_json
from llmcalc.sources.model import Model
from llmcalc.sources.places import Place, place
from llmcalc.text import shorten


def from_hub(name: str, preset: str | None) -> Model | None:
    """The model behind a hub id; None where the name is none.

    ``preset`` is named where the hub does not answer.
    """
    where = place(name)
    if where is None:
        return None
    try:
        if where.file is not None and where.file != "config.json":
            return _inside(where)
        return _whole(where)
    except UnavailableError as error:
        if preset is None:
            raise
        raise UnavailableError(str(error), hint=f"the preset {preset} has its sizes") from None


def _whole(where: Place) -> Model:
    """A repository: its config, and a header that is fetched when somebody asks for it."""
    path = hub.file(where, "config.json")
    if path is not None:
        there = _exact(where, path)
        return Model(
            where.repo,
            f"hub {where}",
            _packed(there, config_json.read(path)),
            folder=path.parent,
            fetch=partial(hub.header, there),
            fetch_file=partial(hub.file, there),
        )
    path = hub.file(where, "adapter_config.json")
    if path is not None:
        from llmcalc.sources import adapters

        header = hub.safetensors(_exact(where, path), adapters.WEIGHTS)
        return Model(
            where.repo,
            f"hub {where}",
            None,
            header,
            adapter=adapters.read(path),
            folder=path.parent,
        )
    names = hub.files(where)
    ggufs = first_parts(names)
    if any(n.endswith((".safetensors", ".safetensors.index.json")) for n in names):
        header = hub.header(where)
        return Model(where.repo, f"hub {where}", None, header, header.notes)
    if len(ggufs) == 1:
        return _gguf(where, ggufs[0])
    if ggufs:
        known = ", ".join(_quantisations(ggufs)[:12]) or ggufs[0]
        raise InputError(
            f"{where} holds {len(ggufs)} GGUF files",
            hint=f"name one, or its quantisation: {where}:{known}",
        )
    raise InputError(f"{where} holds neither a config.json nor safetensors nor GGUF files")


def _packed(there: Place, raw: dict[str, Any]) -> dict[str, Any]:
    """The config with what its repository says of its packing beside it, where it says nothing."""
    from llmcalc.sources.from_path import with_packing

    if raw.get("quantization_config") or raw.get("quantization"):
        return raw
    # only names that speak of it are worth a request
    if not re.search("nvfp4|fp8|modelopt|quanto|gptq", there.repo.lower()):
        return raw
    named = "quantize_config.json" if "gptq" in there.repo.lower() else "hf_quant_config.json"
    path = hub.file(there, named)
    return raw if path is None else with_packing(raw, {named: read_json(path)})


def _exact(where: Place, path: Path) -> Place:
    """The same place at the commit that a file in the hub's cache belongs to."""
    folder = path.parent  # models--org--name/snapshots/COMMIT
    commit = folder.name if folder.parent.name == "snapshots" else where.revision
    return Place(where.repo, commit)


def _inside(where: Place) -> Model:
    """One file of a repository by its name, or the GGUF of a quantisation."""
    try:
        return _named(where, where.file or "")
    except MissingError as error:
        hint = error.hint
        if not hint:
            close = get_close_matches(where.file or "", hub.files(where), 4, 0.4)
            near = ", ".join(map(shorten, close))
            hint = f"close: {near}" if close else f"the whole repository: {where}"
        raise MissingError(str(error), hint=hint) from None


def _named(where: Place, named: str) -> Model:
    if named.endswith(".gguf"):
        return _gguf(where, named)
    if named.endswith(".safetensors"):
        header = hub.safetensors(where, named)
        return Model(where.repo, f"hub {where}:{named}", None, header, header.notes)
    if "/" in named or "." in named:
        raise InputError(
            f"{shorten(named)} is neither a .gguf nor a .safetensors file",
            hint=f"the whole repository: {where}",
        )
    return _gguf(where, choose(hub.files(where), named, str(where)))


def _gguf(where: Place, name: str) -> Model:
    header = hub.gguf(where, name)
    return Model(
        f"{where.repo}/{name}",
        f"hub {where}:{name}",
        gguf_file.to_config(header),
        header,
        header.notes,
        fetch_vocabulary=partial(hub.vocabulary, where, name),
    )


def choose(names: Sequence[str], quantisation: str, where: str) -> str:
    """The one GGUF among a repository's files whose name has that quantisation.

    >>> choose(["m-Q4_K_M.gguf", "m-Q8_0.gguf", "config.json"], "q8_0", "org/m")
    'm-Q8_0.gguf'
    """
    ggufs = first_parts(names)
    word = re.compile(rf"(?:^|[-._/]){re.escape(quantisation.lower())}(?:[-._/]|$)")
    found = [n for n in ggufs if word.search(n.lower().removesuffix(".gguf"))]
    # Unsloth's dynamic variants have the same word behind UD-
    plain = [n for n in found if f"ud-{quantisation.lower()}" not in n.lower()]
    found = plain if len(plain) == 1 else found
    if len(found) == 1:
        return found[0]
    if found:
        many = f"{where} holds {len(found)} files of {quantisation}"
        raise InputError(many, hint=f"name one: {', '.join(found[:4])}")
    there = _quantisations(ggufs)
    other = (
        f"`llmcalc dtype {quantisation.lower()} --model {where}` counts what a conversion would"
        " take"
    )
    hint = f"there: {', '.join(there[:16])}" if there else other
    raise InputError(f"{where} holds no GGUF of {shorten(quantisation)}", hint=hint)


_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:ud-)?(?:i?q\d\w*|tq\d_0|bf16|f16|f32|fp16|mxfp4\w*))(?:[-._/]|$)", re.I
)


def first_parts(names: Sequence[str]) -> list[str]:
    """The GGUF files that are models: of a split one its first part, no projectors."""
    ggufs = [n for n in names if n.endswith(".gguf") and "mmproj" not in n.lower()]
    return sorted(n for n in ggufs if (part := _PART.search(n)) is None or int(part[1]) == 1)


def _quantisations(names: Sequence[str]) -> list[str]:
    found = (_QUANTISATION.search(_PART.sub("", n).removesuffix(".gguf")) for n in names)
    return sorted({shorten(m[1].upper(), 24) for m in found if m is not None})
