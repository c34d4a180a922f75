"""Engines: one module each, found by name and version.

>>> choose("vllm@0.10").rules.name
'vLLM 0.9 to 0.11 (V1): one batch in flight, groups of the smaller count'
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from llmcalc.engines import (
    formula,
    llama_cpp,
    ollama,
    openai,
    sglang,
    tensorrt_llm,
    transformers,
    vllm,
)
from llmcalc.engines.base import Engine, Rules, Version
from llmcalc.errors import InputError

_MODULES = (formula, transformers, vllm, llama_cpp, sglang, tensorrt_llm, ollama, openai)
ALL: Mapping[str, Engine] = {m.ENGINE.name: m.ENGINE for m in _MODULES}
"""Every engine by its name."""
ENGINES: Mapping[str, Engine] = {name: e for name, e in ALL.items() if e.versions}
"""Those whose memory is described."""
_ALIASES = {alias: e.name for e in ALL.values() for alias in e.aliases}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An engine as it was asked for: its rules, and a word where that version's were not read."""

    engine: Engine
    rules: Rules
    version: Version | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The engine without its version."""
        return self.engine.name


def choose(name: str) -> Chosen:
    """The engine behind ``vllm`` or ``vllm@0.10``; unknown names and versions are an InputError."""
    engine, version = find(name), version_of(name)
    if version is None:
        return Chosen(engine=engine, rules=engine.newest)
    rules = next((r for r in reversed(engine.versions) if r.covers(version)), None)
    if rules is not None:
        return Chosen(engine=engine, rules=rules, version=version)
    said = ".".join(map(str, version))
    if engine.oldest is not None and version < engine.oldest:
        before = ".".join(map(str, engine.oldest))
        raise InputError(f"the rules of {engine.name} before {before} are not known")
    note = f"the rules of {engine.name} {said} were not read: the newest known ones are used"
    return Chosen(engine=engine, rules=engine.newest, version=version, note=note)


def canonical(name: str) -> str:
    """An engine's own name, whatever it was called by; its version is left aside."""
    base = name.lower().partition("@")[0]
    return _ALIASES.get(base, base)


def find(name: str) -> Engine:
    """The engine of that name, its version left aside; a typo gets the closest names."""
    base = canonical(name)
    if base not in ENGINES:
        close = difflib.get_close_matches(base, list(ENGINES), 2)
        near = f"close: {', '.join(close)}; " if close else ""
        raise InputError(f"no engine is called {base!r}", hint=f"{near}known: {', '.join(ENGINES)}")
    return ENGINES[base]


def version_of(name: str) -> Version | None:
    """The version in ``vllm@0.10``, None where the newest known rules are asked for."""
    text = name.lower().partition("@")[2]
    if not text:
        return None
    parts = text.removeprefix("v").split(".")
    if not all(p.isdigit() and len(p) < 6 for p in parts[:2]) or not parts[0]:
        raise InputError(f"--engine {name!r}: {text!r} is not a version such as 0.10")
    # 0.20.2, and 0.20.2rc1 too
    third = re.match(r"\d{1,5}", parts[2]) if len(parts) > 2 else None
    numbers = [int(p) for p in parts[:2]] + ([int(third[0])] if third else [])
    return tuple(numbers if len(numbers) > 1 else [*numbers, 0])


def known_rules() -> list[tuple[str, Rules]]:
    """Every set of rules by the name that asks for it."""
    found = []
    for engine in ENGINES.values():
        for rules in engine.versions:
            newest = rules is engine.newest
            found.append((engine.name if newest else f"{engine.name}@{rules.asked_as}", rules))
    return found


def owners_of(option: str) -> list[str]:
    """The engines that read a setting, by our name for it."""
    return [engine.name for engine in ENGINES.values() if option in engine.options]
