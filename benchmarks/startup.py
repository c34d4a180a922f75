"""CPU time of ``llmcalc params gpt2 --json`` against ``python -c "import typer"``, in pairs.

The limit is 1.6 times. Run it with ``python benchmarks/startup.py``: two processes take turns, so
that a busy machine slows both.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

PAIRS = 25
LIMIT = 1.6
OURS = [sys.executable, "-m", "llmcalc", "params", "gpt2", "--json"]
THEIRS = [sys.executable, "-c", "import typer"]


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    """Prints both medians and the median ratio of the pairs; exit 1 above the limit."""
    for command in (OURS, THEIRS):
        cpu_seconds(command)
    pairs = [(cpu_seconds(OURS), cpu_seconds(THEIRS)) for _ in range(PAIRS)]
    ratio = statistics.median(a / b for a, b in pairs)
    ours, theirs = (statistics.median(p[i] for p in pairs) * 1000 for i in (0, 1))
    print(
        f"params gpt2 --json {ours:.0f} ms, import typer {theirs:.0f} ms, ratio {ratio:.2f} (limit"
        f" {LIMIT})"
    )
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
