"""``llmcalc trace --by-hand``: a small calculation, by its name or with numbers of one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmcalc.cli.output.view import Fact, View
from llmcalc.cli.trace.matrices import view
from llmcalc.course import basics
from llmcalc.course.attention import Step, heads, project, with_cache
from llmcalc.course.basics import Worked
from llmcalc.course.given import Given
from llmcalc.errors import InputError
from llmcalc.sources.json_file import parse_json, read_json
from llmcalc.text import shorten

SHORTCUTS = {"widths": [3, 3, 3, 3, 3, 1], "x": [1, 0, -1], "target": 0, "seed": 123}
ATTENTION = {"X": [[0.2, 1.0, 0.1], [0.9, 0.1, 0.4], [0.6, 0.4, 0.9]], "causal": True}


def known() -> tuple[str, ...]:
    """The calculations by name."""
    return ("attention", *basics.CALCULATIONS, "shortcuts")


@np.errstate(over="ignore", invalid="ignore")
def by_hand(text: str) -> View:
    """The calculation that a name, a JSON text or a JSON file asks for."""
    if text in known():
        examples = {"attention": ATTENTION, "shortcuts": SHORTCUTS, **basics.EXAMPLES}
        return _worked(text, examples[text])
    if text.lstrip().startswith("{"):
        asked = parse_json(text, "--by-hand")
    elif text.endswith(".json"):
        asked = read_json(Path(text))
    else:
        raise InputError(
            f"--by-hand {shorten(text)!r} is no calculation, no JSON and no file",
            hint=f"known: {', '.join(known())}",
        )
    if len(asked) != 1 or next(iter(asked)) not in known():
        raise InputError(
            f"--by-hand takes one calculation; known: {', '.join(known())}",
            hint='{"layernorm": [2, 4, 4, 6]}',
        )
    name, values = next(iter(asked.items()))
    if isinstance(values, list) and name in basics.MAIN:
        values = {basics.MAIN[name]: values}
    if not isinstance(values, dict):
        keys = basics.EXAMPLES.get(name, ATTENTION if name == "attention" else SHORTCUTS)
        raise InputError(f"{name} takes an object, like {json.dumps({name: keys})}")
    return _worked(name, values)


def _worked(name: str, values: Mapping[str, Any]) -> View:
    if name == "attention":
        return attention_by_hand(values)
    given = Given(values)
    done = _shortcuts(given) if name == "shortcuts" else basics.CALCULATIONS[name](given)
    given.all_read()
    facts = [Fact(key, value, label, _said) for key, (label, value) in done.values.items()]
    return view(done.title, done.steps, facts)


def _shortcuts(g: Given) -> Worked:
    """Real gradients by torch, without and with shortcuts."""
    from llmcalc.cli.measured import need_live

    widths, x = g.wholes("widths", most=4096), [float(v) for v in g.vector("x")]
    target, seed = g.number("target", 0), g.whole("seed", 123, 0, 2**31)
    if len(widths) < 2 or min(widths) < 1 or widths[0] != len(x):
        raise InputError(f"widths are those of x, {len(x)}, and of every layer's output")
    need_live()
    from llmcalc.live.shortcuts import mean_gradients

    found = {
        said: mean_gradients(widths, x, target, seed, said == "with")
        for said in ("without", "with")
    }
    steps = [
        Step(f"{k} shortcuts", "mean |dL/dW| of each layer", np.array([v]))
        for k, v in found.items()
    ]
    last = found["without"][-1]
    values: dict[str, tuple[str, Any]] = {k: (f"{k} shortcuts", v) for k, v in found.items()}
    if last:
        values["first_over_last_without"] = (
            "first layer's over last layer's, without",
            found["without"][0] / last,
        )
    return Worked(
        f"linear layers {'-'.join(map(str, widths))} with GELU, torch, seed {seed}", steps, values
    )


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_said(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.7g}"


@np.errstate(over="ignore", invalid="ignore")
def attention_by_hand(given: Mapping[str, Any]) -> View:
    """Attention on X with W_Q, W_K, W_V, W_O, or on Q, K and V themselves.

    Masked, from a cache too.
    """
    g = Given(given)
    causal, scaled, n_heads = g.flag("causal", False), g.flag("scaled", True), g.whole("heads", 1)
    steps = _steps(g, n_heads, causal, scaled)
    g.all_read()
    facts: list[Fact] = []
    by_name = {s.name: s.values for s in steps}
    if causal and n_heads == 1 and len(by_name["Q"]) == len(by_name["K"]):
        cached = with_cache(by_name["Q"], by_name["K"], by_name["V"], scaled)
        apart = float(np.abs(cached - by_name["output"]).max())
        facts.append(Fact("cached_output", cached.tolist()))
        facts.append(
            Fact(
                "cache_difference",
                apart,
                "row by row with a cache, largest difference",
                lambda x: f"{x:g}",
            )
        )
    return view("attention by hand", steps, facts)


def _steps(g: Given, n_heads: int, causal: bool, scaled: bool) -> list[Step]:
    """From X, or from Q, K and V where they are given."""
    names = ("X", *"QKV", *(f"W_{n}" for n in "QKVO"))
    matrices = {n: g.matrix(n) for n in names if g.has(n)}
    direct = [n for n in "QKV" if n in matrices]
    if "X" in matrices:
        if direct:
            raise InputError(f"X and {direct[0]} say the same thing twice")
        projections = {k: m for k, m in matrices.items() if k.startswith("W_")}
        for name, w in projections.items():
            if name != "W_O" and len(w) != matrices["X"].shape[1]:
                raise InputError(f"X is {matrices['X'].shape[1]} wide and {name} has {len(w)} rows")
        return heads(
            project(matrices["X"], projections), n_heads, causal, scaled, matrices.get("W_O")
        )
    g.all_read()
    if direct != list("QKV"):
        raise InputError(
            "attention needs X, or Q, K and V",
            hint='{"X": [[0.2, 1.0], [0.9, 0.1]], "causal": true}',
        )
    parts = {n: Step(n, "given", matrices[n]) for n in "QKV"}
    return heads(parts, n_heads, causal, scaled, matrices.get("W_O"))
