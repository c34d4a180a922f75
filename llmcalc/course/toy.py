"""The smallest language model that has everything: eight words, width 4, one head, three tokens.

One layer without MLP and norms, unless they are asked for; the head is the embedding's transpose.
Forward, the gradient of the loss at the logits and the head, and one AdamW step of the head alone
(arXiv 1711.05101).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmcalc.course.attention import Matrix, Step, attention, softmax
from llmcalc.course.basics import gelu_tanh

WORDS = ("the", "cat", "is", "sitting", "on", "mat", "dog", "<eos>")
D, T = 4, 3
IDS, TARGETS = (0, 1, 2), (1, 2, 3)
LR, BETA1, BETA2, EPS, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1
NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Block:
    """A layer's matrices; ``w_in`` and ``w_out`` are its MLP's, four times as wide inside."""

    w_q: Matrix
    w_k: Matrix
    w_v: Matrix
    w_o: Matrix
    w_in: Matrix | None = None
    w_out: Matrix | None = None


@dataclass(frozen=True, slots=True)
class Toy:
    """The model's matrices; ``norm`` puts a LayerNorm before attention, MLP and head."""

    embedding: Matrix
    positions: Matrix
    blocks: tuple[Block, ...]
    norm: bool = False


def toy(
    std: float = 0.02, seed: int = 0, layers: int = 1, mlp: bool = False, norm: bool = False
) -> Toy:
    """Weights of a normal distribution by NumPy's default_rng, drawn in the order E, P, then layer
    by layer.

    A layer draws W_Q, W_K, W_V, W_O and, with an MLP, W_in and W_out; what writes into the residual
    stream (W_O, W_out) is divided by √(2·layers), as GPT-2 does.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Matrix:
        return rng.normal(0, std, shape)

    embedding, positions = draw(len(WORDS), D), draw(T, D)
    smaller = np.sqrt(2 * layers)
    blocks = []
    for _ in range(layers):
        q, k, v, o = draw(D, D), draw(D, D), draw(D, D), draw(D, D) / smaller
        blocks.append(
            Block(q, k, v, o, *((draw(D, 4 * D), draw(4 * D, D) / smaller) if mlp else ()))
        )
    return Toy(embedding, positions, tuple(blocks), norm)


def _normed(x: Matrix) -> Matrix:
    return np.asarray(
        (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + NORM_EPS)
    )


def forward(m: Toy, head: Matrix | None = None) -> tuple[list[Step], float]:
    """Every matrix on the way from ids to the loss, and the loss: the mean of -ln p(target)."""
    x = m.embedding[list(IDS)] + m.positions
    steps = [
        Step("E", "embedding, one row per word", m.embedding),
        Step("P", "positions", m.positions),
        Step("X", "E[ids] + P", x),
    ]
    for i, block in enumerate(m.blocks):
        more = _block(block, steps[-1], m.norm, f" {i}" if len(m.blocks) > 1 else "")
        steps += more
    hidden = steps[-1].values
    if m.norm:
        hidden = _normed(hidden)
        steps.append(Step("normed", f"LayerNorm({steps[-1].name})", hidden))
    logits = hidden @ (m.embedding if head is None else head).T
    p = softmax(logits)
    steps += [
        Step("logits", f"{steps[-1].name}·Eᵀ", logits),
        Step("probabilities", "softmax(logits)", p),
    ]
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[range(T), list(TARGETS)]
    return steps, float(losses.mean())


def _block(b: Block, before: Step, norm: bool, label: str) -> list[Step]:
    """A layer on the residual stream: attention, then the MLP where there is one.

    Each adds to what came in.
    """
    x, name = before.values, before.name
    steps = [Step(f"N{label}", f"LayerNorm({name})", _normed(x))] if norm else []
    into, read = (steps[-1].values, steps[-1].name) if norm else (x, name)
    q, k, v = into @ b.w_q, into @ b.w_k, into @ b.w_v
    steps += [
        Step(f"{n}{label}", f"{read}·W_{n}", w) for n, w in zip("QKV", (q, k, v), strict=True)
    ]
    steps += [Step(s.name + label, s.formula, s.values) for s in attention(q, k, v, causal=True)]
    hidden = x + steps[-1].values @ b.w_o
    steps.append(Step(f"H{label}", f"{name} + output·W_O", hidden))
    if b.w_in is None or b.w_out is None:
        return steps
    into, read = hidden, f"H{label}"
    if norm:
        into, read = _normed(hidden), f"M{label}"
        steps.append(Step(read, f"LayerNorm(H{label})", into))
    inner = gelu_tanh(into @ b.w_in)
    steps.append(Step(f"inner{label}", f"GELU({read}·W_in)", inner))
    steps.append(Step(f"Y{label}", f"H{label} + inner·W_out", hidden + inner @ b.w_out))
    return steps


def backward(m: Toy) -> tuple[list[Step], float]:
    """The loss's gradient at the logits and the head, AdamW's first step of the head, and the loss
    after it.

    dL/dlogits = (softmax - onehot)/T. In a first step the moments' corrections leave g/|g|: a step
    by the sign.
    """
    steps, _ = forward(m)
    last, probabilities = steps[-3], steps[-1].values
    wanted = np.zeros_like(probabilities)
    wanted[range(T), list(TARGETS)] = 1
    d_logits = (probabilities - wanted) / T
    gradient = d_logits.T @ last.values
    moment, square = (1 - BETA1) * gradient / (1 - BETA1), (1 - BETA2) * gradient**2 / (1 - BETA2)
    change = -LR * (moment / (np.sqrt(square) + EPS) + DECAY * m.embedding)
    found = [
        Step("dL/dlogits", f"(softmax - onehot)/T, T = {T}", d_logits),
        Step("dL/dhead", f"(dL/dlogits)ᵀ·{last.name}", gradient),
        Step("change", f"-{LR:g}·(m̂/(√v̂ + {EPS:g}) + {DECAY:g}·W)", change),
    ]
    return found, forward(m, m.embedding + change)[1]
