"""What a shell has of llmcalc: completion for bash, zsh and fish, the manual page, ``python -m
llmcalc``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmcalc.cli import COMMANDS

ROOT = Path(__file__).parents[1]
LINES = {
    "llmcalc kv": {"kvcache"},
    "llmcalc ": set(COMMANDS),
    "llmcalc kvcache --kv": {"--kv-dtype", "--kv-heads"},
    "llmcalc params gpt2-": {"gpt2-large", "gpt2-medium", "gpt2-xl"},
    "llmcalc fit --model gpt2-x": {"gpt2-xl"},
    "llmcalc kvcache --engine v": {"vllm"},
}


def asked(shell: str, line: str) -> str:
    """What llmcalc answers to a shell that completes a line."""
    words = line.split(" ")
    env = os.environ | {
        "_LLMCALC_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['llmcalc']; from llmcalc.cli import run; run()",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("line", LINES)
def test_completion(shell: str, line: str) -> None:
    found = asked(shell, line)
    for word in LINES[line]:
        assert word in found, (line, word)
    if line != "llmcalc ":
        assert "tokenize" not in found


def test_bash_completes_for_real(tmp_path: Path) -> None:
    """The script that --show-completion prints, sourced by bash, fills COMPREPLY."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    command = tmp_path / "llmcalc"
    command.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c \"import sys; sys.argv[0] = 'llmcalc'; "
        'from llmcalc.cli import run; run()" "$@"\n'
    )
    command.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = subprocess.run(
        [command, "--show-completion", "bash"],
        env=env | {"SHELL": "/bin/bash"},
        capture_output=True,
        text=True,
    ).stdout
    assert "complete " in script
    (tmp_path / "script").write_text(script)
    asked_ = (
        "COMP_WORDS=(llmcalc kv); COMP_CWORD=1; _llmcalc_completion llmcalc; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        [bash, "-c", f"source {tmp_path}/script; {asked_}"], env=env, capture_output=True, text=True
    )
    assert done.stdout.split() == ["kvcache"], done.stderr


def test_the_manual_page_is_the_commands_own_help() -> None:
    """``python scripts/man.py > docs/man/llmcalc.1`` writes it; LLMCALC_UPDATE_DOCS=1
    does so here.
    """
    env = os.environ | {"COLUMNS": "100"}
    page = subprocess.run(
        [sys.executable, ROOT / "scripts" / "man.py"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    kept = ROOT / "docs" / "man" / "llmcalc.1"
    if os.environ.get("LLMCALC_UPDATE_DOCS"):
        kept.write_text(page)
    assert page == kept.read_text()
    for name in COMMANDS:
        assert f".SS llmcalc {name}\n" in page


def test_the_manual_page_is_set_without_a_complaint() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not here")
    page = ROOT / "docs" / "man" / "llmcalc.1"
    done = subprocess.run(
        [groff, "-man", "-ww", "-Kutf8", "-Tutf8", page], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr and "llmcalc params" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmcalc", command, "--help"], capture_output=True, text=True
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert (
        sum(
            line.startswith(f"llmcalc {command}") or f"| llmcalc {command}" in line
            for line in lines
        )
        >= 2
    )
