"""Writes the manual page from the commands' own help.

``python scripts/man.py > docs/man/llmcalc.1``
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from typer.main import get_command

from llmcalc.cli import COMMANDS, _application

EXIT = {
    "0": "done",
    "1": (
        "a difference was found: --expect, --max, check, what does not fit, a live measurement that"
        " is another"
    ),
    "2": "wrong input",
    "3": "something is not to be had: a package, the network, a device, memory",
    "70": "a bug in llmcalc",
    "130": "interrupted",
}
ENVIRONMENT = {
    "HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE": "as huggingface_hub reads them",
    "LLMCALC_CACHE_DIR": "where headers from the hub are kept",
    "LLMCALC_CACHE_MAX": "how much of them at most; 1 GiB where it is not set, 0 keeps nothing",
    "LLMCALC_DEBUG": "a traceback with every error",
    "OLLAMA_MODELS, LLAMA_CACHE": "where Ollama and llama.cpp keep their models",
    "NO_COLOR": "no colours",
}


def escaped(text: str) -> str:
    """A text as roff takes it literally."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def listed(items: dict[str, str]) -> list[str]:
    """Terms with what they mean."""
    return [
        line
        for term, text in items.items()
        for line in (".TP", f".B {escaped(term)}", escaped(text))
    ]


def command_page(name: str, command: Any) -> list[str]:
    """A command's text, its examples as they are, its options."""
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b")
    lines = [f".SS llmcalc {name}", escaped(" ".join(text.split()))]
    if examples.strip():
        lines += [".PP", ".nf", ".RS 2", escaped(inspect.cleandoc(examples)), ".RE", ".fi"]
    context = command.make_context(name, [], resilient_parsing=True)
    records = [p.get_help_record(context) for p in command.get_params(context)]
    for term, meaning in filter(None, records):
        lines += [".TP", f".B {escaped(term)}", escaped(" ".join(meaning.split()))]
    return lines


def page() -> str:
    """The whole page."""
    group: Any = get_command(_application([]))
    lines = [
        '.TH LLMCALC 1 "" "" "llmcalc"',
        ".SH NAME",
        "llmcalc \\- model anatomy and memory arithmetic",
        ".SH SYNOPSIS",
        ".B llmcalc",
        ".I COMMAND",
        "[OPTIONS] [MODEL]",
        ".SH DESCRIPTION",
        escaped(
            "What a language model is made of, what it takes in memory, and why. A MODEL is a"
            " preset, a config.json,"
        ),
        escaped(
            "a .safetensors or .gguf file, a directory, a hub id (org/name, org/name:Q4_K_M), or"
            " ollama:name."
        ),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        lines += command_page(name, group.commands[name])
    lines += [".SH EXIT STATUS", *listed(EXIT), ".SH ENVIRONMENT", *listed(ENVIRONMENT)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
