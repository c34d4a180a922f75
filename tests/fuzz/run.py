"""Fuzzes one target with atheris, guided by coverage: ``python -m tests.fuzz.run config --seconds
300 --seed 1``.

With files after the target, these alone are run, without atheris, each within the limits.
``--collect DIR`` goes on after a fault and keeps the smallest input of each, with its traceback.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.limits import MEMORY, SECONDS, Breach, limits

SLOWER = 3
"""How much longer instrumented code may take before it is timed without instruments."""
ROOM = 2 * 10**9
"""Bytes beyond what is held at the start at which an allocation fails, so that no input fills the
machine.
"""
LONGEST = 1 << 15


@dataclass(frozen=True)
class _Places:
    """Where a fatal input goes, and where all others go that are gone on after."""

    artifacts: Path
    collect: Path | None


@dataclass(frozen=True)
class _Much:
    """How long, or how many inputs where that is not -1, and which ones by the seed."""

    seconds: int
    runs: int
    seed: int


Catch = Callable[[bytes, BaseException], bool]
"""What is asked about an input and what it raised: whether to go on."""


def main(words: Sequence[str] | None = None) -> int:
    """The script."""
    words = sys.argv[1:] if words is None else list(words)
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--runs", type=int, default=-1, help="end after so many inputs: the same ones each time"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--artifacts", type=Path, default=Path())
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    warnings.simplefilter("error")
    if asked.files:
        return max([replay(asked.target, path) for path in asked.files])
    if asked.folder is None:
        return _inside(words, asked.seconds)
    much = _Much(asked.seconds, asked.runs, asked.seed)
    fuzz(asked.target, much, asked.folder, _Places(asked.artifacts, asked.collect))
    return 0


def _inside(words: Sequence[str], seconds: int) -> int:
    """The same in a child, since libFuzzer ends its process and cleans nothing up."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        command = [sys.executable, "-m", "tests.fuzz.run", *words, "--folder", folder]
        try:
            return subprocess.run(
                command, env={**os.environ, "TMPDIR": folder}, timeout=seconds + 150
            ).returncode
        except subprocess.TimeoutExpired:
            print(
                f"the fuzzer has not ended {seconds + 150} seconds after it began", file=sys.stderr
            )
            return 1


def replay(target: str, path: Path) -> int:
    """Runs one file within the limits, after the seeds, which load what is imported on use; 1 where
    it fails.
    """
    from tests.fuzz.targets import answer

    _warm(target)
    _allow()
    data = path.read_bytes()
    gc.collect()
    try:
        with limits():
            said = answer(target, data)
    except BaseException:  # a panic in Rust is no Exception
        traceback.print_exc()
        return 1
    print(f"{path.name}: {said}")
    return 0


def fuzz(target: str, much: _Much, folder: Path, places: _Places) -> None:
    """Runs atheris; it ends the process itself, with an exit code of 77 or so after a fault."""
    import atheris

    # dims is arithmetic alone, and would take the most of the time
    with atheris.instrument_imports(include=["llmcalc"], exclude=["llmcalc.dims"]):
        from llmcalc.families import families
        from tests.fuzz.mutate import MUTATORS
        from tests.fuzz.seeds import begin
        from tests.fuzz.targets import answer

        if target in ("config", "config_formats", "config_and_tensors", "gguf_file"):
            families()
        _warm(target)
    atexit.register(
        signal.setitimer, signal.ITIMER_REAL, 0
    )  # libFuzzer's alarm, which nobody handles at the end
    seeds = begin(target, folder)
    catch: Catch = (
        _keeper(places.collect) if places.collect is not None else lambda data, error: False
    )

    def one(data: bytes) -> None:
        try:
            with limits(SLOWER * SECONDS, MEMORY // 2):
                answer(target, data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            if isinstance(error, Breach) and not _confirmed(target, data, folder):
                return
            if not catch(data, error):
                raise

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        new = MUTATORS[target](data, rng, [rng.choice(seeds)]) if rng.random() < 0.8 else None
        return atheris.Mutate(data, most) if new is None or len(new) > most else new

    _allow()
    options = [f"-max_total_time={much.seconds}", f"-runs={much.runs}", f"-seed={much.seed}"]
    options += ["-timeout=100", "-rss_limit_mb=4096"]
    options += [
        f"-max_len={LONGEST}",
        f"-artifact_prefix={places.artifacts}/",
        "-print_final_stats=1",
    ]
    (folder / "new").mkdir()
    command = [sys.argv[0], *options, str(folder / "new"), str(folder / "seeds")]
    atheris.Setup(command, one, custom_mutator=mutate)
    atheris.Fuzz()


def _warm(target: str) -> None:
    """Runs the seeds once, so that what is imported or kept on first use is not counted."""
    from tests.fuzz.seeds import files
    from tests.fuzz.targets import answer

    for path in files(target):
        try:
            with limits():
                answer(target, path.read_bytes())
        except BaseException:  # the fuzzer finds it again
            continue


def _allow() -> None:
    held = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    )
    most = int(held.split()[1]) * 1024 + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _confirmed(target: str, data: bytes, folder: Path) -> bool:
    """Whether an input that was slow or large here is so in a fresh process without instruments."""
    path = folder / "slow"
    path.write_bytes(data)
    command = [sys.executable, "-m", "tests.fuzz.run", target, str(path)]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def _keeper(folder: Path) -> Catch:
    """Keeps the smallest input of every kind of fault, which is what was raised, and where in
    llmcalc.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def keep(data: bytes, error: BaseException) -> bool:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/llmcalc/" in f.filename]
        where = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "outside"
        path = folder / f"{type(error).__name__}-{where}"
        if not path.exists() or path.stat().st_size > len(data):
            path.write_bytes(data)
            lines = traceback.format_exception(error, limit=-8)
            path.with_suffix(".txt").write_text("".join(lines), errors="backslashreplace")
        return True

    return keep


if __name__ == "__main__":
    sys.exit(main())
