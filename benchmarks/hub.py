"""The header of a model of a trillion parameters in 160 shards, from a hub at 10 MB/s and 100 ms: the limit is 3 s.

Run it with ``python -m benchmarks.hub`` from the checkout: the hub is the tests' own, on loopback, and really waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmcalc.api import load
from llmcalc.calc.check import promised
from llmcalc.sources import presets
from tests.sources.fake_hub import serving

MODEL, SHARDS = "kimi-k2", 160
RATE, LATENCY = 10e6, 0.1
LIMIT_SECONDS, LIMIT_BYTES = 3.0, 30_000_000


def fill(folder: Path) -> None:
    """Shards with true headers over files without data: a terabyte that takes no room."""
    folder.mkdir(parents=True)
    raw = presets.load(MODEL)
    (folder / "config.json").write_text(json.dumps(raw))
    shapes = {name: want.shape for name, want in promised(load(MODEL).anatomy).items()}
    names, places = list(shapes), {}
    for i in range(SHARDS):
        part, file = names[i * len(names) // SHARDS : (i + 1) * len(names) // SHARDS], f"model-{i + 1:05}-of-00160"
        header, end = {}, 0
        for name in part:
            begin, end = end, end + 2 * int(_product(shapes[name]))
            header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [begin, end]}
            places[name] = f"{file}.safetensors"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / f"{file}.safetensors").open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def main() -> int:
    """Prints seconds and bytes of a first and a second call; exit 1 above a limit."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        fill(root / "hub" / "org" / "large")
        with serving(root / "hub") as hub:
            hub.latency, hub.rate = LATENCY, RATE
            keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
            env = keep | {"HF_ENDPOINT": hub.url, "HF_HOME": place + "/home", "LLMCALC_CACHE_DIR": place + "/kept"}
            command = [sys.executable, "-m", "llmcalc", "check", "org/large", "--json", *sys.argv[1:]]
            took, sent = [], 0
            for call in ("first", "second"):
                before, begun = hub.sent, time.perf_counter()
                subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
                took.append(time.perf_counter() - begun)
                sent = max(sent, hub.sent - before)
                print(f"{call} call: {took[-1]:.2f} s, {(hub.sent - before) / 1e6:.2f} MB, {sum(hub.asked.values())} requests")
    print(f"limits: {LIMIT_SECONDS:g} s and {LIMIT_BYTES / 1e6:g} MB")
    return int(took[0] > LIMIT_SECONDS or sent > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
