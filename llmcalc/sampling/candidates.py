"""The tokens that are still in the running, and what can be said of their distribution.

Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcalc.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Token ids, rising, and their logits; tokens that a stage removed are gone.

    >>> Candidates.of([2, 1, 0.5, -0.5, -1.5]).probabilities.round(4).tolist()
    [0.5871, 0.216, 0.131, 0.0482, 0.0177]
    """

    ids: Ints
    logits: Floats

    @staticmethod
    def of(logits: Any) -> Candidates:
        """All tokens but those of minus infinity.

        NaN and an empty or fully masked list are an InputError.
        """
        z = np.asarray(logits, dtype=np.float64)
        if z.ndim != 1 or not z.size:
            shape = "are empty" if not z.size else f"have shape {list(z.shape)}, not [V]"
            raise InputError(f"the logits {shape}")
        wrong = np.flatnonzero(np.isnan(z))
        if wrong.size:
            raise InputError(
                f"the logit at index {wrong[0]} is NaN", hint="something before sampling went wrong"
            )
        # what is masked cannot be chosen, and no stage has to look at it
        ids = np.flatnonzero(z > -np.inf)
        if not ids.size:
            raise InputError("every logit is minus infinity: no token can be chosen")
        return Candidates(ids, z[ids])

    def keep(self, mask: Mask) -> Candidates:
        """The candidates under a mask; the same object where nothing is removed."""
        return self if mask.all() else Candidates(self.ids[mask], self.logits[mask])

    def with_logits(self, logits: Floats) -> Candidates:
        """The same tokens with other logits."""
        return Candidates(self.ids, logits)

    @property
    def log_probabilities(self) -> Floats:
        """ln softmax(z), by z - max - ln sum exp; several infinite logits share everything."""
        top = self.logits.max()
        if top == np.inf:
            winners = self.logits == np.inf
            return np.where(winners, -np.log(winners.sum()), -np.inf)
        # without the largest no power overflows
        shifted = self.logits - top
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))

    @property
    def probabilities(self) -> Floats:
        """softmax(z) over the tokens that are left."""
        return np.exp(self.log_probabilities)

    @property
    def entropy(self) -> float:
        """H = -sum p ln p, in nats."""
        return entropy_of(self.log_probabilities)

    def position(self, token: int) -> int | None:
        """Where a token stands among the candidates, or None if it was removed."""
        at = int(np.searchsorted(self.ids, token))
        return at if at < self.ids.size and self.ids[at] == token else None

    def likeliest(self, n: int) -> list[int]:
        """The n most likely tokens, the most likely first, of equals the smaller id."""
        falling = np.argsort(-self.logits, kind="stable")
        return [int(token) for token in self.ids[falling[:n]]]

    def probability(self, token: int) -> float:
        """The token's probability; 0 where it was removed."""
        at = self.position(token)
        return 0.0 if at is None else float(self.probabilities[at])

    @property
    def greedy(self) -> int:
        """The most likely token; of equals, the one with the smallest id."""
        at = int(np.argmax(self.logits))
        return int(self.ids[at])


def entropy_of(log_p: Floats) -> float:
    """-sum p ln p over the tokens that have a probability."""
    finite = log_p[log_p > -np.inf]
    negative = (np.exp(finite) * finite).sum()
    return float(-negative) + 0.0  # and not -0.0
