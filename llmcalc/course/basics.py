"""The small calculations that a model is made of, each with every number on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from llmcalc.course.attention import Matrix, Step
from llmcalc.course.given import Given
from llmcalc.errors import InputError


@dataclass(frozen=True, slots=True)
class Worked:
    """A calculation that is done: its matrices in order, and single values under keys.

    With each value stands what it is.
    """

    title: str
    steps: list[Step] = field(default_factory=list)
    values: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


def _column(values: Matrix) -> Matrix:
    """Numbers one below the other, (n, 1)."""
    return np.asarray(values).reshape(-1, 1)


def layernorm(g: Given) -> Worked:
    """(x - mean)/√(var + ε)·gain + bias over each row.

    The variance divides by n (arXiv 1607.06450).
    """
    x = g.matrix("x")  # (T, d)
    eps = g.number("eps", 1e-5, 0, 1)
    mean = x.mean(axis=1, keepdims=True)  # (T, 1)
    var = x.var(axis=1, keepdims=True)  # (T, 1)
    if (var + eps == 0).any():
        raise InputError(
            "a row's numbers are all alike and eps is 0: it has no spread to divide by"
        )
    y = (x - mean) / np.sqrt(var + eps)
    steps = [
        Step("x", "given", x),
        Step("mean", "Σx/n", mean),
        Step("variance", "Σ(x - mean)²/n", var),
        Step("normalised", f"(x - mean)/√(variance + {eps:g})", y),
    ]
    return Worked("LayerNorm", steps + _scaled(g, y))


def rmsnorm(g: Given) -> Worked:
    """x/√(mean(x²) + ε)·gain over each row: no mean is taken off (arXiv 1910.07467)."""
    x = g.matrix("x")  # (T, d)
    eps = g.number("eps", 1e-6, 0, 1)
    square = (x**2).mean(axis=1, keepdims=True)  # (T, 1)
    if (square + eps == 0).any():
        raise InputError("a row's numbers are all 0 and eps is 0: it has no size to divide by")
    y = x / np.sqrt(square + eps)
    steps = [
        Step("x", "given", x),
        Step("mean square", "Σx²/n", square),
        Step("normalised", f"x/√(mean square + {eps:g})", y),
    ]
    return Worked("RMSNorm", steps + _scaled(g, y))


def _scaled(g: Given, y: Matrix) -> list[Step]:
    """What gain and bias make of y (T, d), where one of them is given."""
    if not g.has("gain") and not g.has("bias"):
        return []
    d = y.shape[1]
    gain = g.vector("gain", [1.0] * d)  # (d)
    bias = g.vector("bias", [0.0] * d)  # (d)
    if len(gain) != d or len(bias) != d:
        raise InputError(f"x is {d} wide; gain and bias are {len(gain)} and {len(bias)}")
    return [Step("output", "normalised·gain + bias", y * gain + bias)]


def gelu_tanh(x: Matrix) -> Matrix:
    """GELU in the tanh form of arXiv 1606.08415: what GPT-2 uses."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def gelu(g: Given) -> Worked:
    """x·Φ(x), exactly and in the tanh form, beside ReLU and SiLU."""
    x = g.matrix("x")
    erf = np.vectorize(math.erf)
    exact = x / 2 * (1 + erf(x / math.sqrt(2)))
    silu = x / (1 + np.exp(-np.clip(x, -700, None)))  # e^710 is beyond float64
    steps = [
        Step("x", "given", x),
        Step("GELU, tanh", "x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))", gelu_tanh(x)),
        Step("GELU", "x/2·(1 + erf(x/√2))", exact),
        Step("ReLU", "max(x, 0)", np.maximum(x, 0)),
        Step("SiLU", "x/(1 + e^-x)", silu),
    ]
    return Worked("activations", steps)


def cosine(g: Given) -> Worked:
    """a·b/(|a|·|b|) of every pair of named vectors."""
    vectors = g.named()
    x = np.stack(list(vectors.values()))  # (n, d)
    lengths = np.sqrt((x**2).sum(axis=1))  # (n)
    if (lengths == 0).any():
        raise InputError("a vector of zeros has no direction")
    dots = x @ x.T  # (n, n)
    found = dots / np.outer(lengths, lengths)
    steps = [
        Step("vectors", f"rows: {', '.join(vectors)}", x),
        Step("length", "√Σx²", _column(lengths)),
        Step("dot", "a·b", dots),
        Step("cosine", "a·b/(|a|·|b|)", found),
    ]
    pairs = {}
    for (i, a), (j, b) in combinations(enumerate(vectors), 2):
        pairs[f"{a}_{b}"] = (f"{a}, {b}", float(found[i, j]))
    return Worked("cosine similarity", steps, pairs)


def residual(g: Given) -> Worked:
    """The gradient that arrives after n layers, each of derivative F'.

    F'ⁿ without shortcuts, (1 + F')ⁿ with them.
    """
    slope = g.number("slope", None, -100, 100)
    layers = g.wholes("layers", None, 1000)
    n = np.array(layers, dtype=np.float64)
    with np.errstate(over="ignore"):
        table = np.stack([n, slope**n, (1 + slope) ** n], axis=1)  # (rows, 3)
    if not np.isfinite(table).all():
        raise InputError("the product is beyond float64")
    steps = [Step("layers", "n, F'ⁿ, (1 + F')ⁿ", table)]
    values = {str(k): (f"after {k} layers without", float(slope**k)) for k in layers}
    return Worked(f"y = x + F(x), F' = {slope:g}", steps, values)


def neuron(g: Given) -> Worked:
    """Σ w·x against a threshold: the neuron fires above it.

    A threshold is a bias of the opposite sign.
    """
    x = g.vector("x")  # (inputs)
    w = g.matrix("weights")  # (neurons, inputs)
    thresholds = g.vector("thresholds")  # (neurons)
    if w.shape != (len(thresholds), len(x)):
        raise InputError(
            f"{len(thresholds)} thresholds and {len(x)} inputs need {len(thresholds)} x {len(x)}"
            f" weights, not {w.shape}"
        )
    sums = w @ x  # (neurons)
    steps = [
        Step("x", "given", x.reshape(1, -1)),
        Step("weights", "one row per neuron", w),
        Step("sum", "Σ w·x", _column(sums)),
        Step("with bias", "sum + bias, bias = -threshold", _column(sums - thresholds)),
    ]
    values: dict[str, tuple[str, Any]] = {
        "sums": ("sums", [float(s) for s in sums]),
        "fires": ("above the threshold", [bool(f) for f in sums > thresholds]),
    }
    return Worked("neurons with a threshold", steps, values)


def gradient_step(g: Given) -> Worked:
    """w - η·g: against the slope, downhill."""
    w = g.number("w")
    rate = g.number("rate", None, 0)
    gradients = g.vector("gradients")
    after = w - rate * gradients
    table = np.stack([np.full(len(after), w), gradients, after], axis=1)  # (steps, 3)
    steps = [Step("step", "w, g, w - η·g", table)]
    values = {"after": ("w after the step", [float(a) for a in after])}
    return Worked(f"one gradient step, η = {rate:g}", steps, values)


def positions(g: Given) -> Worked:
    """PE(p, 2i) = sin(p/10000^(2i/d)), PE(p, 2i + 1) = cos of the same.

    arXiv 1706.03762, section 3.5.
    """
    d = g.whole("d", 4, 2)
    at = g.wholes("positions", (0, 1, 2, 3))
    if d % 2:
        raise InputError(f"d is {d}; sines and cosines come in pairs, so it must be even")
    rates = 10000.0 ** (-np.arange(0, d, 2) / d)  # (d/2)
    angles = np.outer(np.array(at, dtype=np.float64), rates)  # (T, d/2)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=2)  # (T, d/2, 2)
    found = pairs.reshape(len(at), d)
    steps = [
        Step("rates", "10000^(-2i/d)", rates.reshape(1, -1)),
        Step("angles", f"position·rate; positions {', '.join(map(str, at))}", angles),
        Step("encoding", "sin, cos of each angle in turn", found),
    ]
    return Worked("sinusoidal positions", steps)


def dropout(g: Given) -> Worked:
    """Each value is dropped with probability p.

    What is kept is divided by 1 - p, so the expected size stays.
    """
    p = g.number("p", None, 0, 1)
    x = g.matrix("x")
    if p == 1:
        raise InputError("p is 1: nothing is kept, and nothing can make up for it")
    generator = np.random.default_rng(g.whole("seed", 0, 0, 2**31))
    kept = generator.random(x.shape) >= p
    scale = 1 / (1 - p)
    steps = [
        Step("x", "given", x),
        Step("kept", f"1 with probability 1 - p = {1 - p:g}", kept.astype(np.float64)),
        Step("output", f"x·kept/(1 - p), 1/(1 - p) = {scale:.7g}", x * kept * scale),
    ]
    return Worked(f"dropout, p = {p:g}", steps, {"scale": ("what is kept grows by", scale)})


def matmul(g: Given) -> Worked:
    """C = A·B with A of m x k and B of k x n: 2·m·n·k FLOP.

    m·n·k multiplications, and as many additions.
    """
    steps: list[Step] = []
    if g.has("A") or g.has("B"):
        a, b = g.matrix("A"), g.matrix("B")
        if a.shape[1] != len(b):
            raise InputError(f"A is {a.shape[1]} wide and B has {len(b)} rows: no product")
        m, k = a.shape
        n = b.shape[1]
        steps = [Step("A", "given", a), Step("B", "given", b), Step("C", "A·B", a @ b)]
    else:
        m, k, n = (g.whole(key, None, 1, 2**40) for key in "mkn")
    count = m * k * n
    values = {
        "multiplications": ("multiplications, m·n·k", count),
        "flop": ("FLOP, 2·m·n·k", 2 * count),
        "shape": ("shape of C", [m, n]),
    }
    return Worked(f"matrix product, {m} x {k} by {k} x {n}", steps, values)


CALCULATIONS: Mapping[str, Callable[[Given], Worked]] = {
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "gelu": gelu,
    "cosine": cosine,
    "residual": residual,
    "neuron": neuron,
    "gradient-step": gradient_step,
    "positions": positions,
    "dropout": dropout,
    "matmul": matmul,
}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "layernorm": {"x": [2, 4, 4, 6]},
    "rmsnorm": {"x": [2, 4, 4, 6]},
    "gelu": {"x": [1.61, 1.21, -0.4, -0.33]},
    "cosine": {"cat": [0.2, 0.9, 0.1], "dog": [0.3, 0.8, 0.2], "car": [0.9, 0.1, 0.4]},
    "residual": {"slope": 0.8, "layers": [12, 48]},
    "neuron": {"x": [0.45, 0.46], "weights": [[0.2, 0.6], [0.5, 0.5]], "thresholds": [0.3, 0.5]},
    "gradient-step": {"w": 0.5, "rate": 0.1, "gradients": [0.2, -0.2]},
    "positions": {"d": 4, "positions": [0, 1, 2, 3]},
    "dropout": {"p": 0.1, "x": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]},
    "matmul": {"m": 768, "k": 768, "n": 768},
}
"""What a calculation works on where nothing else is given."""

MAIN = {"layernorm": "x", "rmsnorm": "x", "gelu": "x"}
"""The key that a bare list stands for."""
