"""Chat templates: messages as the text that a model sees, by its own template in a sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.sources import Model
from llmcalc.sources.json_file import read_json, too_deep
from llmcalc.text import shorten

_LONGEST = 1_000_000
_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and what else a template is given: tools, documents, whether to think."""

    messages: list[dict[str, Any]]
    variables: dict[str, Any] = field(default_factory=dict)


def conversation(path: Path, settings: Sequence[str] = ()) -> Conversation:
    """The messages in a JSON file: a list of objects with role and content.

    Or an object with that list under ``messages``, whose other keys are the template's variables;
    ``settings`` are further ones, ``key=value`` with a value in JSON or a text.
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
    variables: dict[str, Any] = {}
    if isinstance(found, dict):
        variables = {key: value for key, value in found.items() if key != "messages"}
        found = found.get("messages")
    if not isinstance(found, list) or not all(isinstance(m, dict) and "role" in m for m in found):
        raise InputError(
            f"{shorten(path.name)} is no list of messages",
            hint='[{"role": "user", "content": "Hello"}, ...]',
        )
    return Conversation(found, variables | _settings(settings))


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """What ``--template-set`` sets."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(
                f"--template-set {shorten(text)!r} is not key=value",
                hint="--template-set enable_thinking=false",
            )
        try:
            found[key.strip()] = json.loads(value)
        except ValueError:
            found[key.strip()] = value
    return found


def template_of(model: Model) -> tuple[str, dict[str, Any]]:
    """A model's own template and the special tokens it may name.

    A model without one is an InputError.
    """
    folder = model.folder
    template: Any = None
    names: dict[str, Any] = {}
    if model.header is not None and model.header.format == "gguf" and folder is not None:
        from llmcalc.sources import gguf
        from llmcalc.tokens.find import gguf_file

        template, names = _of_gguf(gguf.read_vocabulary(folder / gguf_file(model)))
    elif model.fetch_vocabulary is not None:
        template, names = _of_gguf(model.fetch_vocabulary())
    elif folder is not None:
        template, names = _of_folder(folder)
    if isinstance(template, str):
        return template, names
    raise InputError(
        f"{model.name} has no chat template",
        hint="it is in tokenizer_config.json, or in a GGUF's metadata",
    )


def _of_gguf(found: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What a GGUF's metadata has for a template, and the tokens that begin and end a text."""
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
    talk: Conversation,
    names: dict[str, Any],
    answer: bool = True,
) -> tuple[str, list[str]]:
    """The text of a conversation, and the variables that the template never reads.

    ``answer`` adds what opens the model's turn.

    The template is a program that somebody else wrote: it runs in Jinja's sandbox, in a process of
    its own, with a bound on its time and memory, and can reach nothing but the messages.
    """
    if find_spec("jinja2") is None:
        raise UnavailableError("chat templates need jinja2", hint=install("tokenizers"))
    if len(template) > _LONGEST:
        raise InputError(f"the chat template has {len(template)} characters, more than any model's")
    asked: dict[str, Any] = {
        "template": template,
        "messages": talk.messages,
        "answer": answer,
        "names": names,
        "variables": talk.variables,
    }
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
    return str(told["text"]), [str(name) for name in told["unread"]]
