"""What would make a model fit: fewer or more devices, a shorter context, fewer sequences, narrower
formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines import choose
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype
from llmcalc.formats.stored import Packed, Plain, Published, named
from llmcalc.parallel import check_degree, fewer_experts, stage
from llmcalc.questions.fit import Ask, Measured, fit, weights_part
from llmcalc.questions.kvcache import largest

LONGEST, MOST_SEQUENCES, MOST_DEVICES = 2**24, 2**20, 64


@dataclass(frozen=True, slots=True)
class Change:
    """One change and the bytes that are left over on the fullest device once it is made."""

    change: str
    value: int | str | None
    """None is without limit."""
    left: int
    how: str = ""


def left_over(ask: Ask) -> int | None:
    """Bytes left over, or None where it does not fit for sure or an engine refuses."""
    try:
        found = fit(ask)
    except InputError:
        return None
    return found.pool - found.need if found.verdict == "yes" else None


def changes_that_fit(ask: Ask, n_layers: int) -> list[Change]:
    """Every single change that fits: the fewest devices, the longest context, the most sequences,
    narrower formats.
    """
    found = [w for w in (fewest(ask, n_layers), longest(ask), most_sequences(ask)) if w is not None]
    return found if left_over(ask) is not None else [*found, *narrower(ask)]


def fewest(ask: Ask, n_layers: int) -> Change | None:
    """The fewest devices: tensor-parallel ones, and where no degree is enough, pipeline stages of
    them.
    """
    by_layers = choose(ask.engine).engine.by_layers
    unmeasured = _unmeasured(ask)
    for n in (2**i for i in range(MOST_DEVICES.bit_length())):
        for pp in (2**i for i in range(n.bit_length())):
            tp = n // pp
            if pp > n_layers or (pp > 1 and tp > 8) or (by_layers and tp > 1):
                continue
            same = (tp, pp) == (ask.tp, ask.pp)
            left = left_over(replace(ask if same else unmeasured, tp=tp, pp=pp))
            if left is not None:
                return Change("devices", n, left, f"tensor {tp} x pipeline {pp}" if pp > 1 else "")
    return None


def _unmeasured(ask: Ask) -> Ask:
    """The question without what was measured of another layout or format; what others hold
    stays.
    """
    return replace(ask, measured=Measured(used=ask.measured.used))


def longest(ask: Ask) -> Change | None:
    """The longest context that fits with the same number of sequences."""
    at = lambda n: replace(ask, load=replace(ask.load, context=Dim(n, "context")))  # noqa: E731
    return _most("context", at, LONGEST)


def most_sequences(ask: Ask) -> Change | None:
    """The most sequences that fit at the same context."""
    at = lambda n: replace(ask, load=replace(ask.load, batch=Dim(n, "batch")))  # noqa: E731
    return _most("concurrency", at, MOST_SEQUENCES)


def _most(change: str, at: Callable[[int], Ask], limit: int) -> Change | None:
    """The largest number that fits, with what it leaves; None in it is without limit."""
    n = largest(lambda n: left_over(at(n)) is not None, limit)
    return None if n == 0 else Change(change, n, left_over(at(limit if n is None else n)) or 0)


def narrower(ask: Ask) -> list[Change]:
    """Narrower weights and caches that fit, each alone, then both; the least narrow first."""
    engine = choose(ask.engine).engine
    narrow = dtype(engine.narrow_cache)
    load = replace(ask.load, key_dtype=narrow, value_dtype=narrow)
    wide = (
        ask.weights.wide
        if isinstance(ask.weights, Packed | Plain | Published)
        else dtype("bfloat16")
    )
    tries = [(f"cache in {narrow.name}", replace(ask, load=load))]
    formats = [(text, named(form, wide)) for text, form in engine.narrow_weights]
    bare = _unmeasured(ask)
    tries += [(text, replace(bare, weights=form)) for text, form in formats]
    for text, form in formats:
        both = replace(bare, weights=form, load=load)
        tries.append((f"{text}, cache in {narrow.name}", both))
    lefts = [(text, left_over(changed)) for text, changed in tries]
    return [Change("format", text, left) for text, left in lefts if left is not None]


def degrees(ask: Ask, n_layers: int) -> dict[str, dict[int, int]]:
    """Degrees up to 64 that divide the model evenly, each with the weights of its fullest device,
    in bytes.

    ``tensor`` divides heads and matrices, ``pipeline`` layers; ``expert`` gives every device whole
    experts, and all of what is no expert.
    """
    whole = replace(_unmeasured(ask), tp=1, pp=1)
    tensor = {
        tp: _weights(replace(whole, tp=tp))
        for tp in range(1, MOST_DEVICES + 1)
        if _divides(ask.anatomy, tp)
    }
    found = {"tensor": tensor}
    if not any(m.kind in ("cross", "shared") for m in ask.anatomy.mixers):
        found["pipeline"] = {pp: _fullest_stage(whole, pp) for pp in _divisors(n_layers)}
    experts = ask.anatomy.n_experts
    if experts:
        found["expert"] = {
            ep: _weights(replace(whole, anatomy=fewer_experts(ask.anatomy, ep)))
            for ep in _divisors(experts)
        }
    return found


def _weights(ask: Ask) -> int:
    return int(weights_part(ask).high)


def _fullest_stage(ask: Ask, pp: int) -> int:
    return max(_weights(replace(ask, anatomy=stage(ask.anatomy, pp, i))) for i in range(pp))


def _divides(anatomy: Anatomy, tp: int) -> bool:
    try:
        check_degree(anatomy, tp)
    except InputError:
        return False
    return True


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, MOST_DEVICES + 1) if n % i == 0]
