"""The header of a model of a trillion parameters in 160 shards, from a hub at 10 MB/s and 100 ms:
the limit is 3 s.

Run it with ``python -m benchmarks.hub`` from the checkout: the hub is the tests' own, on loopback,
and really waits.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from llmcalc.api import load
from llmcalc.sources import presets
from llmcalc.sources.names import promised
from tests.sources.fake_hub import Hub, serving

MODEL, SHARDS = "kimi-k2", 160
RATE, LATENCY = 10e6, 0.1
LIMIT_SECONDS, LIMIT_BYTES = 3.0, 30_000_000
READ = """
import json, sys, time
from llmcalc.sources import resolve
begun = time.perf_counter()
model = resolve("org/large")
config = time.perf_counter()
model = model.with_header()
header = time.perf_counter()
print(json.dumps([config - begun, header - config, len(model.header.tensors), time.process_time()]))
"""


def fill(folder: Path) -> None:
    """Shards with true headers over files without data: two terabytes that take no room."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(presets.load(MODEL)))
    shapes = {name: want.shape for name, want in promised(load(MODEL).anatomy).items()}
    names, places = list(shapes), {}
    for i in range(SHARDS):
        file = f"model-{i + 1:05}-of-{SHARDS:06}.safetensors"
        header, end = {}, 0
        for name in names[i * len(names) // SHARDS : (i + 1) * len(names) // SHARDS]:
            begin, end = end, end + 2 * math.prod(shapes[name])
            header[name] = {
                "dtype": "BF16",
                "shape": list(shapes[name]),
                "data_offsets": [begin, end],
            }
            places[name] = file
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )


def read(hub: Hub, place: str) -> tuple[float, int]:
    """One call in a process of its own: seconds of the header, bytes over the network."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env = keep | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": place + "/home",
        "LLMCALC_CACHE_DIR": place + "/kept",
    }
    asked, sent = sum(hub.asked.values()), hub.sent
    done = subprocess.run(
        [sys.executable, "-c", READ], env=env, capture_output=True, text=True, check=True
    )
    config, header, tensors, cpu = json.loads(done.stdout)
    n, requests = hub.sent - sent, sum(hub.asked.values()) - asked
    print(
        f"config {config:.2f} s, header {header:.2f} s of {tensors:,} tensors: "
        f"{n / 1e6:.2f} MB in {requests} requests, {cpu:.2f} s of CPU"
    )
    return header, n


def main() -> int:
    """A first and a second call; exit 1 above a limit."""
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place) / "hub" / "org" / "large")
        with serving(Path(place) / "hub") as hub:
            hub.latency, hub.rate = LATENCY, RATE
            seconds, n_bytes = read(hub, place)
            read(hub, place)
    print(f"limits of the first: {LIMIT_SECONDS:g} s and {LIMIT_BYTES / 1e6:g} MB")
    return int(seconds > LIMIT_SECONDS or n_bytes > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
