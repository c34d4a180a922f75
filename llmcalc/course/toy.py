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
D = 4
T = 3
IDS = (0, 1, 2)
TARGETS = (1, 2, 3)  # every word foretells the one after it
LR = 3e-4
BETA1, BETA2 = 0.9, 0.95
EPS = 1e-8
DECAY = 0.1
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
    """Weights of a normal distribution by NumPy's default_rng: E, P, then layer by layer.

    A layer draws W_Q, W_K, W_V, W_O and, with an MLP, W_in and W_out; what writes into the residual
    stream (W_O, W_out) is divided by √(2·layers), as GPT-2 does.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Matrix:
        return rng.normal(0, std, shape)

    embedding = draw(len(WORDS), D)  # (V, d)
    positions = draw(T, D)  # (T, d)
    smaller = np.sqrt(2 * layers)
    blocks = []
    for _ in range(layers):
        w_q, w_k, w_v = draw(D, D), draw(D, D), draw(D, D)
        w_o = draw(D, D) / smaller
        w_in = draw(D, 4 * D) if mlp else None  # (d, d_ff)
        w_out = draw(4 * D, D) / smaller if mlp else None  # (d_ff, d)
        blocks.append(Block(w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, w_in=w_in, w_out=w_out))
    return Toy(embedding, positions, tuple(blocks), norm)


def _normed(x: Matrix) -> Matrix:
    """LayerNorm of x (T, d), without gain and bias."""
    mean = x.mean(axis=1, keepdims=True)
    var = x.var(axis=1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(var + NORM_EPS))


def forward(m: Toy, head: Matrix | None = None) -> tuple[list[Step], float]:
    """Every matrix on the way from ids to the loss, and the loss: the mean of -ln p(target)."""
    x = m.embedding[list(IDS)] + m.positions  # (T, d)
    steps = [
        Step("E", "embedding, one row per word", m.embedding),
        Step("P", "positions", m.positions),
        Step("X", "E[ids] + P", x),
    ]
    for i, block in enumerate(m.blocks):
        label = f" {i}" if len(m.blocks) > 1 else ""
        steps += _block(block, steps[-1], m.norm, label)
    if m.norm:
        last = steps[-1]
        steps.append(Step("normed", f"LayerNorm({last.name})", _normed(last.values)))
    hidden = steps[-1]
    weight = m.embedding if head is None else head  # (V, d)
    logits = hidden.values @ weight.T  # (T, V)
    steps += [
        Step("logits", f"{hidden.name}·Eᵀ", logits),
        Step("probabilities", "softmax(logits)", softmax(logits)),
    ]
    shifted = logits - logits.max(axis=1, keepdims=True)
    wanted = shifted[range(T), list(TARGETS)]  # (T)
    losses = np.log(np.exp(shifted).sum(axis=1)) - wanted
    return steps, float(losses.mean())


def _block(b: Block, before: Step, norm: bool, label: str) -> list[Step]:
    """A layer on the residual stream: attention, then the MLP where there is one.

    Each adds to what came in.
    """
    x, name = before.values, before.name  # (T, d)
    steps: list[Step] = []
    into, read = x, name
    if norm:
        into, read = _normed(x), f"N{label}"
        steps.append(Step(read, f"LayerNorm({name})", into))
    q, k, v = into @ b.w_q, into @ b.w_k, into @ b.w_v  # (T, d) each
    for letter, made in zip("QKV", (q, k, v), strict=True):
        steps.append(Step(f"{letter}{label}", f"{read}·W_{letter}", made))
    for step in attention(q, k, v, causal=True):
        steps.append(Step(step.name + label, step.formula, step.values))
    hidden = x + steps[-1].values @ b.w_o  # (T, d)
    steps.append(Step(f"H{label}", f"{name} + output·W_O", hidden))
    if b.w_in is None or b.w_out is None:
        return steps
    into, read = hidden, f"H{label}"
    if norm:
        into, read = _normed(hidden), f"M{label}"
        steps.append(Step(read, f"LayerNorm(H{label})", into))
    inner = gelu_tanh(into @ b.w_in)  # (T, d_ff)
    steps.append(Step(f"inner{label}", f"GELU({read}·W_in)", inner))
    steps.append(Step(f"Y{label}", f"H{label} + inner·W_out", hidden + inner @ b.w_out))
    return steps


def backward(m: Toy) -> tuple[list[Step], float]:
    """The gradient at logits and head, AdamW's first step of the head, and the loss after it.

    dL/dlogits = (softmax - onehot)/T. In a first step the moments' corrections leave g/|g|: a step
    by the sign.
    """
    steps, _ = forward(m)
    last = steps[-3]
    probabilities = steps[-1].values  # (T, V)
    wanted = np.zeros_like(probabilities)
    wanted[range(T), list(TARGETS)] = 1
    d_logits = (probabilities - wanted) / T  # (T, V)
    gradient = d_logits.T @ last.values  # (V, d)
    # the moments begin at 0, so that each correction takes its own weight off again
    moment = (1 - BETA1) * gradient / (1 - BETA1)
    square = (1 - BETA2) * gradient**2 / (1 - BETA2)
    change = -LR * (moment / (np.sqrt(square) + EPS) + DECAY * m.embedding)  # (V, d)
    found = [
        Step("dL/dlogits", f"(softmax - onehot)/T, T = {T}", d_logits),
        Step("dL/dhead", f"(dL/dlogits)ᵀ·{last.name}", gradient),
        Step("change", f"-{LR:g}·(m̂/(√v̂ + {EPS:g}) + {DECAY:g}·W)", change),
    ]
    _, after = forward(m, m.embedding + change)
    return found, after
