"""Rotary positions and ALiBi: what a model knows of where a token stands.

Frequencies follow RoPE (arXiv 2104.09864) and its stretched forms: linear (position interpolation,
arXiv 2306.15595), dynamic NTK, YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753), and Llama 3's
by wavelength. Functions named in the docstrings below are those of transformers 5.24,
modeling_rope_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log, log2, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from llmcalc.errors import InputError, UnavailableError
from llmcalc.forward import Rotary


def frequencies(rotary: Rotary, length: int) -> tuple[Tensor, float]:
    """Radians per position for each pair, float32 (dim/2), and a factor of cosine and sine.

    ``length`` is how many tokens there are: two of the stretched forms ask for it.
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
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim  # (dim/2)
    return 1.0 / (base**exponents)


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
    """A larger base for a longer text: _compute_dynamic_ntk_parameters."""
    factor = _setting(rotary, "factor")
    context, dim = rotary.max_context, rotary.dim
    seen = max(length, context)
    grown = factor * seen / context - (factor - 1)
    return _plain(rotary.base * grown ** (dim / (dim - 2)), dim)


def _llama3(rotary: Rotary, plain: Tensor) -> Tensor:
    """Slow pairs stretched, fast ones left, a slope between: _compute_llama3_parameters."""
    factor = _setting(rotary, "factor")
    low = _setting(rotary, "low_freq_factor")
    high = _setting(rotary, "high_freq_factor")
    old = _original(rotary)
    wave = 2 * pi / plain  # tokens per turn, (dim/2)
    share = (old / wave - low) / (high - low)
    smooth = (1 - share) * plain / factor + share * plain
    slow = torch.where(wave > old / low, plain / factor, plain)
    between = (wave <= old / low) & (wave >= old / high)
    return torch.where(between, smooth, slow)


def _mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor of cosine and sine for a context that is ``factor`` times as long."""
    return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1.0


def _yarn(rotary: Rotary, plain: Tensor) -> tuple[Tensor, float]:
    """Pairs that turn often are left, the others stretched: _compute_yarn_parameters."""
    settings = rotary.settings
    factor, dim, old = _factor(rotary), rotary.dim, _original(rotary)

    def pair_of(turns: float) -> float:
        """Which pair turns so often within the original context."""
        return dim * log(old / (turns * 2 * pi)) / (2 * log(rotary.base))

    fast = pair_of(settings.get("beta_fast") or 32)
    slow = pair_of(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        fast, slow = floor(fast), ceil(slow)
    low, high = max(fast, 0), min(slow, dim - 1)
    high += 0.001 if low == high else 0  # the slope has some width
    slope = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)
    keep = 1 - slope.clamp(0, 1)  # (dim/2)
    stretched = plain / factor * (1 - keep) + plain * keep
    return stretched, _yarn_scale(settings, factor)


def _yarn_scale(settings: Mapping[str, Any], factor: float) -> float:
    given = settings.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, every = settings.get("mscale"), settings.get("mscale_all_dim")
    if mscale and every:
        return _mscale(factor, mscale) / _mscale(factor, every)
    return _mscale(factor)


def _longrope(rotary: Rotary, plain: Tensor, length: int) -> tuple[Tensor, float]:
    """Every pair by a factor of its own: _compute_longrope_parameters."""
    old = _original(rotary)
    key = "long_factor" if length > old else "short_factor"
    each = torch.tensor(_setting(rotary, key), dtype=torch.float32)  # (dim/2)
    given = rotary.settings.get("attention_factor")
    factor = _factor(rotary)
    grown = 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(old))
    return plain / each, grown if given is None else float(given)


def angles(rotary: Rotary, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (B or 1, 1, T, dim/2), of the positions (B or 1, T) of every token.

    Computed in float32, given in ``dtype``.
    """
    by_length = rotary.kind in ("dynamic", "longrope")
    length = int(positions.max()) + 1 if by_length else 0
    freq, scale = frequencies(rotary, length)
    # (B or 1, 1, T, dim/2)
    turned = positions[:, None, :, None].float() * freq.to(positions.device)
    return (turned.cos() * scale).to(dtype), (turned.sin() * scale).to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads (B, heads, T, d_h) turned by their positions.

    What is wider than the angles passes through unturned. In pairs of neighbours the two come out
    as halves: scores do not depend on the order of a head's numbers.
    """
    half = cos.shape[-1]
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = head[..., 0::2], head[..., 1::2]  # (B, heads, T, dim/2)
    else:
        first, second = head[..., :half], head[..., half:]  # (B, heads, T, dim/2)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, -1)


def slopes(n_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """ALiBi's slope per head, (n_h) (arXiv 2108.12409).

    Powers of two; a number of heads that is none takes every other one of a finer row besides.
    """
    whole = 2 ** floor(log2(n_heads))
    base = 2 ** (-(2 ** -(log2(whole) - 3)))
    found = [base**i for i in range(1, whole + 1)]
    fine = 2 ** (-(2 ** -(log2(2 * whole) - 3)))
    found += [fine**i for i in range(1, 2 * (n_heads - whole) + 1, 2)]
    # in float32 first, as build_alibi_tensor does (transformers 5.24, modeling_falcon.py)
    return torch.tensor(found, dtype=torch.float32, device=device).to(dtype)
