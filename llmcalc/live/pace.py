"""How fast a loaded model really is: seconds of its prefill, and of one more token of every
sequence.
"""

from __future__ import annotations

import statistics

import torch

from llmcalc.live.load import Live, no_memory, run_bytes
from llmcalc.live.measure import timed

NEW, ROUNDS = 8, 3


def pace(live: Live, context: int, batch: int) -> tuple[float, float]:
    """Medians over a few rounds, the first one left out.

    The new tokens come after ``context`` ones.
    """
    vocab = int(live.runner.before["embed.token"].shape[0])
    ids = torch.randint(0, vocab, (batch, context), generator=torch.Generator().manual_seed(0)).to(
        live.device
    )
    first: list[float] = []
    each: list[float] = []
    with no_memory(live.device, run_bytes(live.runner.anatomy, live.dtype)):
        for _ in range(ROUNDS + 1):
            cache = live.runner.cache(batch, context + NEW)
            with timed(live.device, first):
                token = live.runner(ids, cache).argmax(-1)
            for _ in range(NEW):
                with timed(live.device, each):
                    token = live.runner(token[:, None], cache).argmax(-1)
    return statistics.median(first[1:]), statistics.median(each[NEW:])
