"""Large checkpoints: a sparse file of 200 GB, 100,000 tensors in one header, 200 shards.

Run it with ``python benchmarks/headers.py``. Only headers are read, so the sizes of the files do
not matter.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from llmcalc.sources import resolve


def write(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file whose data is a hole."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        n_bytes = 2
        for axis in shape:
            n_bytes *= axis
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def one_huge_file(folder: Path) -> Path:
    """200 GB in 10 tensors."""
    write(folder / "huge.safetensors", {f"w{i}": [100_000, 100_000] for i in range(10)})
    return folder / "huge.safetensors"


def one_long_header(folder: Path) -> Path:
    """100,000 tensors."""
    write(
        folder / "long.safetensors",
        {f"model.layers.{i // 100}.w{i % 100}.weight": [64, 64] for i in range(100_000)},
    )
    return folder / "long.safetensors"


def many_shards(folder: Path) -> Path:
    """20,000 tensors in 200 shards."""
    where: dict[str, str] = {}
    for shard in range(200):
        name = f"model-{shard + 1:05d}-of-00200.safetensors"
        shapes = {f"model.layers.{shard}.w{i}.weight": [64, 64] for i in range(100)}
        write(folder / name, shapes)
        where |= dict.fromkeys(shapes, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": 200 * 100 * 64 * 64 * 2}, "weight_map": where})
    )
    return index


CASES: tuple[tuple[Callable[[Path], Path], float, int], ...] = (
    (one_huge_file, 1.0, 8),
    (one_long_header, 10.0, 400),
    (many_shards, 10.0, 200),
)
"""What is written, and the most seconds and MB that reading it may take."""


def main() -> int:
    """Prints seconds and peak memory of each case; exit 1 where one is above its limit."""
    failed = 0
    for make, seconds, megabytes in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = make(Path(folder))
            begun = time.perf_counter()
            header = resolve(str(path)).header
            spent = time.perf_counter() - begun
            tracemalloc.start()
            resolve(str(path))
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            assert header is not None
            print(
                f"{make.__name__}: {len(header.tensors):,} tensors, {spent:.3f} s, {peak:.1f} MB at"
                " most"
            )
            failed += spent > seconds or peak > megabytes
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
