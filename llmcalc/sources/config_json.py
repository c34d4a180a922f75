"""config.json as a raw mapping, and the overrides of ``--set``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmcalc.config import LOOKED, SIZES
from llmcalc.errors import InputError, LlmcalcError
from llmcalc.sources.json_file import read_json


def read(path: Path) -> dict[str, Any]:
    """The raw config in a file, bounded in size."""
    return read_json(path)


def override(raw: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The config with ``key=value`` settings applied.

    A key is one of our size names, or a key of the file. A size replaces whatever spelling the file
    uses; ``text_config.num_hidden_layers=2`` reaches a nested one.
    """
    # a copy through and through: sections are changed in place
    changed = json.loads(json.dumps(dict(raw)))
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError(
                f"--set {setting!r} is not key=value", hint="for example `--set n_kv_heads=8`"
            )
        _set(changed, key.strip().split("."), _value(text.strip()), setting)
    return changed  # type: ignore[no-any-return]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _set(raw: dict[str, Any], path: list[str], value: Any, setting: str) -> None:
    target = raw
    for key in path[:-1]:
        inner = target.get(key)
        if not isinstance(inner, dict):
            raise InputError(f"--set {setting!r}: the config has no section {key!r}")
        target = inner
    key = path[-1]
    # by our name or by any spelling of it
    sizes = (known for name, known in SIZES.items() if key == name or key in known)
    spellings = next(sizes, (key,))
    if target is raw and "text_config" in raw and not any(s in raw for s in spellings):
        inner = raw["text_config"]
        target = inner if isinstance(inner, dict) else raw
    present = [spelling for spelling in (*spellings, key) if spelling in target]
    if len(path) == 1 and not present and key not in SIZES and spellings == (key,):
        _check_known(raw, target, key)
    for spelling in present or [spellings[0]]:
        target[spelling] = value


def _looked_for(raw: Mapping[str, Any]) -> set[str]:
    """Every key that the config's family looks for."""
    from llmcalc.families import anatomy, config_for

    looked = set[str]()
    token = LOOKED.set(looked)
    try:
        anatomy(config_for(raw))
    except LlmcalcError:
        pass  # what is missing may be what is set
    finally:
        LOOKED.reset(token)
    return looked


def _check_known(raw: Mapping[str, Any], target: Mapping[str, Any], key: str) -> None:
    """A key that neither the file nor the family's class has is a typo, not a size."""
    import difflib

    from llmcalc.families import class_defaults

    known = {*target, *SIZES, *class_defaults(str(target.get("model_type", "")))}
    if key not in known and key not in _looked_for(raw):
        close = difflib.get_close_matches(key, sorted(known), 3)
        raise InputError(
            f"--set: no size is called {key!r}",
            hint=f"close: {', '.join(close)}" if close else None,
        )
