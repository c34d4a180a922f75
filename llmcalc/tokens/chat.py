"""Chat templates: messages as the text that a model sees, by its own template in a sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.sources import Model
from llmcalc.sources.json_file import read_json, too_deep
from llmcalc.text import shorten

_LONGEST = 1_000_000
_SECONDS = 15.0


def messages(path: Path) -> list[dict[str, Any]]:
    """The messages in a JSON file: a list of objects with role and content.

    Or an object with that list under ``messages``.
    """
    try:
        found: Any = json.loads(path.read_bytes()) if path.stat().st_size < 100_000_000 else None
    except OSError as error:
        raise InputError(
            f"{shorten(path.name)} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(f"{shorten(path.name)} is not JSON") from None
    if too_deep(found):
        raise InputError(f"{shorten(path.name)} is nested too deeply to be read")
    if isinstance(found, dict):
        found = found.get("messages")
    if not isinstance(found, list) or not all(isinstance(m, dict) and "role" in m for m in found):
        raise InputError(
            f"{shorten(path.name)} is no list of messages",
            hint='[{"role": "user", "content": "Hello"}, ...]',
        )
    return found


def template_of(model: Model) -> tuple[str, dict[str, Any]]:
    """A model's own template and the special tokens it may name.

    A model without one is an InputError.
    """
    folder = model.folder
    template: Any = None
    names: dict[str, Any] = {}
    if model.header is not None and model.header.format == "gguf" and folder is not None:
        template, names = _of_gguf(model, folder)
    elif folder is not None:
        template, names = _of_folder(folder)
    if isinstance(template, str):
        return template, names
    raise InputError(
        f"{model.name} has no chat template",
        hint="it is in tokenizer_config.json, or in a GGUF's metadata",
    )


def _of_gguf(model: Model, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What a GGUF's metadata has for a template, and the tokens that begin and end a text."""
    from llmcalc.sources import gguf
    from llmcalc.tokens.find import gguf_file

    found = gguf.read_vocabulary(folder / gguf_file(model))
    tokens = found.get("ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    names = {}
    for name in ("bos", "eos"):
        token = found.get(f"ggml.{name}_token_id")
        if type(token) is int and 0 <= token < len(tokens):
            names[f"{name}_token"] = tokens[token]
    return found.get("chat_template"), names


def _of_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    """What stands in files of its own or in tokenizer_config.json."""
    config = folder / "tokenizer_config.json"
    raw = read_json(config) if config.is_file() else {}
    keys = ("bos_token", "eos_token", "unk_token", "pad_token")
    names = {key: _text(raw[key]) for key in keys if raw.get(key)}
    beside = folder / "chat_template.jinja"
    template = _beside(beside) if beside.is_file() else raw.get("chat_template")
    if isinstance(template, list):
        # several, each under a name: the one for talking is the default
        named = [each for each in template if isinstance(each, dict)]
        defaults = (each.get("template") for each in named if each.get("name") == "default")
        template = next(defaults, None)
    return template, names


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _beside(path: Path) -> str:
    """The text of a template's own file."""
    try:
        if path.stat().st_size > _LONGEST:
            raise InputError(
                f"{path.name} has {path.stat().st_size} bytes, more than any model's template"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read: {shorten(str(error), 80)}") from None


def render(
    template: str,
    conversation: Sequence[dict[str, Any]],
    names: dict[str, Any],
    answer: bool = True,
) -> str:
    """The text of a conversation; ``answer`` adds what opens the model's turn.

    The template is a program that somebody else wrote: it runs in Jinja's sandbox, in a process of
    its own, with a bound on its time and memory, and can reach nothing but the messages.
    """
    if find_spec("jinja2") is None:
        raise UnavailableError("chat templates need jinja2", hint=install("tokenizers"))
    if len(template) > _LONGEST:
        raise InputError(f"the chat template has {len(template)} characters, more than any model's")
    asked = {"template": template, "messages": list(conversation), "answer": answer, "names": names}
    # -I takes away the paths that jinja2 may have been found by
    asked["path"] = [p for p in sys.path if Path(p).is_absolute()]
    script = Path(__file__).with_name("rendering.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(script)],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        told = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise InputError("the chat template takes more time or memory than any model's") from None
    if "refused" in told:
        raise InputError(f"the chat template refuses: {shorten(told['refused'], 120)}")
    return str(told["text"])
