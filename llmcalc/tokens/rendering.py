"""Renders one chat template, in a process of its own with little time and memory.

JSON in, JSON out. This file is run by its path and imports nothing of llmcalc.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import Any

MEMORY = 1 << 30
SECONDS = 5
LONGEST = 50_000_000


def _bounded() -> None:
    """As little time and memory as the system lets a process be held to."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        # no file can be written
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _refuse(message: str) -> None:
    raise ValueError(message)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def rendered(asked: dict[str, Any]) -> tuple[str, list[str]]:
    """The text that the template makes of the messages, and what it is given and never reads."""
    from jinja2 import meta
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    # as transformers 5.24 has them, utils/chat_template_utils.py: templates rely on them
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    made = environment.from_string(asked["template"])
    given = asked["variables"]
    # as apply_chat_template gives them, whatever else is set
    always = {"tools": None, "documents": None, "add_generation_prompt": asked["answer"]}
    text = made.render({**asked["names"], **always, **given, "messages": asked["messages"]})
    if len(text) > LONGEST:
        raise ValueError(f"its text has {len(text)} characters")
    read = meta.find_undeclared_variables(environment.parse(asked["template"]))
    return str(text), sorted(set(given) - read)


def main() -> None:
    """One question from standard input, one answer to standard output.

    Whatever the template raises is its refusal.
    """
    asked = json.loads(sys.stdin.buffer.read())
    sys.path[:] = asked["path"]
    _bounded()
    try:
        text, unread = rendered(asked)
        answer: dict[str, Any] = {"text": text, "unread": unread}
    except MemoryError:
        answer = {"refused": "it needs more memory than any model's"}
    except Exception as error:
        answer = {"refused": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
