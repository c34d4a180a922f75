"""Readers of untrusted files give a result or an LlmcalcError, quickly and in little memory,
whatever the bytes.

CI runs the kept corpus, a minute of atheris over all targets, and files that look right and hold
hostile values. ``python -m tests.fuzz.run TARGET --seconds 600`` goes on for longer, by hand.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.limits import Breach, limits
from tests.fuzz.seeds import CORPUS, files
from tests.fuzz.strategies import configs, gguf_files, headers
from tests.fuzz.targets import TARGETS, answer

ROOT = Path(__file__).parents[2]
RUNS = {"config": 2500, "gguf_file": 2500, "config_formats": 1000, "chat_template": 10}
"""Inputs, the same ones each time; every other target has 2,000. In all a minute, more or less."""
KEPT = [(target, path) for target in TARGETS for path in files(target)]


@pytest.mark.parametrize(("target", "path"), KEPT, ids=[f"{t}-{p.name}" for t, p in KEPT])
def test_the_kept_corpus(target: str, path: Path) -> None:
    within(target, path.read_bytes())


def test_the_corpus_is_small_and_has_files_for_every_target() -> None:
    kept = [p for p in CORPUS.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in kept) < 300_000
    assert all(files(target) for target in TARGETS)
    assert {p.parent.name for p in kept} <= TARGETS.keys()


@pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris is not installed (pip install atheris)"
)
@pytest.mark.parametrize("target", TARGETS)
def test_atheris_finds_nothing(target: str, tmp_path: Path) -> None:
    runs = str(RUNS.get(target, 2000))
    words = [
        target,
        "--runs",
        runs,
        "--seconds",
        "240",
        "--seed",
        "1",
        "--artifacts",
        str(tmp_path),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", *words],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        timeout=500,
    )
    found = {p.name: base64.b64encode(p.read_bytes()[:3000]) for p in tmp_path.iterdir()}
    assert ran.returncode == 0 and not found, f"{found}\n{ran.stderr[-3000:]}"
    assert "number_of_executed_units" in ran.stderr


hypothesis = settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck]
)


def within(target: str, data: bytes) -> None:
    """Runs a target within the limits."""
    with limits():
        answer(target, data)


@hypothesis
@given(configs())
def test_configs_with_hostile_values(data: bytes) -> None:
    within("config", data)
    within("config_formats", data)


@hypothesis
@given(headers())
def test_headers_with_hostile_values(data: bytes) -> None:
    within("safetensors_header", data)
    within("tensor_values", data)
    within("logits_file", data)


@hypothesis
@given(gguf_files())
def test_ggufs_with_hostile_values(data: bytes) -> None:
    within("gguf_file", data)
    within("gguf_vocabulary", data)
    within("tensor_values", data)


def test_the_limits_can_fail() -> None:
    with pytest.raises(Breach, match="MB more"), limits(memory=10**8):
        bytearray(2 * 10**8)
    with pytest.raises(Breach, match=r"more than 0.1 s"), limits(seconds=0.1):
        while True:
            pass
