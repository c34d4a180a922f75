"""What a user can set, under the names of the options; None is not set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """The knobs of one distribution, and the tokens that penalties look at."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_h: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    no_repeat_ngram: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    last_n: int | None = None
    min_keep: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_breakers: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    seed: int = 0

    def given(self) -> set[str]:
        """The names of everything that is set, context and seed apart."""
        apart = ("prompt", "output", "seed")
        names = [name for name in self.__slots__ if name not in apart]
        return {name for name in names if getattr(self, name) not in (None, (), {})}
