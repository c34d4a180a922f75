"""``llmcalc trace --toy``: every matrix of a model of eight words, its loss, a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmcalc.cli.output.view import Fact, View
from llmcalc.cli.trace.matrices import row, view
from llmcalc.course.toy import IDS, TARGETS, WORDS, backward, forward, toy
from llmcalc.errors import InputError

if TYPE_CHECKING:
    from llmcalc.cli.trace.options import CourseOptions

_DEEPEST = 64


def of_toy(options: CourseOptions, layers: int) -> View:
    """The toy model: its matrices, its loss against that of guessing, and one step of training."""
    std = options.std if options.std is not None else 0.02
    seed = options.seed or 0
    if not 0 < std < 1e3:
        raise InputError(f"--std is {std:g}; it must be above 0 and below 1000")
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must be at least 0")
    if not 1 <= layers <= _DEEPEST:
        raise InputError(f"--layers is {layers}; the toy has from 1 to {_DEEPEST}")
    model = toy(std, seed, layers, options.mlp, options.norm)
    steps, loss = forward(model)
    last = steps[-1].values  # probabilities, (T, V)
    targets = [float(last[i, t]) for i, t in enumerate(TARGETS)]
    uniform = float(np.log(len(WORDS)))
    likeliest = WORDS[int(last[-1].argmax())]
    facts = [
        Fact("ids", list(IDS), "ids", _words),
        Fact("targets", list(TARGETS), "targets", _words),
        Fact("p_target", targets, "probability of the targets", _four),
        Fact("loss", loss, "loss = -mean ln p(target)", _six),
        Fact("ln_vocab", uniform, f"guessing: ln {len(WORDS)}", _six),
        Fact("next", likeliest, "likeliest after the last"),
    ]
    if options.backward:
        found, after = backward(model)
        steps += found
        sums = [float(x) for x in found[0].values.sum(axis=1)]
        facts.append(Fact("row_sums", sums, "sums of dL/dlogits' rows", row))
        facts.append(Fact("loss_after", after, "loss after the step", _six))
    built = [f"{layers} layers"] * (layers > 1) + ["MLP"] * options.mlp + ["norms"] * options.norm
    extra = f" with {', '.join(built)}" if built else ""
    return view(f"toy model{extra}, weights of std {std:g}, seed {seed}", steps, facts)


def _words(ids: Sequence[int]) -> str:
    return ", ".join(f"{i} ({WORDS[i]})" for i in ids)


def _four(probabilities: Sequence[float]) -> str:
    return ", ".join(f"{p:.4f}" for p in probabilities)


def _six(x: float) -> str:
    return f"{x:.6f}"
