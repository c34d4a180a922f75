"""Several processes on one model: the same logits, and the bytes that the calculation gives each of
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from filelock import FileLock

from llmcalc.parallel import rank_params
from llmcalc.sources import resolve

torch = pytest.importorskip("torch")
IDS = "3,1,4,1,5,9,2,6"


def on_two(folder: str) -> dict[str, Any]:
    """The trace of two processes that share the model."""
    words = [
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "-m",
        "llmcalc",
    ]
    asked = [
        "trace",
        folder,
        "--live",
        "--tp",
        "2",
        "--ids",
        IDS,
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--json",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *words, *asked]
    # torchrun looks for a free port and takes it a moment later: two of them at once may find the
    # same one
    with FileLock(Path(gettempdir()) / "llmcalc-tests-torchrun.lock"):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(json.loads(ran.stdout)["facts"])


@pytest.mark.reference
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gpt_oss", "gpt2", "deepseek_v3", "phi3"])
def test_two_processes_say_what_one_says(
    tmp_path: Path, cli: Callable[..., Any], name: str
) -> None:
    pytest.importorskip("transformers")
    from tests.live.models import reference

    reference(name, tmp_path)
    one = json.loads(
        cli("trace", tmp_path, "--live", "--ids", IDS, "--device", "cpu", "--json").out
    )["facts"]
    two = on_two(str(tmp_path))
    assert two["last_logits"] == pytest.approx(one["last_logits"], abs=1e-4)
    assert two["weight_bytes"] == two["weight_bytes_predicted"] < one["weight_bytes"]


def test_each_holds_what_the_calculation_says() -> None:
    facts = on_two("toy")
    assert facts["rank_weight_bytes"] == [4 * int(rank_params(resolve("toy").anatomy, 2, 2))] * 2


def test_without_torchrun_it_says_how(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ran = cli("trace", "--live", "--tp", "2")
    assert ran.code == 3 and "torchrun --nproc-per-node 2" in ran.err
