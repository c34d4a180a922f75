"""The pictures of the README and of docs/ are drawn again and compared; LLMCALC_UPDATE_DOCS=1
writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
GEMMA = ("kvcache", "gemma-3-27b", "--ctx", "32768")
PICTURES = {"readme.svg": (*GEMMA, "--plot", "-", "--export"), "kvcache.svg": (*GEMMA, "--plot")}


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_what_the_command_draws(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    assert cli(*PICTURES[name], tmp_path / name).code == 0
    fresh = (tmp_path / name).read_text()
    if os.environ.get("LLMCALC_UPDATE_DOCS"):
        (FOLDER / name).write_text(fresh)
    kept = (FOLDER / name).read_text()
    versions = [re.findall(r"Matplotlib v([\d.]+)", text) for text in (fresh, kept)]
    if versions[0] != versions[1]:
        pytest.skip(
            f"the picture is of matplotlib {versions[1]}, which draws otherwise than {versions[0]}"
        )
    assert fresh == kept


def test_every_picture_is_of_a_command() -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(PICTURES)
