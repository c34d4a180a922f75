"""Corpora counted by a Dask cluster on this machine: the same numbers as without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None,
                      host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


def llmcalc(*words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: the tests here open no connections."""
    command = [sys.executable, "-m", "llmcalc", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER)
    running = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdin is not None and running.stdout is not None
    yield running.stdout.readline().strip()
    running.communicate("\n", timeout=120)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    # 3, 2 and 0 tokens under GPT-2's encoding
    for part in range(3):
        rows = ["The weather is", "cat sat", ""] * (10 + part)
        parquet.write_table(arrow.table({"text": rows}), tmp_path / f"part-{part}.parquet")
    (tmp_path / "notes.txt").write_text("The weather is")
    return tmp_path


def test_the_same_counts_on_a_cluster(scheduler: str, corpus: Path) -> None:
    pattern = f"file://{corpus}/part-*.parquet"
    here = llmcalc("tokenize", pattern, "--json")
    there = llmcalc("tokenize", pattern, "--json", "--cluster", scheduler)
    assert here.returncode == there.returncode == 0, there.stderr
    assert json.loads(here.stdout) == json.loads(there.stdout)
    facts = json.loads(there.stdout)["facts"]
    assert (facts["n_tokens"], facts["n_records"]) == (5 * (10 + 11 + 12), 3 * (10 + 11 + 12))
    assert [r["n_tokens"] for r in json.loads(there.stdout)["rows"]] == [50, 55, 60]


def test_plain_files_and_the_count_alone(scheduler: str, corpus: Path) -> None:
    ran = llmcalc("tokenize", corpus / "notes.txt", "--count", "--cluster", scheduler)
    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr


def test_what_goes_wrong_on_a_worker_is_one_line(scheduler: str, corpus: Path) -> None:
    wrong = llmcalc(
        "tokenize", f"{corpus}/part-0.parquet", "--field", "body", "--cluster", scheduler
    )
    assert wrong.returncode == 2 and "no column 'body'" in wrong.stderr
    assert "hint: --field: text" in wrong.stderr and "Traceback" not in wrong.stderr
    none = llmcalc("tokenize", f"{corpus}/none-*.parquet", "--cluster", scheduler)
    assert none.returncode == 2 and none.stderr.startswith("error: no file is called")


def test_no_scheduler_is_said(corpus: Path) -> None:
    ran = llmcalc("tokenize", corpus / "notes.txt", "--cluster", "tcp://127.0.0.1:9")
    assert ran.returncode == 3 and ran.stderr.startswith("error: no Dask scheduler answers")
    assert "Traceback" not in ran.stderr
