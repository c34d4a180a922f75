"""How fast a loaded model really is: seconds of its prefill, and of one more token for each."""

from __future__ import annotations

import statistics

import torch

from llmcalc.live.load import Live, no_memory, run_bytes
from llmcalc.live.measure import timed

NEW = 8
ROUNDS = 3


def pace(live: Live, context: int, batch: int) -> tuple[float, float]:
    """Medians over a few rounds, the first one left out.

    The new tokens come after ``context`` ones.
    """
    vocab = int(live.runner.before["embed.token"].shape[0])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (batch, context), generator=generator)  # (B, T)
    ids = ids.to(live.device)
    prefills: list[float] = []
    steps: list[float] = []
    with no_memory(live.device, run_bytes(live.runner.anatomy, live.dtype)):
        for _ in range(ROUNDS + 1):
            cache = live.runner.cache(batch, context + NEW)
            with timed(live.device, prefills):
                token = live.runner(ids, cache).argmax(-1)  # (B)
            for _ in range(NEW):
                with timed(live.device, steps):
                    token = live.runner(token[:, None], cache).argmax(-1)
    return statistics.median(prefills[1:]), statistics.median(steps[NEW:])
