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
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "attention": ATTENTION,
    "shortcuts": SHORTCUTS,
    **basics.EXAMPLES,
}


def known() -> tuple[str, ...]:
    """The calculations by name."""
    return ("attention", *basics.CALCULATIONS, "shortcuts")


@np.errstate(over="ignore", invalid="ignore")
def by_hand(text: str) -> View:
    """The calculation that a name, a JSON text or a JSON file asks for."""
    if text in known():
        return _worked(text, _EXAMPLES[text])
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
        example = json.dumps({name: _EXAMPLES[name]})
        raise InputError(f"{name} takes an object, like {example}")
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

    widths = g.wholes("widths", most=4096)
    x = [float(v) for v in g.vector("x")]
    target = g.number("target", 0)
    seed = g.whole("seed", 123, 0, 2**31)
    if len(widths) < 2 or min(widths) < 1 or widths[0] != len(x):
        raise InputError(f"widths are those of x, {len(x)}, and of every layer's output")
    need_live()
    from llmcalc.live.shortcuts import mean_gradients

    steps: list[Step] = []
    values: dict[str, tuple[str, Any]] = {}
    for said in ("without", "with"):
        means = mean_gradients(widths, x, target, seed, said == "with")
        label = f"{said} shortcuts"
        steps.append(Step(label, "mean |dL/dW| of each layer", np.array([means])))
        values[said] = (label, means)
    _, without = values["without"]
    if without[-1]:
        ratio = without[0] / without[-1]
        values["first_over_last_without"] = ("first layer's over last layer's, without", ratio)
    chain = "-".join(map(str, widths))
    return Worked(f"linear layers {chain} with GELU, torch, seed {seed}", steps, values)


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
    causal = g.flag("causal", False)
    scaled = g.flag("scaled", True)
    n_heads = g.whole("heads", 1)
    steps = _steps(g, n_heads, causal, scaled)
    g.all_read()
    facts: list[Fact] = []
    by_name = {step.name: step.values for step in steps}
    if causal and n_heads == 1 and len(by_name["Q"]) == len(by_name["K"]):
        cached = with_cache(by_name["Q"], by_name["K"], by_name["V"], scaled)
        apart = float(np.abs(cached - by_name["output"]).max())
        facts.append(Fact("cached_output", cached.tolist()))
        label = "row by row with a cache, largest difference"
        facts.append(Fact("cache_difference", apart, label, lambda x: f"{x:g}"))
    return view("attention by hand", steps, facts)


def _steps(g: Given, n_heads: int, causal: bool, scaled: bool) -> list[Step]:
    """From X, or from Q, K and V where they are given."""
    names = ("X", *"QKV", *(f"W_{name}" for name in "QKVO"))
    matrices = {name: g.matrix(name) for name in names if g.has(name)}
    w_o = matrices.get("W_O")
    direct = [name for name in "QKV" if name in matrices]
    if "X" in matrices:
        x = matrices["X"]
        if direct:
            raise InputError(f"X and {direct[0]} say the same thing twice")
        projections = {name: w for name, w in matrices.items() if name.startswith("W_")}
        for name, w in projections.items():
            if name != "W_O" and len(w) != x.shape[1]:
                raise InputError(f"X is {x.shape[1]} wide and {name} has {len(w)} rows")
        return heads(project(x, projections), n_heads, causal, scaled, w_o)
    g.all_read()
    if direct != list("QKV"):
        raise InputError(
            "attention needs X, or Q, K and V",
            hint='{"X": [[0.2, 1.0], [0.9, 0.1]], "causal": true}',
        )
    parts = {name: Step(name, "given", matrices[name]) for name in direct}
    return heads(parts, n_heads, causal, scaled, w_o)
