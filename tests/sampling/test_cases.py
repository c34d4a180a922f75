"""Every stage against the libraries' own: kept sets exactly, probabilities to 1e-6.

Data: cases.json, made by running transformers 5.24.0 and llama.cpp (as vendored in llama-cpp-python
0.3.36) in float32; ``LLMCALC_SAMPLING_CASES`` names another file of the same schema.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcalc.errors import InputError
from llmcalc.sampling import changes, cuts
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.engines import ENGINES, run
from llmcalc.sampling.settings import Settings

FILE = Path(os.environ.get("LLMCALC_SAMPLING_CASES") or Path(__file__).parent / "cases.json")
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]

Args = dict[str, Any]
Step = Callable[[Candidates, Args, list[int], int], Candidates]

TRANSFORMERS: dict[str, Step] = {
    "temperature": lambda c, a, ids, n: changes.temperature(c, a["temperature"]),
    "top_k": lambda c, a, ids, n: cuts.top_k(c, max(a["top_k"], keep(a))),
    "top_p": lambda c, a, ids, n: cuts.top_p(c, a["top_p"], min_keep=keep(a)),
    "min_p": lambda c, a, ids, n: cuts.min_p(c, a["min_p"], min_keep=keep(a)),
    "typical_p": lambda c, a, ids, n: cuts.typical_p(c, a["mass"], min_keep=keep(a)),
    "epsilon_cutoff": lambda c, a, ids, n: cuts.epsilon_cutoff(c, a["epsilon"], min_keep=keep(a)),
    "eta_cutoff": lambda c, a, ids, n: cuts.eta_cutoff(c, a["epsilon"], min_keep=keep(a)),
    "top_h": lambda c, a, ids, n: cuts.top_h(c, a["top_h"]),
    "repetition_penalty": lambda c, a, ids, n: changes.repetition(c, ids, a["penalty"]),
    "no_repeat_ngram": lambda c, a, ids, n: changes.no_repeat_ngram(
        c, ids, a.get("ngram_size", a.get("n", 0))
    ),
    "sequence_bias": lambda c, a, ids, n: changes.bias(c, biases(a["sequence_bias"], ids)),
    "logit_norm": lambda c, a, ids, n: c.with_logits(c.log_probabilities),
}
LLAMA_CPP: dict[str, Step] = {
    "top_k": lambda c, a, ids, n: cuts.top_k(c, a["k"], exactly=True) if a["k"] > 0 else c,
    "top_p": lambda c, a, ids, n: cuts.top_p(
        c, a["p"], min_keep=a.get("min_keep", 1), last_of_equals=False
    ),
    "min_p": lambda c, a, ids, n: cuts.min_p(c, a["p"], min_keep=a.get("min_keep", 1)),
    "typical": lambda c, a, ids, n: cuts.typical_p(
        c, a["p"], strict=True, min_keep=a.get("min_keep", 1)
    ),
    "top_n_sigma": lambda c, a, ids, n: cuts.top_n_sigma(c, a["n"]),
    "temp": lambda c, a, ids, n: changes.temperature(c, a["t"]),
    "temp_ext": lambda c, a, ids, n: changes.dynamic_temperature(
        c, a["t"], a["delta"], a["exponent"]
    ),
    "penalties": lambda c, a, ids, n: changes.frequency(
        changes.repetition(c, last(ids, a), a["repeat"]),
        Counter(last(ids, a)),
        a["freq"],
        a["present"],
    ),
    "dry": lambda c, a, ids, n: changes.dry(
        c, last(ids, a), a["multiplier"], a["base"], a["allowed_length"], breakers(a)
    ),
    "logit_bias": lambda c, a, ids, n: changes.bias(c, {int(k): v for k, v in pairs(a)}),
    "mirostat": lambda c, a, ids, n: cuts.mirostat_1(
        c, a.get("mu", 2 * a["tau"]), n, a.get("m", 100)
    ),
    "mirostat_v2": lambda c, a, ids, n: cuts.mirostat_2(c, a.get("mu", 2 * a["tau"])),
    "xtc": lambda c, a, ids, n: xtc(c, a),
}


def keep(args: Args) -> int:
    return int(args.get("min_tokens_to_keep", 1))


def xtc(c: Candidates, args: Args) -> Candidates:
    if 0 < args["p"] < 1:
        pytest.skip("a draw of its own")
    return cuts.xtc(c, args["t"], min_keep=args.get("min_keep", 1)) if args["p"] > 0 else c


def last(ids: list[int], args: Args) -> list[int]:
    n = args["last_n"]
    return ids if n < 0 else ids[max(len(ids) - n, 0) :]


def breakers(args: Args) -> list[int]:
    found = next((v for k, v in args.items() if "breaker" in k), [])
    if any(not isinstance(b, int) for b in found):
        pytest.skip("breakers of several tokens, or as text")
    return list(found)


def pairs(args: Args) -> list[Any]:
    found = args.get("biases", args.get("logit_bias", {}))
    return list(found.items()) if isinstance(found, dict) else list(found)


def biases(sequences: list[Any], ids: list[int]) -> dict[int, float]:
    """A sequence's bias counts for its last token where the tokens before it are the last ones."""
    found: dict[int, float] = {}
    for tokens, value in sequences:
        before = tokens[:-1]
        if not before or ids[-len(before) :] == before:
            found[tokens[-1]] = found.get(tokens[-1], 0.0) + value
    return found


def outcome(case: dict[str, Any]) -> Candidates:
    ids = case.get("input_ids") or case.get("accepted_tokens") or []
    table, key = (
        (TRANSFORMERS, "processor") if case["library"] == "transformers" else (LLAMA_CPP, "sampler")
    )
    for step in case["steps"]:
        if step[key] not in table:
            pytest.skip(
                f"{step[key]} of {case['library']} is no deterministic stage of one distribution"
            )
    logits = Candidates.of(np.array([float(z) for z in case["logits"]], dtype=np.float32))
    for step in case["steps"]:
        logits = table[step[key]](logits, step["args"], ids, len(case["logits"]))
    return logits


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_case(case: dict[str, Any]) -> None:
    if "raises" in case:
        with pytest.raises(InputError):
            refused(case)
        return
    if all(float(z) == float("-inf") for z in case["logits"]):
        with pytest.raises(InputError, match="minus infinity"):
            outcome(case)
        return
    if case.get("precision_sensitive"):
        pytest.skip("float32 and float64 disagree at the boundary, by the reference itself")
    found = outcome(case)
    if case["library"] == "llama.cpp" and found.ids.tolist() != sorted(case["kept"]):
        # which of equal tokens stays is not specified there: the kept logits must be the same ones
        z = [float(x) for x in case["logits"]]
        assert sorted(z[i] for i in found.ids) == sorted(z[i] for i in case["kept"])
        return
    assert found.ids.tolist() == sorted(case["kept"])
    probabilities = np.zeros(len(case["logits"]))
    probabilities[found.ids] = found.probabilities
    assert np.abs(probabilities - np.array([float(p) for p in case["probs"]])).max() < 1e-6


def refused(case: dict[str, Any]) -> None:
    """The values that transformers raises for are refused under its rules, by the name of the
    option.
    """
    step = case["steps"][0]
    names = {
        "mass": "typical_p",
        "epsilon": step.get("processor"),
        "penalty": "repetition_penalty",
        "ngram_size": "no_repeat_ngram",
        "min_tokens_to_keep": "min_keep",
    }
    settings: dict[str, Any] = {names.get(k, k): v for k, v in step["args"].items()}
    if not set(settings) <= set(Settings.__slots__):
        pytest.skip(f"no option is called {sorted(set(settings) - set(Settings.__slots__))}")
    run(ENGINES["transformers"], Settings(**settings), Candidates.of([2.0, 1.0, 0.5]), 3)


def test_the_visible_cases_are_there() -> None:
    assert len(CASES) >= 40
