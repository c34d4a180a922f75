"""Every console block of the README and of docs/ is run and compared; LLMCALC_UPDATE_DOCS=1 writes
what it prints.
"""

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


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
FLOATS = ("--live", "--toy", "--by-hand", "--tensor", "sample ")
"""What marks a command that computes in floating point, whose last digits are the processor's."""


def same(line: str, before: str, now: str) -> bool:
    """Whether a command prints what the page says; floating point to a thousandth, bars apart,
    whatever the gaps.
    """
    if before == now or not any(word in line for word in FLOATS):
        return before == now
    old, new = (re.sub("[─█▓▒░▏▎▍▌▋▊▉ ]+", " ", text).split() for text in (before, now))
    return len(old) == len(new) and all(map(near, old, new))


def near(old: str, new: str) -> bool:
    """Whether two words are the same but for the last digits of their numbers."""
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return old == new
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    exact = lambda n: "." not in n and "e" not in n  # noqa: E731
    numbers = [(a, b) for a, b in pairs if a != b]
    if any(exact(a) and exact(b) for a, b in numbers):
        return False
    return all(
        float(a.replace(",", "")) == pytest.approx(float(b.replace(",", "")), rel=1e-3, abs=2e-4)
        for a, b in numbers
    )


def test_the_comparison_can_fail() -> None:
    assert same("trace --live", "loss 2.94101 ███", "loss  2.941 ██")
    assert not same("trace --live", "loss 2.94", "loss 2.95")
    assert not same("trace --live", "bytes 562,176", "bytes 562,177")
    assert not same("params gpt2", "2.94101", "2.941")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_console_blocks(
    cli: Callable[..., Ran], page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    fresh = text
    for block in BLOCK.findall(text):
        lines = COMMAND.findall(block)
        assert lines or block.startswith("$ "), f"{page.name}: a console block without a command"
        printed = "\n\n".join(f"$ llmcalc {line}\n{run(cli, line)}" for line in lines) + "\n"
        if lines and " | " not in lines[0] and not same(block, block, printed):
            fresh = fresh.replace(f"```console\n{block}```", f"```console\n{printed}```")
    if os.environ.get("LLMCALC_UPDATE_DOCS"):
        page.write_text(fresh)
    assert fresh == text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
