"""Floating-point operations of a forward pass, of decoding, of training.

One multiply-add is 2 FLOP.

Conventions differ by several percent at long context, so each has its name: ``full`` counts every
score of a T x T square (PaLM, arXiv 2204.02311, appendix B), ``causal`` those that are not masked,
``none`` leaves attention out (6·N·D).
"""

from __future__ import annotations

from typing import Literal

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, total
from llmcalc.errors import InputError

Convention = Literal["full", "causal", "none"]
CONVENTIONS: tuple[Convention, ...] = ("full", "causal", "none")
Recompute = Literal["none", "selective", "full"]


def matmul_params(anatomy: Anatomy) -> Dim:
    """N: elements of the matrices that one token passes through.

    The head always, the embedding's lookup never.
    """
    return total(
        w.layers.count * w.used * (w.uses if w.uses > 1 else 1)
        for w in anatomy.text
        if w.op in ("matmul", "conv")
    )


def seen(mixer: Mixer, context: int) -> int:
    """Keys that the last of ``context`` tokens looks at."""
    window = mixer.window or mixer.sight
    return min(context, int(window)) if window is not None else context


def scores(mixer: Mixer, tokens: int, convention: Convention) -> int:
    """Query-key pairs of ``tokens`` tokens that look at themselves, in one layer."""
    if convention == "none":
        return 0
    if convention == "full":
        return tokens * tokens
    window = seen(mixer, tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def _attends(mixer: Mixer) -> bool:
    return bool(mixer.n_heads) and mixer.kind in ("kv", "latent", "shared", "compressed")


def attention_flop(anatomy: Anatomy, tokens: int, convention: Convention) -> int:
    """FLOP of scores and their mix over a sequence, all layers."""
    pairs = ((m, scores(m, tokens, convention)) for m in anatomy.mixers if _attends(m))
    return sum(2 * n * int(m.scores) * len(m.layers.indices) for m, n in pairs)


def forward_flop(anatomy: Anatomy, tokens: int, convention: Convention = "causal") -> int:
    """FLOP of a forward pass over a sequence: ``2·N·T`` and attention."""
    return 2 * int(matmul_params(anatomy)) * tokens + attention_flop(anatomy, tokens, convention)


def decode_flop(anatomy: Anatomy, context: int, absorbed: bool = True) -> int:
    """FLOP of one new token that sees ``context`` keys: ``2·N + 4·L·S·H·Q``.

    Latent attention decodes on the latents themselves where ``absorbed``: 2·heads·((r_kv + d_rope)
    + r_kv) per key.
    """
    attention = 0
    for m in anatomy.mixers:
        if _attends(m):
            each = (
                int(m.n_heads) * (2 * int(m.keys) + int(m.values))
                if m.kind == "latent" and absorbed
                else int(m.scores)
            )
            attention += 2 * each * seen(m, context) * len(m.layers.indices)
    return 2 * int(matmul_params(anatomy)) + attention


def training_flop(
    anatomy: Anatomy, tokens: int, convention: Convention = "causal", recompute: Recompute = "none"
) -> int:
    """FLOP of forward and backward over one sequence: three forwards.

    Recomputing adds one, or its attention alone.
    """
    if recompute not in ("none", "selective", "full"):
        raise InputError(f"--recompute {recompute!r} is none of none, selective and full")
    forward = forward_flop(anatomy, tokens, convention)
    again = {"none": 0, "selective": attention_flop(anatomy, tokens, convention), "full": forward}
    return 3 * forward + again[recompute]


def training_seconds(flop: int, devices: int, flop_per_second: float) -> float:
    """Seconds of so many FLOP on so many devices that each achieve that rate."""
    if devices < 1 or flop_per_second <= 0:
        raise InputError("devices and their rate must be above zero")
    return flop / (devices * flop_per_second)


def megatron_flop(
    batch: int, tokens: int, n_layers: int, d: int, vocab: int, recompute: bool = True
) -> int:
    """Megatron's own form for GPT (arXiv 2104.04473):

    96·B·s·L·h²·(1 + s/6h + V/16Lh) recomputing, 72 without.
    """
    each = 96 if recompute else 72
    inner = (
        each * n_layers * d * d
        + each * n_layers * d * tokens // 6
        + each * d * vocab // (16 if recompute else 12)
    )
    return batch * tokens * inner
