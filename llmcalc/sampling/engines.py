"""The order of stages per engine, and what each engine refuses or does differently.

Sources: transformers 5.24.0 (generation/utils.py: _get_logits_processor); vLLM 0.33.0
(v1/sample/sampler.py, sampling_params.py); llama.cpp (common/sampling.cpp); the OpenAI API
reference, which documents no order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmcalc.engines import ALL, canonical
from llmcalc.engines.base import Sampling
from llmcalc.errors import InputError
from llmcalc.sampling import changes, cuts
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's name and its rules of sampling, which live with the engine."""

    name: str
    rules: Sampling


ANY = Engine(
    name="any",
    rules=Sampling(
        order=(
            *("bias", "repetition", "frequency", "dry", "ngram", "temperature"),
            *("top-h", "top-k", "top-p", "min-p", "typical-p", "epsilon", "eta"),
            *("top-n-sigma", "xtc", "mirostat"),
        ),
        settings=frozenset(Settings.__slots__),
        note=(
            "no engine: temperature first, as transformers and vLLM have it; "
            "T = 0 is greedy, top-k 0 is off"
        ),
    ),
)
ENGINES: Mapping[str, Engine] = {"any": ANY} | {
    name: Engine(name=name, rules=known.sampling)
    for name, known in ALL.items()
    if known.sampling is not None
}
STAGES = ANY.rules.order


def engine(name: str) -> Engine:
    """The engine of that name; a name that is not known is an InputError with those that are."""
    found = ENGINES.get(canonical(name))
    if found is None:
        raise InputError(f"no engine is called {name!r}", hint=f"known: {', '.join(ENGINES)}")
    return found


def in_order(like: Engine, names: Sequence[str]) -> Engine:
    """The engine's rules with another order of stages."""
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise InputError(
            f"--order names no stage {unknown[0]!r}", hint=f"stages: {', '.join(STAGES)}"
        )
    if len(set(names)) != len(names):
        raise InputError("--order names a stage twice")
    return replace(like, rules=replace(like.rules, order=tuple(names)))


def ordered_as(like: Engine, other: Engine) -> Engine:
    """The engine's rules in another one's order; stages that the other lacks come last."""
    rest = [name for name in like.rules.order if name not in other.rules.order]
    rules = replace(
        like.rules,
        order=(*other.rules.order, *rest),
        exactly=other.rules.exactly,
        note=f"the order of {other.rules.note}",
    )
    return replace(like, rules=rules)


def run(e: Engine, s: Settings, logits: Candidates, n_vocab: int) -> list[tuple[str, Candidates]]:
    """The stages that are set, in the engine's order: what each leaves."""
    check(e, s)
    order = e.rules.order
    if s.mirostat and e.rules.recent:
        # mirostat takes the place of llama.cpp's chain: common/sampling.cpp
        order = ("bias", "temperature", "mirostat")
    else:
        wanted = {_stage_of(name) for name in s.given()}
        missing = sorted(stage for stage in wanted if stage in STAGES and stage not in order)
        if missing:
            raise InputError(f"--order leaves {missing[0]} out, and it is set")
    found: list[tuple[str, Candidates]] = []
    now = logits
    for name in order:
        stage = _APPLY[name]
        after = stage(now, s, e, n_vocab)
        if after is not None:
            found.append((name, after))
            now = after
    return found


def kept_mass(logits: Candidates, path: Sequence[tuple[str, Candidates]]) -> float:
    """The share of probability that survives every cut, one after the other."""
    mass = 1.0
    now = logits
    for _, after in path:
        if after.ids.size < now.ids.size:
            stays = np.isin(now.ids, after.ids, assume_unique=True)
            mass *= float(now.probabilities[stays].sum())
        now = after
    return min(mass, 1.0)


def _stage_of(setting: str) -> str:
    return _SPECIAL.get(setting, setting.replace("_", "-"))


_SPECIAL: Mapping[str, str] = {
    "logit_bias": "bias",
    "repetition_penalty": "repetition",
    "frequency_penalty": "frequency",
    "presence_penalty": "frequency",
    "no_repeat_ngram": "ngram",
    "epsilon_cutoff": "epsilon",
    "eta_cutoff": "eta",
    "xtc_probability": "xtc",
    "dry_multiplier": "dry",
}
"""Stages of settings that are called otherwise."""


def check(e: Engine, s: Settings) -> None:
    """What the engine does not have, and values that it refuses."""
    for name in sorted(s.given() - e.rules.settings):
        raise InputError(
            f"{e.name} has no {_flag(name)}", hint="leave --like away to try it all the same"
        )
    for name in _SHARES:
        _within(name, getattr(s, name), 0, 1)
    least = None if e.rules.recent else 0
    _within("temperature", s.temperature, least, e.rules.hottest)
    _positive("repetition_penalty", s.repetition_penalty)
    if s.mirostat not in (None, 0, 1, 2):
        raise InputError(f"--mirostat is {s.mirostat}; it is 1 or 2, or 0 for off")
    for name in e.rules.above_zero:
        _positive(name, getattr(s, name), e.rules.hints.get(name))
    for name in e.rules.inside:
        value = getattr(s, name)
        if value is not None and not 0 < value < 1:
            raise InputError(f"{_flag(name)} is {value:g}; {e.name} wants it above 0 and below 1")


_SHARES = (
    *("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"),
    "xtc_probability",
)
"""Settings that are a share, from 0 to 1."""


def _flag(setting: str) -> str:
    """The option's name on a command line."""
    return f"--{setting.replace('_', '-')}"


def _within(name: str, value: float | None, least: float | None, most: float | None) -> None:
    if value is None:
        return
    low = least is not None and value < least
    high = most is not None and value > most
    if low or high or not np.isfinite(value):
        span = "0 or more" if least == 0 else "a number"
        if most is not None:
            span = f"from {least:g} to {most:g}"
        raise InputError(f"{_flag(name)} is {value:g}; it must be {span}")


def _positive(name: str, value: float | None, hint: str | None = None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"{_flag(name)} is {value:g}; it must be above 0", hint=hint)


Stage = Callable[[Candidates, Settings, Engine, int], Candidates | None]


def _recent(s: Settings, e: Engine) -> tuple[int, ...]:
    """llama.cpp's penalties look at the last 64 tokens, whoever wrote them; -1 is all."""
    tokens = (*s.prompt, *s.output)
    if not e.rules.recent and s.last_n is None:
        return tokens
    n = 64 if s.last_n is None else s.last_n
    if n < 0:
        return tokens
    return tokens[len(tokens) - n :] if n else ()


def _repetition(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.repetition_penalty is None:
        return None
    return changes.repetition(c, _recent(s, e), s.repetition_penalty)


def _frequency(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.frequency_penalty is None and s.presence_penalty is None:
        return None
    # the prompt's tokens count for llama.cpp alone
    counted = Counter(_recent(s, e) if e.rules.recent else s.output)
    return changes.frequency(c, counted, s.frequency_penalty or 0.0, s.presence_penalty or 0.0)


def _dry(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.dry_multiplier is None:
        return None
    base = 1.75 if s.dry_base is None else s.dry_base
    allowed = 2 if s.dry_allowed_length is None else s.dry_allowed_length
    return changes.dry(c, _recent(s, e), s.dry_multiplier, base, allowed, s.dry_breakers)


def _temperature(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    t = s.temperature
    if s.dynatemp_range is not None:
        middle = 1.0 if t is None else t
        exponent = s.dynatemp_exponent or 1.0
        return changes.dynamic_temperature(c, middle, s.dynatemp_range, exponent)
    if t is None:
        return None
    if e.rules.coldest is not None:
        greedy, least = e.rules.coldest
        # below the first it is greedy, below the second it is raised
        t = 0.0 if t < greedy else max(t, least)
    return changes.temperature(c, t)


def _top_k(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.top_k is None:
        return None
    if s.top_k <= 0:
        return c
    return cuts.top_k(c, max(s.top_k, s.min_keep or 1), exactly=e.rules.exactly)


def _top_p(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.top_p is None:
        return None
    return cuts.top_p(c, s.top_p, min_keep=s.min_keep or 1, last_of_equals=not e.rules.exactly)


def _xtc(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    """It happens by chance: its own stream of the seed, so that tokens are drawn as before."""
    if s.xtc_probability is None:
        return None
    chance = np.random.Generator(np.random.PCG64([s.seed, 1])).random()
    if chance > s.xtc_probability or s.xtc_probability <= 0:
        return c
    threshold = 0.1 if s.xtc_threshold is None else s.xtc_threshold
    return cuts.xtc(c, threshold, min_keep=s.min_keep or 1)


def _mirostat(c: Candidates, s: Settings, e: Engine, n_vocab: int) -> Candidates | None:
    if not s.mirostat:
        return None
    tau = 5.0 if s.mirostat_tau is None else s.mirostat_tau
    mu = 2 * tau  # where the first step begins
    return cuts.mirostat_1(c, mu, n_vocab) if s.mirostat == 1 else cuts.mirostat_2(c, mu)


def _if_set(name: str, apply: Callable[[Candidates, float, Settings, Engine], Candidates]) -> Stage:
    def stage(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
        value = getattr(s, name)
        return None if value is None else apply(c, value, s, e)

    return stage


_APPLY: Mapping[str, Stage] = {
    "bias": lambda c, s, e, n: changes.bias(c, s.logit_bias) if s.logit_bias else None,
    "repetition": _repetition,
    "frequency": _frequency,
    "dry": _dry,
    "ngram": _if_set(
        "no_repeat_ngram",
        lambda c, v, s, e: changes.no_repeat_ngram(c, (*s.prompt, *s.output), int(v)),
    ),
    "temperature": _temperature,
    "top-h": _if_set("top_h", lambda c, v, s, e: cuts.top_h(c, v)),
    "top-k": _top_k,
    "top-p": _top_p,
    "min-p": _if_set("min_p", lambda c, v, s, e: cuts.min_p(c, v, min_keep=s.min_keep or 1)),
    "typical-p": _if_set(
        "typical_p",
        lambda c, v, s, e: cuts.typical_p(c, v, strict=e.rules.exactly, min_keep=s.min_keep or 1),
    ),
    "epsilon": _if_set(
        "epsilon_cutoff", lambda c, v, s, e: cuts.epsilon_cutoff(c, v, min_keep=s.min_keep or 1)
    ),
    "eta": _if_set(
        "eta_cutoff", lambda c, v, s, e: cuts.eta_cutoff(c, v, min_keep=s.min_keep or 1)
    ),
    "top-n-sigma": _if_set("top_n_sigma", lambda c, v, s, e: cuts.top_n_sigma(c, v)),
    "xtc": _xtc,
    "mirostat": _mirostat,
}
