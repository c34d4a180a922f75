"""Every console block of the README and of docs/ is run and compared; LLMCALC_UPDATE_DOCS=1 writes what it prints."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
COMMAND = re.compile(r"^\$ llmcalc (.*)$", re.M)
LINK = re.compile(r"\]\((?!http|#|mailto)([^)#]+)")


def run(cli: Callable[..., Ran], line: str) -> str:
    """What a command prints, stderr after stdout, and its exit code where it is not 0."""
    ran = cli(*shlex.split(line, comments=True))
    text = ran.out + ran.err + (f"exit code {ran.code}\n" if ran.code else "")
    return "\n".join(row.rstrip() for row in text.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_console_blocks(cli: Callable[..., Ran], page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    fresh = text
    for block in BLOCK.findall(text):
        lines = COMMAND.findall(block)
        assert lines or block.startswith("$ "), f"{page.name}: a console block without a command"
        printed = "\n\n".join(f"$ llmcalc {line}\n{run(cli, line)}" for line in lines) + "\n"
        if lines and " | " not in lines[0]:
            fresh = fresh.replace(f"```console\n{block}```", f"```console\n{printed}```")
    if os.environ.get("LLMCALC_UPDATE_DOCS"):
        page.write_text(fresh)
    assert fresh == text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
