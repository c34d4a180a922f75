"""128,256 logits through five stages and one draw, against torch's operators on the CPU.

Run it with ``python benchmarks/sample.py``: both take turns in one process; the limit is torch's
own time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.draw import draws
from llmcalc.sampling.engines import ENGINES, run
from llmcalc.sampling.settings import Settings

N_VOCAB, ROUNDS = 128_256, 60
SETTINGS = Settings(
    repetition_penalty=1.1,
    prompt=tuple(range(200)),
    temperature=0.8,
    top_k=0,
    top_p=0.9,
    min_p=0.02,
)


def ours(logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
    """Repetition, temperature, top-k (off), top-p, min-p, a draw."""
    start = Candidates.of(logits)
    return int(draws(run(ENGINES["any"], SETTINGS, start, N_VOCAB)[-1][1], 1, 7)[0])


def theirs(z: torch.Tensor) -> int:
    """The same steps as the reference implementation writes them."""
    seen = torch.arange(200)
    picked = z[seen]
    z = z.scatter(0, seen, torch.where(picked < 0, picked * 1.1, picked / 1.1)) / 0.8
    falling, order = torch.sort(z, descending=False)
    remove = falling.softmax(-1).cumsum(-1) <= 1 - 0.9
    remove[-1:] = False
    z = z.masked_fill(remove.scatter(0, order, remove), float("-inf"))
    p = z.softmax(-1)
    z = z.masked_fill(p < 0.02 * p.max(), float("-inf"))
    return int(torch.multinomial(z.softmax(-1), 1))


def milliseconds(step: Callable[[], int]) -> float:
    """One run."""
    begun = time.perf_counter()
    step()
    return (time.perf_counter() - begun) * 1000


def main() -> int:
    """Prints both medians; exit 1 where ours is the larger one."""
    logits = np.random.default_rng(0).normal(0, 3, N_VOCAB).astype(np.float32)
    tensor = torch.from_numpy(logits)
    pairs = [
        (milliseconds(lambda: ours(logits)), milliseconds(lambda: theirs(tensor)))
        for _ in range(ROUNDS)
    ][5:]
    a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(
        f"five stages over {N_VOCAB:,} logits: {a:.2f} ms, torch {b:.2f} ms, ratio {a / b:.2f}"
        " (limit 1)"
    )
    return int(a > b)


if __name__ == "__main__":
    sys.exit(main())
