"""The registry: which function describes which ``model_type``, and the way from a Config to an
Anatomy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from llmcalc.anatomy import Anatomy, Mixer, Part, Parts, Weight
from llmcalc.config import KEY, LOOKED, Config
from llmcalc.errors import ConfigError, InputError, UnavailableError
from llmcalc.families.index import MODULES
from llmcalc.text import shorten

if TYPE_CHECKING:
    from llmcalc.forward import Forward

Family = Callable[[Config], Parts]
Runs = Callable[[Config], "Forward"]
_FAMILIES: dict[str, Family] = {}
_RUNS: dict[str, Runs] = {}
_PLACES: dict[str, str] = {}
_ARCHITECTURE_SUFFIXES = (
    "ForCausalLM",
    "LMHeadModel",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "Model",
)


def family(*model_types: str, where: str | None = None) -> Callable[[Family], Family]:
    """Registers a function for some ``model_type``s.

    A lineage that has another one's parts says so in its own module, with ``where=__name__``.
    """

    def register(function: Family) -> Family:
        module = (where or function.__module__).rsplit(".", 1)[-1]
        for name in model_types:
            assert name not in _FAMILIES, name
            _FAMILIES[name], _PLACES[name] = function, module
        return function

    return register


def registered() -> Mapping[str, str]:
    """Every known ``model_type`` with the module that describes it."""
    families()
    return _PLACES


def runs(*model_types: str) -> Callable[[Runs], Runs]:
    """Registers how some ``model_type``s are run."""

    def register(function: Runs) -> Runs:
        _RUNS.update(dict.fromkeys(model_types, function))
        return function

    return register


def runnable() -> list[str]:
    """Every ``model_type`` that can be run."""
    families()
    return sorted(_RUNS)


def forward(c: Config) -> Forward:
    """How that config's family computes; one that is only counted is an UnavailableError."""
    find(c.family)
    if c.raw.get(KEY):
        raise UnavailableError(f"running {c.family} with layers of their own ({KEY})")
    if c.family not in _RUNS:
        raise UnavailableError(
            f"running {c.family} is not supported: only its sizes are known",
            hint=f"can be run: {', '.join(runnable())}",
        )
    return _RUNS[c.family](c)


def find(name: str) -> Family | None:
    """The function for one ``model_type``; only the module that holds it is loaded."""
    for module, names in MODULES.items():
        if name in names:
            import_module(f"{__name__}.{module}")
    return _FAMILIES.get(name) or families().get(name)


@cache
def families() -> Mapping[str, Family]:
    """Every known ``model_type`` with its function."""
    for module in iter_modules(__path__):
        if not module.ispkg:  # parts/ are no family
            import_module(f"{__name__}.{module.name}")
    return _FAMILIES


@cache
def class_defaults(model_type: str) -> Mapping[str, Any]:
    """What an absent key means for that ``model_type``: the defaults of the reference
    implementation's class.

    The file has one line per type, and only that line is read as JSON.
    """
    start = f"{json.dumps(model_type)}: "
    with (Path(__file__).parent / "defaults.json").open() as file:
        line = next((text for text in file if text.startswith(start)), "")
    return json.loads(line.removeprefix(start).rstrip().rstrip(",")) if line else {}


_SAME = {"phi4": "phi3"}
"""Types under which files are published that the reference implementation has under another."""


def model_type(raw: Mapping[str, Any]) -> str:
    """The family a raw config belongs to:

    ``model_type``, else the class named in ``architectures``: a type that is named and not known
    is never taken for what its class is called, since classes outlive what they compute.
    """
    named = raw.get("model_type")
    if isinstance(named, str) and named:
        named = _SAME.get(named, named)
        if find(named):
            return named
        raise _unknown(raw, named)
    classes = raw.get("architectures")
    for architecture in classes if isinstance(classes, list) else ():
        if isinstance(architecture, str) and (found := _by_architecture(architecture)):
            return found
    if "_class_name" in raw:
        raise UnknownFamilyError(
            f"{shorten(str(raw['_class_name']), 60)} is a component of a diffusers pipeline:"
            " caches, steps and text do not apply to it",
            hint="`llmcalc params` counts the weights of a .safetensors file, or of the pipeline's"
            " directory",
        )
    if not named and not raw.get("architectures"):
        raise UnknownFamilyError(
            "the config names no model_type and no architectures",
            hint="say which family it follows with `--as llama`; `llmcalc list families` shows all",
        )
    raise _unknown(raw, str(named or raw["architectures"]))


def _by_architecture(architecture: str) -> str | None:
    for suffix in _ARCHITECTURE_SUFFIXES:
        if architecture.endswith(suffix):
            wanted = _squeeze(architecture.removesuffix(suffix))
            return next((name for name in families() if _squeeze(name) == wanted), None)
    return None


def _squeeze(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(".", "").lower()


class UnknownFamilyError(InputError):
    """No family describes that architecture."""


def _unknown(raw: Mapping[str, Any], named: str) -> InputError:
    import difflib

    close = difflib.get_close_matches(named.lower(), list(families()), 3, 0.4)
    remote = (
        " (its config asks for remote code, which llmcalc never runs)"
        if raw.get("auto_map")
        else ""
    )
    return UnknownFamilyError(
        f"no family is known for model_type {named[:60]!r}{remote}",
        hint=(f"close: {', '.join(close)}; " if close else "")
        + "count it as another family with `--as llama`, give sizes as flags (--d --layers ...), "
        + "or name the checkpoint file itself, whose own header gives the exact count; "
        + "`llmcalc list families` shows all",
    )


INSIDE = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
"""Under which keys larger configs hold that of their language model."""


def inside(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The language model's config in a larger one, with the path to it; None where none is known.

    >>> inside({"thinker_config": {"text_config": {"model_type": "llama"}}})
    ('thinker_config.text_config', {'model_type': 'llama'})
    """
    for key in INSIDE:
        section = raw.get(key)
        if not isinstance(section, Mapping):
            continue
        deeper = inside(section)
        if deeper is not None:
            return f"{key}.{deeper[0]}", deeper[1]
        try:
            model_type(section)
        except InputError:
            continue
        return key, section
    return None


def config_for(raw: Mapping[str, Any]) -> Config:
    """A Config with its family settled and that family's class defaults.

    A larger config whose own family is not known keeps its name where its language model's is.
    """
    try:
        name = model_type(raw)
    except UnknownFamilyError:
        if inside(raw) is None:
            raise
        return Config({**raw, "model_type": str(raw.get("model_type") or "wrapper")[:60]})
    return Config({**raw, "model_type": name}, defaults=class_defaults(name))


def inner(c: Config, key: str, default_type: str = "") -> Config:
    """The config nested under ``key`` with the class defaults of its own ``model_type``."""
    raw = c.raw.get(key)
    if not isinstance(raw, Mapping):
        return c if c.section else _lacking(c, key)
    name = raw.get("model_type") or c.defaults.get(f"{key}.model_type") or default_type
    defaults = class_defaults(str(name))
    return Config({**raw, "model_type": name}, defaults=defaults, nested=True, section=key)


def _lacking(c: Config, key: str) -> Config:
    """The config itself where it has no such section: what it lacks is said to be missing there."""
    same = Config(c.raw, defaults=c.defaults, nested=c.is_nested, section=key)
    same.assumed, same.notes = c.assumed, c.notes
    return same


def parts_of(c: Config) -> Parts:
    """The parts of a config whose family is known by its ``model_type``; for models
    inside others.
    """
    named = model_type(c.raw)
    function = find(named)
    assert function is not None  # model_type() has found it
    if named in _DESCRIBED.get():
        raise ConfigError(
            f"{named}: the config has no language model inside it (looked for text_config)"
        )
    token = _DESCRIBED.set(_DESCRIBED.get() | {named})
    try:
        yield from function(c)
    finally:
        _DESCRIBED.reset(token)


_DESCRIBED: ContextVar[frozenset[str]] = ContextVar("described", default=frozenset())
"""Model types that are being described: a config that would hold its own kind has none inside."""


def anatomy(c: Config) -> Anatomy:
    """The list of parts of a model, in forward order.

    Where the language model inside is known and what stands around it is not, it is described
    alone, and what is left out is named (``Anatomy.uncounted``).
    """
    try:
        parts, beside = _described(c)
    except _WRONG_KIND as error:
        said = shorten(str(error), 100) or type(error).__name__
        raise ConfigError(
            f"{c.family or 'config'}: a value of the config is of the wrong kind, or contradicts"
            f" another ({said})",
            hint="LLMCALC_DEBUG=1 shows where",
        ) from error
    within = inside(c.raw) if find(c.family) is None else None
    if _is_bare(c.raw if within is None else within[1]):
        parts = tuple(_without_head(parts))
    for part in parts:
        wrong = _impossible(part)
        if wrong:
            raise ConfigError(f"{c.family or 'config'}: {wrong}: the sizes contradict each other")
    kept = tuple(p for p in parts if not isinstance(p, Mixer) or p.layers.indices)
    if beside:
        c.notes.append(left_out(beside))
    whole = Anatomy(c.family, kept, tuple(c.notes), uncounted=beside)
    return _with_modules(c, whole) if predicts(c.raw) else whole


def predicts(raw: Mapping[str, Any]) -> bool:
    """Whether a config speaks of multi-token prediction."""
    sections = (raw, *(v for v in raw.values() if isinstance(v, Mapping)))
    return any("mtp" in key or "_predict_" in key for section in sections for key in section)


def _with_modules(c: Config, whole: Anatomy) -> Anatomy:
    """The model with its modules of multi-token prediction beside it."""
    from llmcalc.families.parts import mtp

    if not mtp.wanted(c):
        return whole
    parts = mtp.module(c, whole)
    return replace(whole, predicting=parts, predicting_said=mtp.said(c, parts))


def left_out(sections: tuple[str, ...]) -> str:
    """The word about what is not among a model's parts."""
    return f"the language model alone: {', '.join(sections)} is not counted, no family describes it"


def _described(c: Config) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """All parts, or those of the language model and what is not counted beside it."""
    if find(c.family) is None:
        return _language_alone(c)
    try:
        return _each_layer(c), ()
    except ConfigError as error:
        if inside(c.raw) is None:
            raise
        parts = _language_alone(c)  # its own sizes may be what is missing
        c.notes.append(f"not counted beside the language model: {error}")
        return parts


def _language_alone(c: Config) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    found = inside(c.raw)
    assert found is not None  # config_for() has found it, or a family's own rule
    path, raw = found
    named = model_type(raw)
    tied = c.raw.get("tie_word_embeddings", raw.get("tie_word_embeddings"))
    changed = {k: v for k, v in raw.items() if k not in ("architectures", "tie_word_embeddings")}
    changed |= {"model_type": named} | ({} if tied is None else {"tie_word_embeddings": tied})
    inner_config = Config(changed, defaults=class_defaults(named), nested=True, section=path)
    looked = set[str]()
    token = LOOKED.set(looked)
    try:
        parts = _each_layer(inner_config)
    finally:
        LOOKED.reset(token)
    _refuse_unread(c, inner_config, looked)
    top = c.raw if "." not in path else c.raw[path.split(".")[0]]
    beside = [k for k, v in top.items() if isinstance(v, Mapping) and k.endswith("_config")]
    return parts, tuple(k for k in beside if k not in path and k not in _NO_PARTS)


_SIZE = re.compile(r"(hidden_size|intermediate_size|inner_size|_dim|_rank|num_\w*heads)$")


def _refuse_unread(c: Config, text: Config, looked: set[str]) -> None:
    """A language model inside an unknown one may be another than its type says: a size that its
    family never reads is a ConfigError.
    """
    unread = [
        key
        for key, value in text.raw.items()
        if _SIZE.search(key) and type(value) is int and value > 0
        if key not in looked and key not in text.defaults
    ]
    if unread:
        raise ConfigError(
            f"{c.family}: its language model has {shorten(unread[0])}, which {text.family} does not"
            " know: it is another than that",
            hint="name the checkpoint: its header has every tensor",
        )


_NO_PARTS = ("quantization_config", "generation_config", "compression_config", "rope_config")


def _each_layer(c: Config) -> tuple[Part, ...]:
    """The parts of a config, layer by layer where it overrides some."""
    sections = [k for k, v in c.raw.items() if isinstance(v, Mapping) and v.get(KEY)]
    if not c.raw.get(KEY) and not sections:
        return tuple(parts_of(c))
    from llmcalc.families.parts import by_layer

    section = None if c.raw.get(KEY) else sections[0]
    if len(sections) > (section is not None):
        raise ConfigError(f"{c.family}: more than one part of the config has {KEY}")
    return by_layer.resolved(c, section, lambda changed: tuple(parts_of(changed)))


def _impossible(part: Part) -> str | None:
    """What no part can be: a tensor without elements, a mixer with a size below zero."""
    if isinstance(part, Weight):
        sizes = [int(size) for size in part.shape]
        return (
            None
            if all(n >= 1 for n in sizes)
            else f"{part.name} would be {' x '.join(map(str, sizes))}"
        )
    sizes = [getattr(part, f.name) for f in fields(part)]
    below = [int(n) for n in sizes if isinstance(n, int) and n < 0]
    return f"a {part.kind} layer would have a size of {below[0]}" if below else None


_WRONG_KIND = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What Python says when a family's function meets a text, a list or nothing where a config has a
number.
"""


def _is_bare(raw: Mapping[str, Any]) -> bool:
    """Whether the config asks for the model without a head (``MistralModel``), as embedding models
    do.
    """
    named = raw.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    return first.endswith("Model") and not first.endswith(("LMHeadModel", "LMModel"))


def _without_head(parts: tuple[Part, ...]) -> Parts:
    """The parts without the head, and without the prefix that only the whole model's names have."""
    kept = [p for p in parts if not (isinstance(p, Weight) and p.role == "head")]
    first = {p.name.split(".")[0] for p in kept if isinstance(p, Weight)}
    prefix = f"{first.pop()}." if len(first) == 1 else ""
    for part in kept:
        yield (
            replace(part, name=part.name.removeprefix(prefix)) if isinstance(part, Weight) else part
        )
