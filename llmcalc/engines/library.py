"""Working memory of a model that a library runs: logits, and the context of the device."""

from __future__ import annotations

import re

from llmcalc.engines.base import GIB, Need, Part, estimated

CONTEXT = (int(0.4 * GIB), int(0.25 * GIB), GIB)
"""Bytes of a CUDA context: the middle, the least, the most that was seen."""
CONTEXT_WHY = "300 to 1,000 MiB by CUDA version"


def cuda_context(need: Need) -> list[Part]:
    """What a process takes on a device before it allocates anything; Apple's have none."""
    if re.match(r"m\d", need.device):
        return []
    return [estimated("CUDA context", CONTEXT, CONTEXT_WHY)]


def working(need: Need) -> list[Part]:
    """One row of float32 logits per sequence.

    Whatever a forward pass needs beside them is not known.
    """
    logits = 4 * need.anatomy.vocab * int(need.load.batch)
    why = "one row of float32 per sequence; a prefill may keep more"
    return [estimated("logits", (logits, logits, 4 * logits), why), *cuda_context(need)]
