"""``llmcalc list``: what the other commands know by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from llmcalc.cli.options.model import OutputOptions, takes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError, install
from llmcalc.text import safe
from llmcalc.units import count, exact, size


@takes
def list_known(
    output: OutputOptions,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="presets, families, dtypes, engines, devices, encodings or local."
        ),
    ],
) -> None:
    """List presets, families, dtypes, engines, devices, encodings, or the models that are on this
    machine.

    \b
    llmcalc list presets
    llmcalc list families --json
    llmcalc list local
    """
    lists = {
        "presets": presets,
        "families": families,
        "dtypes": dtypes,
        "engines": engines,
        "devices": devices,
    }
    lists |= {"encodings": encodings, "local": local}
    if what not in lists:
        raise InputError(f"there is no list of {what!r}", hint=f"lists: {', '.join(lists)}")
    columns, rows = lists[what]()
    view = View(
        "list/1",
        f"{len(rows)} {what}",
        columns,
        rows,
        [Fact("what", what), Fact("count", len(rows))],
    )
    if what == "engines":
        said = ["options in an engine's own words are read where they mean the same", *_own_words()]
        view = replace(view, notes=said)
    if what == "local" and not rows:
        view = replace(
            view,
            notes=[
                "looked in the hub's cache, and for Ollama, LM Studio and llama.cpp (docs/hub.md)"
            ],
        )
    write(view, output)


Listing = tuple[list[Column], list[dict[str, Any]]]


def presets() -> Listing:
    """Every preset with its family, its size and where its sizes come from."""
    from llmcalc.families import anatomy, config_for
    from llmcalc.questions.params import parameters
    from llmcalc.sources import presets as source

    rows: list[dict[str, Any]] = []
    for name in source.names():
        raw = source.load(name)
        found = anatomy(config_for(raw))
        rows.append(
            {
                "name": name,
                "family": found.family,
                "params": int(parameters(found)),
                "source": raw["_source"],
            }
        )
    columns = [
        Column("name", "preset"),
        Column("family", "family"),
        Column("params", "parameters", count, right=True),
        Column("source", "source", safe),
    ]
    return columns, rows


def families() -> Listing:
    """Every family with the model_types it serves, its mixers and its presets."""
    from llmcalc.families import families as known
    from llmcalc.sources import presets as source

    models = source.by_model_type()
    groups: dict[Any, list[str]] = {}
    for model_type, function in known().items():
        groups.setdefault(function, []).append(model_type)
    rows = [
        {
            "family": names[0],
            "model_types": names,
            "about": (function.__doc__ or "").strip().splitlines()[0],
            "mixers": mixers([m for n in names for m in models.get(n, [])]),
            "presets": [m for n in names for m in models.get(n, [])],
        }
        for function, names in sorted(groups.items(), key=lambda item: item[1][0])
    ]
    columns = [
        Column("family", "family"),
        Column("model_types", "model_type", ", ".join),
        Column("about", "what it is", safe),
        Column("mixers", "mixers", lambda kinds: ", ".join(kinds) or "no preset"),
        Column(
            "presets",
            "presets",
            lambda p: ", ".join(p[:4]) + (f" and {len(p) - 4} more" if len(p) > 4 else ""),
        ),
    ]
    return columns, rows


def mixers(names: list[str]) -> list[str]:
    """What mixes tokens in the presets of a family, and how their caches grow."""
    from llmcalc.engines.cache import kind_of
    from llmcalc.families import anatomy, config_for
    from llmcalc.sources import presets as source

    found = (m for name in names for m in anatomy(config_for(source.load(name))).mixers)
    return list(dict.fromkeys("no cache" if m.kind == "none" else kind_of(m) for m in found))


def engines() -> Listing:
    """Every engine, a row for each set of its rules: which versions, from where,
    measured on what.
    """
    from llmcalc.engines import find, known_rules
    from llmcalc.engines.spellings import SPELLINGS

    rows = [
        {
            "engine": name,
            "rules": rules.name,
            "source": rules.source,
            "evidence": rules.evidence,
            "options": dict(find(name).options),
            "aliases": list(find(name).aliases),
            "spellings": dict(SPELLINGS.get(name, {})),
        }
        for name, rules in known_rules()
    ]
    columns = [
        Column("engine", "engine"),
        Column("rules", "rules, and where they come from"),
        Column("evidence", "estimates from", lambda e: e or "nothing measured"),
        Column("source", "source", shown=False),
        Column("options", "options", shown=False),
        Column("aliases", "also called", shown=False),
        Column("spellings", "its own words, read too", shown=False),
    ]
    return columns, rows


def _own_words() -> list[str]:
    """A line for each engine whose own words for options are read."""
    from llmcalc.engines.spellings import SPELLINGS

    return [f"of {name}: {', '.join(words)}" for name, words in SPELLINGS.items()]


def devices() -> Listing:
    """Every accelerator with its memory, bandwidth and arithmetic."""
    from llmcalc.devices import find, names

    rows = []
    for name in names():
        d = find(name)
        rows.append(
            {
                "device": name,
                "memory_bytes": d.memory_bytes,
                "visible_bytes": d.visible_bytes if d.visible_known else None,
                "bandwidth": d.bandwidth,
                "bf16": d.flops.get("bf16") or d.flops.get("fp16"),
                "source": d.source,
            }
        )
    columns = [
        Column("device", "device"),
        Column("memory_bytes", "memory", size, right=True),
        Column("visible_bytes", "visible", lambda n: size(n) if n else "-", right=True),
        Column("bandwidth", "bandwidth", lambda n: f"{n / 1e9:g} GB/s" if n else "-", right=True),
        Column("bf16", "16-bit", lambda n: f"{n / 1e12:g} TFLOP/s" if n else "-", right=True),
        Column("source", "source", safe),
    ]
    return columns, rows


def dtypes() -> Listing:
    """Every storage format with its block and its bits."""
    from llmcalc.formats.element import ALIASES, DTYPES

    rows = [
        {
            "dtype": d.name,
            "block": d.block,
            "bytes": d.size,
            "bits": d.bits,
            "aliases": [alias for alias, name in ALIASES.items() if name == d.name],
        }
        for d in DTYPES.values()
    ]
    columns = [
        Column("dtype", "dtype"),
        Column("block", "elements per block", exact, right=True),
        Column("bytes", "bytes per block", exact, right=True),
        Column("bits", "bits per element", lambda b: f"{b:g}", right=True),
        Column("aliases", "also called", ", ".join),
    ]
    return columns, rows


def encodings() -> Listing:
    """Every tiktoken encoding, how large it is, and whether its ranks are here."""
    from llmcalc.errors import LlmcalcError
    from llmcalc.tokens import encodings as known

    rows: list[dict[str, Any]] = []
    for name, encoding in known.ENCODINGS.items():
        here = "come with llmcalc"
        if encoding.ranks not in ("gpt2", "p50k"):
            try:
                here = known.rank_file(encoding.ranks)[1]
            except LlmcalcError:
                here = f"need a file ({install('offline')})"
        rows.append({"name": name, "special": len(encoding.special), "ranks": here})
    columns = [
        Column("name", "encoding"),
        Column("special", "special tokens", exact, right=True),
        Column("ranks", "ranks"),
    ]
    return columns, rows


def local() -> Listing:
    """Models that the hub's client, Ollama, LM Studio and llama.cpp keep here, by the names that
    llmcalc takes.
    """
    from llmcalc.sources.local import models

    rows: list[dict[str, Any]] = [
        {"name": m.name, "owner": m.owner, "path": str(m.path)} for m in models()
    ]
    return [
        Column("name", "name", safe),
        Column("owner", "kept by"),
        Column("path", "in", safe),
    ], rows
