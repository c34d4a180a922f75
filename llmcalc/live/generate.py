"""Real generation: logits of a model, a choice of the next token, and on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from llmcalc.errors import InputError
from llmcalc.live.load import Live
from llmcalc.live.measure import wait
from llmcalc.live.trace import ids_tensor

Choose = Callable[[torch.Tensor, Sequence[int]], int]
"""Logits (V) and the tokens generated so far to the next token's id."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One token: its id, the logits it was chosen from, and the seconds it took."""

    token: int
    logits: torch.Tensor
    seconds: float


def generate(live: Live, prompt: Sequence[int], steps: int, choose: Choose) -> Iterator[Generated]:
    """Tokens one by one: one prefill, then a cached step for each.

    ``choose`` picks from logits (V).
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}; it must be at least 1")
    cache = live.runner.cache(1, len(prompt) + steps)
    ids = ids_tensor(live, [prompt])
    so_far: list[int] = []
    for _ in range(steps):
        wait(live.device)
        began = time.perf_counter()
        logits = live.runner(ids, cache)[0]
        token = choose(logits, so_far)
        wait(live.device)
        yield Generated(token, logits, time.perf_counter() - began)
        so_far.append(token)
        ids = torch.tensor([[token]], device=live.device)
