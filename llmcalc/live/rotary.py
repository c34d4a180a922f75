"""Rotary positions and ALiBi: what a model knows of where a token stands.

Frequencies follow RoPE (arXiv 2104.09864) and its stretched forms: linear (position interpolation,
arXiv 2306.15595), dynamic NTK, YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753), and Llama 3's
by wavelength.
"""

from __future__ import annotations

from math import ceil, floor, log, log2, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from llmcalc.errors import InputError, UnavailableError
from llmcalc.forward import Rotary


def frequencies(rotary: Rotary, length: int) -> tuple[Tensor, float]:
    """Radians per position for each pair, float32, and what cosine and sine are multiplied by, at
    ``length`` tokens.
    """
    plain = _plain(rotary.base, rotary.dim)
    kind = rotary.kind
    if kind in ("default", "mrope"):
        return plain, 1.0
    if kind == "linear":
        return plain / _setting(rotary, "factor"), 1.0
    if kind == "factors":
        return plain / torch.tensor(rotary.settings["factors"]), 1.0
    if kind == "dynamic":
        return _dynamic(rotary, length), 1.0
    if kind == "llama3":
        return _llama3(rotary, plain), 1.0
    if kind == "yarn":
        return _yarn(rotary, plain)
    if kind == "longrope":
        return _longrope(rotary, plain, length)
    raise UnavailableError(f"rotary scaling {kind!r} is not supported when a model is run")


def _plain(base: float, dim: int) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def _setting(rotary: Rotary, key: str) -> Any:
    value = rotary.settings.get(key)
    if value is None:
        raise InputError(f"rotary scaling {rotary.kind} needs {key}, which the config lacks")
    return value


def _original(rotary: Rotary) -> int:
    return int(rotary.settings.get("original_max_position_embeddings") or rotary.max_context)


def _factor(rotary: Rotary) -> float:
    return float(rotary.settings.get("factor") or rotary.max_context / _original(rotary))


def _dynamic(rotary: Rotary, length: int) -> Tensor:
    factor, context, dim = _setting(rotary, "factor"), rotary.max_context, rotary.dim
    seen = max(length, context)
    return _plain(rotary.base * (factor * seen / context - (factor - 1)) ** (dim / (dim - 2)), dim)


def _llama3(rotary: Rotary, plain: Tensor) -> Tensor:
    factor, low, high = (
        _setting(rotary, k) for k in ("factor", "low_freq_factor", "high_freq_factor")
    )
    old = _original(rotary)
    wave = 2 * pi / plain
    share = (old / wave - low) / (high - low)
    smooth = (1 - share) * plain / factor + share * plain
    slow = torch.where(wave > old / low, plain / factor, plain)
    return torch.where((wave <= old / low) & (wave >= old / high), smooth, slow)


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1.0


def _yarn(rotary: Rotary, plain: Tensor) -> tuple[Tensor, float]:
    settings, factor, dim, old = rotary.settings, _factor(rotary), rotary.dim, _original(rotary)
    ends = [
        dim * log(old / (turns * 2 * pi)) / (2 * log(rotary.base))
        for turns in (settings.get("beta_fast") or 32, settings.get("beta_slow") or 1)
    ]
    if settings.get("truncate", True):
        ends = [floor(ends[0]), ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    high += 0.001 if low == high else 0
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    stretched = plain / factor * (1 - keep) + plain * keep
    given, mscale, every = (
        settings.get(k) for k in ("attention_factor", "mscale", "mscale_all_dim")
    )
    if given is not None:
        return stretched, float(given)
    return stretched, (
        _mscale(factor, mscale) / _mscale(factor, every) if mscale and every else _mscale(factor)
    )


def _longrope(rotary: Rotary, plain: Tensor, length: int) -> tuple[Tensor, float]:
    old = _original(rotary)
    each = torch.tensor(
        _setting(rotary, "long_factor" if length > old else "short_factor"), dtype=torch.float32
    )
    given = rotary.settings.get("attention_factor")
    factor = _factor(rotary)
    grown = 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(old))
    return plain / each, grown if given is None else float(given)


def angles(rotary: Rotary, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (B, 1, T, dim/2), of every token's position.

    Computed in float32, given in ``dtype``.
    """
    length = int(positions.max()) + 1 if rotary.kind in ("dynamic", "longrope") else 0
    freq, scale = frequencies(rotary, length)
    turned = positions[:, None, :, None].float() * freq.to(positions.device)
    return (turned.cos() * scale).to(dtype), (turned.sin() * scale).to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads (B, H, T, D) turned by their positions.

    What is wider than the angles passes through unturned.

    In pairs of neighbours the two come out as halves: scores do not depend on the order of a head's
    numbers.
    """
    half = cos.shape[-1]
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (
        (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
    )
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, -1)


def slopes(n_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """ALiBi's slope per head (arXiv 2108.12409): powers of two, with every other one of a finer row
    for odd counts.
    """
    whole = 2 ** floor(log2(n_heads))
    base = 2 ** (-(2 ** -(log2(whole) - 3)))
    found = [base**i for i in range(1, whole + 1)]
    fine = 2 ** (-(2 ** -(log2(2 * whole) - 3)))
    found += [fine**i for i in range(1, 2 * (n_heads - whole) + 1, 2)]
    return torch.tensor(found, dtype=torch.float32, device=device).to(dtype)
