"""Every example of docs/python.md is run and compared, in order and in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
FENCE = re.compile(r"^```(\w*)$")


def examples(text: str) -> str:
    """The lines inside ```python blocks, every other line emptied, so that a failure names the
    page's own line.
    """
    lines, inside = [], False
    for line in text.splitlines():
        fence = FENCE.match(line)
        lines.append(line if inside and not fence else "")
        if fence:
            inside = fence[1] == "python"
    return "\n".join(lines) + "\n"


def test_examples() -> None:
    text = examples(PAGE.read_text())
    test = doctest.DocTestParser().get_doctest(text, {}, "docs/python.md", str(PAGE), 0)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > 30
    assert not result.failed, "".join(report)


def test_a_wrong_example_is_found() -> None:
    text = examples("text\n```python\n>>> 1 + 1\n3\n```\n```sh\n>>> not python\n```\n")
    test = doctest.DocTestParser().get_doctest(text, {}, "page", None, 0)
    result = doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None)
    assert (result.attempted, result.failed) == (1, 1)
