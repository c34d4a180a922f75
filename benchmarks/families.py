"""Building anatomies: DeepSeek-V3 below 5 ms, 100 different configs in one process below 2 s.

Run it with ``python benchmarks/families.py``.
"""

from __future__ import annotations

import statistics
import sys
import time

from llmcalc.families import anatomy, config_for
from llmcalc.questions.params import parameters
from llmcalc.sources import presets


def milliseconds(name: str) -> float:
    """One anatomy from a config that is already read."""
    raw = presets.load(name)
    begun = time.perf_counter()
    anatomy(config_for(raw))
    return (time.perf_counter() - begun) * 1000


def hundred() -> float:
    """Seconds to read and count 100 presets, every family loaded along the way."""
    begun = time.perf_counter()
    for name in presets.names()[:: max(1, len(presets.names()) // 100)][:100]:
        int(parameters(anatomy(config_for(presets.load(name)))))
    return time.perf_counter() - begun


def main() -> int:
    """Prints both; exit 1 above a limit."""
    many = hundred()
    one = statistics.median(milliseconds("deepseek-v3") for _ in range(20))
    print(f"100 configs {many:.2f} s (limit 2), anatomy of deepseek-v3 {one:.2f} ms (limit 5)")
    return int(many > 2 or one > 5)


if __name__ == "__main__":
    sys.exit(main())
