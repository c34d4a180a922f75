"""The table on a terminal: whatever its width, no number is cut and every row keeps its name."""

from __future__ import annotations

import pytest

from llmcalc.cli.dtype.floats import limits
from llmcalc.cli.output.terminal import sections, show
from llmcalc.cli.output.view import cells


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_no_number_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    view = limits(None)
    show(view)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    numbers = [c.right for c in view.shown_columns()]
    _, rows = cells(view)
    for row in rows:
        assert {cell for cell, right in zip(row, numbers, strict=True) if right} <= words, row
        assert row[0] in words


def test_columns_that_fit_stay_together() -> None:
    view = limits("bf16")
    _, rows = cells(view)
    columns = list(view.shown_columns())
    assert len(sections(columns, rows, 300)) == 1
    groups = sections(columns, rows, 60)
    assert len(groups) > 1 and all(g[0] == 0 and len(g) > 1 for g in groups)
    assert sorted(i for g in groups for i in g[1:]) == list(range(1, len(columns)))
