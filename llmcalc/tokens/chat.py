"""Chat templates: messages as the text that a model sees, by the model's own Jinja template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError
from llmcalc.sources import Model
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten


def messages(path: Path) -> list[dict[str, Any]]:
    """The messages in a JSON file: a list of objects with role and content, or an object with it under ``messages``."""
    try:
        found: Any = json.loads(path.read_bytes()) if path.stat().st_size < 100_000_000 else None
    except OSError as error:
        raise InputError(f"{shorten(path.name)} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{shorten(path.name)} is not JSON") from None
    if isinstance(found, dict):
        found = found.get("messages")
    if not isinstance(found, list) or not all(isinstance(m, dict) and "role" in m for m in found):
        raise InputError(
            f"{shorten(path.name)} is no list of messages", hint='[{"role": "user", "content": "Hello"}, ...]'
        )
    return found


def template_of(model: Model) -> tuple[str, dict[str, Any]]:
    """A model's own template and the special tokens it may name; a model without one is an InputError."""
    folder = model.folder
    if model.header is not None and model.header.format == "gguf" and folder is not None:
        from llmcalc.sources import gguf

        found = gguf.read_vocabulary(folder / next(t.file for t in model.header.tensors.values()))
        tokens = found.get("ggml.tokens") or []
        names = {
            f"{k}_token": tokens[found[f"ggml.{k}_token_id"]]
            for k in ("bos", "eos")
            if isinstance(found.get(f"ggml.{k}_token_id"), int) and found[f"ggml.{k}_token_id"] < len(tokens)
        }
        if isinstance(found.get("chat_template"), str):
            return found["chat_template"], names
    elif folder is not None:
        config = folder / "tokenizer_config.json"
        raw = read_json(config) if config.is_file() else {}
        names = {k: _text(raw[k]) for k in ("bos_token", "eos_token", "unk_token", "pad_token") if raw.get(k)}
        beside = folder / "chat_template.jinja"
        template = beside.read_text() if beside.is_file() else raw.get("chat_template")
        if isinstance(template, list):
            template = next((t.get("template") for t in template if t.get("name") == "default"), None)
        if isinstance(template, str):
            return template, names
    raise InputError(
        f"{model.name} has no chat template", hint="it is in tokenizer_config.json, or in a GGUF's metadata"
    )


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def render(template: str, conversation: Sequence[dict[str, Any]], names: dict[str, Any], answer: bool = True) -> str:
    """The text of a conversation; ``answer`` adds what opens the model's turn. The template can reach nothing else."""
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise UnavailableError("chat templates need jinja2", hint="pip install 'llmcalc[tokenizers]'") from None
    if len(template) > 1_000_000:
        raise InputError(f"the chat template has {len(template)} characters, more than any model's")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda x, **more: json.dumps(x, ensure_ascii=False, **more)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        made = environment.from_string(template)
        return str(made.render(messages=list(conversation), add_generation_prompt=answer, **names))
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"the chat template refuses: {shorten(str(error), 120)}") from None


def _refuse(message: str) -> None:
    raise ValueError(message)
