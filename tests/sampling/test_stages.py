"""Stages under random logits: against transformers' own processors, and what must always hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.errors import InputError
from llmcalc.sampling import changes, cuts
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.draw import chi_square, counts, draws, upper_gamma
from llmcalc.sampling.engines import ENGINES, STAGES, in_order, run
from llmcalc.sampling.settings import Settings

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=60)
CUTS: dict[str, Callable[[Candidates, float], Candidates]] = {
    "top_p": cuts.top_p,
    "min_p": cuts.min_p,
    "typical_p": cuts.typical_p,
    "epsilon": cuts.epsilon_cutoff,
    "eta": cuts.eta_cutoff,
    "top_h": cuts.top_h,
}


@settings(max_examples=60, deadline=None)
@given(logits=LOGITS, value=st.floats(0.01, 0.99), name=st.sampled_from(sorted(CUTS)))
def test_every_cut_keeps_a_token_and_changes_no_logit(
    logits: list[float], value: float, name: str
) -> None:
    c = Candidates.of(logits)
    after = CUTS[name](c, value)
    assert 1 <= after.ids.size <= c.ids.size
    assert after.probabilities.sum() == pytest.approx(1)
    assert [logits[i] for i in after.ids] == after.logits.tolist()


@settings(max_examples=60, deadline=None)
@given(logits=LOGITS, a=st.floats(0, 1), b=st.floats(0, 1), k=st.integers(1, 70))
def test_kept_sets_shrink_with_k_and_p(logits: list[float], a: float, b: float, k: int) -> None:
    c = Candidates.of(logits)
    low, high = sorted((a, b))
    assert set(cuts.top_p(c, low).ids) <= set(cuts.top_p(c, high).ids)
    assert set(cuts.top_k(c, k).ids) <= set(cuts.top_k(c, k + 1).ids)
    assert set(cuts.min_p(c, high).ids) <= set(cuts.min_p(c, low).ids)
    assert cuts.top_k(c, k, exactly=True).ids.size == min(k, len(logits))


@settings(max_examples=40, deadline=None)
@given(logits=LOGITS, t=st.floats(0.05, 20))
def test_temperature_keeps_the_order(logits: list[float], t: float) -> None:
    before, after = Candidates.of(logits), changes.temperature(Candidates.of(logits), t)
    rising = np.argsort(before.logits, kind="stable")
    assert (np.diff(after.logits[rising]) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(logits=LOGITS, seed=st.integers(0, 2**31))
def test_neutral_values_change_nothing_and_a_seed_repeats(logits: list[float], seed: int) -> None:
    c = Candidates.of(logits)
    neutral = Settings(
        temperature=1,
        top_k=0,
        top_p=1,
        min_p=0,
        typical_p=1,
        repetition_penalty=1,
        frequency_penalty=0,
        prompt=(0, 0),
    )
    path = run(ENGINES["any"], neutral, c, len(logits))
    assert path and all(after.logits.tolist() == c.logits.tolist() for _, after in path)
    assert draws(c, 50, seed).tolist() == draws(path[-1][1], 50, seed).tolist()


def test_the_stages_are_the_ones_of_transformers() -> None:
    """The same processors on 40 random vectors each, in float64, away from boundaries."""
    torch = pytest.importorskip("torch")
    lp = pytest.importorskip("transformers.generation.logits_process")
    pairs = [
        (lambda c: cuts.top_k(c, 7), lp.TopKLogitsWarper(7)),
        (lambda c: cuts.top_p(c, 0.8), lp.TopPLogitsWarper(0.8)),
        (lambda c: cuts.min_p(c, 0.07), lp.MinPLogitsWarper(0.07)),
        (lambda c: cuts.typical_p(c, 0.6), lp.TypicalLogitsWarper(0.6)),
        (lambda c: cuts.epsilon_cutoff(c, 0.01), lp.EpsilonLogitsWarper(0.01)),
        (lambda c: cuts.eta_cutoff(c, 0.03), lp.EtaLogitsWarper(0.03)),
        (lambda c: cuts.top_h(c, 0.4), lp.TopHLogitsWarper(0.4)),
        (lambda c: changes.temperature(c, 0.7), lp.TemperatureLogitsWarper(0.7)),
        (lambda c: changes.repetition(c, [3, 5, 5], 1.3), lp.RepetitionPenaltyLogitsProcessor(1.3)),
        (lambda c: changes.no_repeat_ngram(c, [3, 5, 5, 3], 2), lp.NoRepeatNGramLogitsProcessor(2)),
    ]
    rng = np.random.default_rng(1)
    ids = {8: [3, 5, 5], 9: [3, 5, 5, 3]}
    for i, (ours, theirs) in enumerate(pairs):
        for _ in range(40):
            z = rng.normal(0, 3, 150)
            wanted = theirs(torch.tensor([ids.get(i, [0])]), torch.tensor(z)[None])[0].numpy()
            found = np.full(z.size, -np.inf)
            after = ours(Candidates.of(z))
            found[after.ids] = after.logits
            np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_orders_are_those_of_the_engines() -> None:
    """transformers: generation/utils.py; vLLM: v1/sample/sampler.py; llama.cpp: common/common.h's
    samplers.
    """
    cut = ("temperature", "top-h", "top-k", "top-p", "min-p", "typical-p", "epsilon", "eta")
    assert ENGINES["transformers"].rules.order[-8:] == cut
    assert ENGINES["vllm"].rules.order == (
        "bias",
        "repetition",
        "frequency",
        "temperature",
        "min-p",
        "top-k",
        "top-p",
    )
    tail = ("top-n-sigma", "top-k", "typical-p", "top-p", "min-p", "xtc", "temperature")
    assert ENGINES["llama.cpp"].rules.order[-7:] == tail
    with pytest.raises(InputError, match="temprature"):
        in_order(ENGINES["any"], ["temprature"])
    assert {e.name for e in ENGINES.values() if set(e.rules.order) <= set(STAGES)} == set(ENGINES)


def test_mirostat_replaces_the_cuts_in_llama_cpp() -> None:
    path = run(
        ENGINES["llama.cpp"],
        Settings(mirostat=2, top_k=2, temperature=0.7),
        Candidates.of([3, 2, 1, 0]),
        4,
    )
    assert [name for name, _ in path] == ["temperature", "mirostat"]


def test_penalties_look_where_each_engine_looks() -> None:
    """vLLM counts the answer alone; llama.cpp the last tokens, whoever wrote them."""
    z, s = (
        Candidates.of([0.0, 0.0, 0.0]),
        Settings(frequency_penalty=0.5, prompt=(0, 0), output=(1,)),
    )
    assert run(ENGINES["vllm"], s, z, 3)[-1][1].logits.tolist() == [0.0, -0.5, 0.0]
    assert run(ENGINES["llama.cpp"], s, z, 3)[-1][1].logits.tolist() == [-1.0, -0.5, 0.0]


def test_xtc_leaves_the_least_likely_of_the_top_choices() -> None:
    """Probabilities 0.5, 0.3, 0.15, 0.05, threshold 0.1: the first two go (the definition in its
    pull request).
    """
    c = Candidates.of(np.log([0.5, 0.3, 0.15, 0.05]))
    assert cuts.xtc(c, 0.1).ids.tolist() == [2, 3]
    assert cuts.xtc(c, 0.6).ids.tolist() == [0, 1, 2, 3]
    assert cuts.xtc(c, 0.4).ids.tolist() == [0, 1, 2, 3]


def test_infinite_logits_share_everything() -> None:
    c = Candidates.of([1.0, math.inf, 5.0, math.inf])
    assert c.probabilities.tolist() == [0, 0.5, 0, 0.5] and c.entropy == pytest.approx(math.log(2))
    assert c.greedy == 1


def test_draws_follow_the_distribution() -> None:
    c = Candidates.of(np.log([0.9, 0.05, 0.05]))
    observed = counts(c, draws(c, 20_000, 1))
    assert abs(observed[0] / 20_000 - 0.9) < 0.01 and chi_square(c, observed)[2] > 0.001
    assert chi_square(c, np.array([10_000, 5_000, 5_000]))[2] < 1e-9


@pytest.mark.parametrize(
    ("freedom", "statistic", "p"),
    [
        (1, 3.841, 0.05),
        (5, 11.070, 0.05),
        (10, 23.209, 0.01),
        (100, 124.342, 0.05),
        (4, 0.711, 0.95),
    ],
)
def test_p_values_are_those_of_the_tables(freedom: int, statistic: float, p: float) -> None:
    """Critical values of chi-square as printed in the NIST handbook (section 1.3.6.7.4)."""
    assert upper_gamma(freedom / 2, statistic / 2) == pytest.approx(p, abs=1e-4)
