"""The order of stages per engine, and what each engine refuses or does differently.

Sources: transformers 5.24.0 (generation/utils.py: _get_logits_processor); vLLM 0.33.0 (v1/sample/sampler.py,
sampling_params.py); llama.cpp (common/sampling.cpp); the OpenAI API reference, which documents no order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmcalc.errors import InputError
from llmcalc.sampling import changes, cuts
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.settings import Settings


@dataclass(frozen=True, slots=True)
class Engine:
    """An order of stages, the settings that exist, the defaults, and the rules that differ."""

    name: str
    order: tuple[str, ...]
    settings: frozenset[str]
    defaults: Mapping[str, float]
    exactly: bool = False
    recent: bool = False
    """Penalties look at the last ``last_n`` tokens, the prompt's too; others count the answer alone."""
    note: str = ""


_REPEAT = ("logit_bias", "repetition_penalty")
_COUNTED = ("frequency_penalty", "presence_penalty")
_DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_breakers")
_XTC = ("xtc_probability", "xtc_threshold")
_DYNAMIC = ("dynatemp_range", "dynatemp_exponent")
_MIROSTAT = ("mirostat", "mirostat_tau")
_HF_CUTS = ("top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")

_CHANGES = ("bias", "repetition", "frequency", "dry")
_CUTS = ("top-h", "top-k", "top-p", "min-p", "typical-p", "epsilon", "eta")

ENGINES: Mapping[str, Engine] = {
    e.name: e
    for e in (
        Engine(
            "any",
            (*_CHANGES, "ngram", "temperature", *_CUTS, "top-n-sigma", "xtc", "mirostat"),
            frozenset(Settings.__slots__),
            {},
            note="no engine: temperature first, as transformers and vLLM have it; T = 0 is greedy, top-k 0 is off",
        ),
        Engine(
            "transformers",
            ("bias", "repetition", "ngram", "temperature", *_CUTS),
            frozenset((*_REPEAT, "no_repeat_ngram", "temperature", "min_keep", *_HF_CUTS)),
            {"top_k": 50},
            note="transformers 5.24: temperature first, ties at the k-th stay",
        ),
        Engine(
            "vllm",
            ("bias", "repetition", "frequency", "temperature", "min-p", "top-k", "top-p"),
            frozenset((*_REPEAT, *_COUNTED, "temperature", "min_p", "top_k", "top_p")),
            {},
            note="vLLM 0.33: min-p before top-k and top-p; frequency and presence count the answer alone",
        ),
        Engine(
            "llama.cpp",
            (
                *_CHANGES,
                "top-n-sigma",
                "top-k",
                "typical-p",
                "top-p",
                "min-p",
                "xtc",
                "temperature",
            ),
            frozenset(
                (
                    *(
                        *_REPEAT,
                        *_COUNTED,
                        *_DRY,
                        "top_n_sigma",
                        "top_k",
                        "typical_p",
                        "top_p",
                        "min_p",
                    ),
                    *(*_XTC, "temperature", *_DYNAMIC, *_MIROSTAT, "last_n", "min_keep"),
                )
            ),
            {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
            exactly=True,
            recent=True,
            note="llama.cpp: cuts at T = 1, temperature last; exactly k tokens; penalties over the last tokens",
        ),
        Engine(
            "openai",
            ("bias", "frequency", "temperature", "top-p"),
            frozenset(("logit_bias", *_COUNTED, "temperature", "top_p")),
            {},
            note="OpenAI documents the parameters and not their order: temperature before top-p is assumed",
        ),
    )
}
STAGES = ENGINES["any"].order


def engine(name: str) -> Engine:
    """The engine of that name."""
    found = ENGINES.get(
        {"llamacpp": "llama.cpp", "hf": "transformers"}.get(name.lower(), name.lower())
    )
    if found is None:
        raise InputError(f"no engine is called {name!r}", hint=f"known: {', '.join(ENGINES)}")
    return found


def in_order(like: Engine, names: Sequence[str]) -> Engine:
    """The engine's rules with another order of stages."""
    unknown = [n for n in names if n not in STAGES]
    if unknown:
        raise InputError(
            f"--order names no stage {unknown[0]!r}", hint=f"stages: {', '.join(STAGES)}"
        )
    if len(set(names)) != len(names):
        raise InputError("--order names a stage twice")
    return replace(like, order=tuple(names))


def run(e: Engine, s: Settings, logits: Candidates, n_vocab: int) -> list[tuple[str, Candidates]]:
    """The stages that are set, in the engine's order: what each leaves."""
    check(e, s)
    order = ("bias", "temperature", "mirostat") if s.mirostat and e.recent else e.order
    missing = sorted(
        _stage_of(n) for n in s.given() if _stage_of(n) in STAGES and _stage_of(n) not in order
    )
    if missing and not (s.mirostat and e.recent):
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
    mass, now = 1.0, logits
    for _, after in path:
        if after.ids.size < now.ids.size:
            mass *= float(now.probabilities[np.isin(now.ids, after.ids, assume_unique=True)].sum())
        now = after
    return min(mass, 1.0)


def _stage_of(setting: str) -> str:
    special = {
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
    return special.get(setting, setting.replace("_", "-"))


def check(e: Engine, s: Settings) -> None:
    """What the engine does not have, and values that it refuses."""
    for name in sorted(s.given() - e.settings):
        raise InputError(
            f"{e.name} has no --{name.replace('_', '-')}",
            hint="leave --like away to try it all the same",
        )
    for name in (
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "top_h",
        "xtc_probability",
    ):
        _within(name, getattr(s, name), 0, 1)
    _within(
        "temperature",
        s.temperature,
        None if e.recent else 0,
        2 if e.name in ("vllm", "openai") else None,
    )
    _positive("repetition_penalty", s.repetition_penalty)
    if s.mirostat not in (None, 0, 1, 2):
        raise InputError(f"--mirostat is {s.mirostat}; it is 1 or 2, or 0 for off")
    if e.name == "transformers":
        _positive("temperature", s.temperature, "give --greedy for T = 0")
        _positive("top_k", s.top_k, "transformers has no 0 for off: leave it away")
        for name in ("top_h", "no_repeat_ngram", "min_keep"):
            _positive(name, getattr(s, name))
        for name in ("typical_p", "epsilon_cutoff", "eta_cutoff"):
            value = getattr(s, name)
            if value is not None and not 0 < value < 1:
                raise InputError(
                    f"--{name.replace('_', '-')} is {value:g}; transformers wants it above 0 and below 1"
                )
    if e.name == "vllm":
        _positive("top_p", s.top_p)


def _within(name: str, value: float | None, least: float | None, most: float | None) -> None:
    if value is None:
        return
    if (
        not np.isfinite(value)
        or (least is not None and value < least)
        or (most is not None and value > most)
    ):
        span = (
            f"from {least:g} to {most:g}"
            if most is not None
            else "0 or more"
            if least == 0
            else "a number"
        )
        raise InputError(f"--{name.replace('_', '-')} is {value:g}; it must be {span}")


def _positive(name: str, value: float | None, hint: str | None = None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"--{name.replace('_', '-')} is {value:g}; it must be above 0", hint=hint)


Stage = Callable[[Candidates, Settings, Engine, int], Candidates | None]


def _recent(s: Settings, e: Engine) -> tuple[int, ...]:
    """llama.cpp's penalties look at the last 64 tokens, whoever wrote them; -1 is all."""
    if not e.recent and s.last_n is None:
        return (*s.prompt, *s.output)
    n = 64 if s.last_n is None else s.last_n
    tokens = (*s.prompt, *s.output)
    return tokens if n < 0 else tokens[len(tokens) - n :] if n else ()


def _repetition(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    return (
        None
        if s.repetition_penalty is None
        else changes.repetition(c, _recent(s, e), s.repetition_penalty)
    )


def _frequency(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.frequency_penalty is None and s.presence_penalty is None:
        return None
    counted = Counter(_recent(s, e) if e.recent else s.output)
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
        return changes.dynamic_temperature(
            c, 1.0 if t is None else t, s.dynatemp_range, s.dynatemp_exponent or 1.0
        )
    if t is None:
        return None
    if e.name == "vllm":
        t = 0.0 if t < 1e-5 else max(t, 0.01)
    return changes.temperature(c, t)


def _top_k(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.top_k is None:
        return None
    return c if s.top_k <= 0 else cuts.top_k(c, max(s.top_k, s.min_keep or 1), exactly=e.exactly)


def _top_p(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.top_p is None:
        return None
    return cuts.top_p(c, s.top_p, min_keep=s.min_keep or 1, last_of_equals=not e.exactly)


def _xtc(c: Candidates, s: Settings, e: Engine, _: int) -> Candidates | None:
    if s.xtc_probability is None:
        return None
    happens = np.random.Generator(np.random.PCG64([s.seed, 1])).random() <= s.xtc_probability
    threshold = 0.1 if s.xtc_threshold is None else s.xtc_threshold
    return (
        cuts.xtc(c, threshold, min_keep=s.min_keep or 1) if happens and s.xtc_probability > 0 else c
    )


def _mirostat(c: Candidates, s: Settings, e: Engine, n_vocab: int) -> Candidates | None:
    if not s.mirostat:
        return None
    mu = 2 * (5.0 if s.mirostat_tau is None else s.mirostat_tau)
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
        lambda c, v, s, e: cuts.typical_p(c, v, strict=e.exactly, min_keep=s.min_keep or 1),
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
