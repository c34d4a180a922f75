"""The smallest language model that has everything: eight words, width 4, one head, one layer, three tokens.

No MLP and no norm; the head is the embedding's transpose. Forward, the gradient of the loss at the logits and the
head, and one AdamW step of the head alone (arXiv 1711.05101).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmcalc.course.attention import Matrix, Step, attention, softmax

WORDS = ("the", "cat", "is", "sitting", "on", "mat", "dog", "<eos>")
D, T = 4, 3
IDS, TARGETS = (0, 1, 2), (1, 2, 3)
LR, BETA1, BETA2, EPS, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1


@dataclass(frozen=True, slots=True)
class Toy:
    """The model's matrices."""

    embedding: Matrix
    positions: Matrix
    w_q: Matrix
    w_k: Matrix
    w_v: Matrix
    w_o: Matrix


def toy(std: float = 0.02, seed: int = 0) -> Toy:
    """Weights of a normal distribution by NumPy's default_rng, drawn in the order E, P, W_Q, W_K, W_V, W_O (/√2)."""
    rng = np.random.default_rng(seed)
    shapes = ((len(WORDS), D), (T, D), *[(D, D)] * 4)
    e, p, q, k, v, o = (rng.normal(0, std, shape) for shape in shapes)
    return Toy(e, p, q, k, v, o / np.sqrt(2))


def forward(m: Toy, head: Matrix | None = None) -> tuple[list[Step], float]:
    """Every matrix on the way from ids to the loss, and the loss: the mean of -ln p(target)."""
    x = m.embedding[list(IDS)] + m.positions
    q, k, v = x @ m.w_q, x @ m.w_k, x @ m.w_v
    steps = [
        Step("E", "embedding, one row per word", m.embedding),
        Step("P", "positions", m.positions),
        Step("X", "E[ids] + P", x),
        Step("Q", "X·W_Q", q),
        Step("K", "X·W_K", k),
        Step("V", "X·W_V", v),
        *attention(q, k, v, causal=True),
    ]
    hidden = x + steps[-1].values @ m.w_o
    logits = hidden @ (m.embedding if head is None else head).T
    p = softmax(logits)
    steps += [
        Step("H", "X + output·W_O", hidden),
        Step("logits", "H·Eᵀ", logits),
        Step("probabilities", "softmax(logits)", p),
    ]
    return steps, float(-np.log(p[range(T), list(TARGETS)]).mean())


def backward(m: Toy) -> tuple[list[Step], float]:
    """The loss's gradient at the logits and the head, AdamW's first step of the head, and the loss after it.

    dL/dlogits = (softmax - onehot)/T. In a first step the moments' corrections leave g/|g|: a step by the sign.
    """
    steps, _ = forward(m)
    by_name = {s.name: s.values for s in steps}
    wanted = np.zeros_like(by_name["logits"])
    wanted[range(T), list(TARGETS)] = 1
    d_logits = (by_name["probabilities"] - wanted) / T
    gradient = d_logits.T @ by_name["H"]
    moment, square = (1 - BETA1) * gradient / (1 - BETA1), (1 - BETA2) * gradient**2 / (1 - BETA2)
    change = -LR * (moment / (np.sqrt(square) + EPS) + DECAY * m.embedding)
    found = [
        Step("dL/dlogits", f"(softmax - onehot)/T, T = {T}", d_logits),
        Step("dL/dhead", "(dL/dlogits)ᵀ·H", gradient),
        Step("change", f"-{LR:g}·(m̂/(√v̂ + {EPS:g}) + {DECAY:g}·W)", change),
    ]
    return found, forward(m, m.embedding + change)[1]
