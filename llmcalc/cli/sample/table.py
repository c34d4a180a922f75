"""How ``sample`` shows a distribution: one column per stage, or one per variant.

What is kept, lost and drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmcalc.cli.output.picture import Bars
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.draw import chi_square, counts, draws
from llmcalc.sampling.engines import Engine, kept_mass, run
from llmcalc.sampling.settings import Settings
from llmcalc.text import safe
from llmcalc.units import exact

LISTED = 1000
Variant = tuple[str, Settings]


@dataclass(frozen=True, slots=True)
class Subject:
    """The logits, what the tokens are called, whose rules apply, and the right token."""

    logits: Candidates
    n_vocab: int
    stored: str
    labels: list[str] | None
    engine: Engine
    target: int | None

    def label(self, token: int) -> str:
        """A token's name, else its id."""
        return self.labels[token] if self.labels is not None else str(token)


def subject(
    values: Any, stored: str, names: list[str] | None, engine: Engine, target: str | None
) -> Subject:
    """The logits with their names; names and target must be there."""
    logits = Candidates.of(values)
    n = len(values)
    if names is not None and len(names) != n:
        raise InputError(f"--labels has {len(names)} names for {n} logits")
    at = None
    if target is not None:
        at = (
            names.index(target)
            if names and target in names
            else int(target)
            if target.isdigit()
            else n
        )
        if at >= n:
            raise InputError(
                f"--target {target!r} is no token of {n}", hint="an id from 0, or a label"
            )
    return Subject(logits=logits, n_vocab=n, stored=stored, labels=names, engine=engine, target=at)


def view(
    s: Subject, variants: list[Variant], n: int | None, greedy: bool, rows: int, explain: bool
) -> View:
    """One question: its stages side by side; several: their results."""
    if rows < 0:
        raise InputError(f"--rows is {rows}; it must be 0 or more")
    paths = [run(s.engine, v, s.logits, s.n_vocab) for _, v in variants]
    ends = [path[-1][1] if path else s.logits for path in paths]
    if len(variants) > 1:
        if n is not None:
            raise InputError("--draws goes with one setting, not with a line-up")
        return _line_up(s, variants, ends, rows, explain)
    path, end, settings = paths[0], ends[0], variants[0][1]
    tokens = _shown(s, rows)
    drawn = None if n is None else draws(end, n, settings.seed)
    tally = None if drawn is None else counts(end, drawn)
    observed = None if tally is None else dict(zip(end.ids.tolist(), tally.tolist(), strict=True))
    table = _rows(s, path, end, tokens, observed)
    columns = [
        Column("id", "id", exact, right=True),
        Column("label", "token", safe, shown=s.labels is not None),
        Column("logit", "logit", _number, right=True),
        Column("before", "softmax", _share, right=True),
        *(Column(f"after_{name.replace('-', '_')}", name, _share, right=True) for name, _ in path),
        Column("logit_after", "logit after", shown=False),
        Column("probability", "probability", _share, right=True),
        Column("probability", "", lambda p: "█" * round(20 * (p or 0))),
        Column("kept", "kept", shown=False),
        Column("removed_by", "removed by", lambda r: r or ""),
        Column(
            "count",
            "drawn",
            lambda c: "-" if c is None else exact(c),
            right=True,
            shown=drawn is not None,
        ),
    ]
    chosen = end.greedy if greedy else int(draws(end, 1, settings.seed)[0])
    facts = [
        *_facts(s, path, end),
        _settings(settings),
        *_choice(s, end, chosen, greedy, settings.seed),
    ]
    if drawn is not None and tally is not None:
        facts += _drawn(end, drawn, tally, settings.seed)
    return View(
        kind="sample/1",
        title=_title(s, end),
        columns=columns,
        rows=table,
        facts=facts,
        notes=_notes(s, settings, tokens),
        explain=explain,
    )


_APART = ("logit_bias", "dry_breakers")


def _settings(settings: Settings) -> Fact:
    """What was asked for, and what the engine's defaults added."""
    given = {
        name: getattr(settings, name) for name in sorted(settings.given()) if name not in _APART
    }

    def said(found: dict[str, float]) -> str:
        return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in found.items())

    return Fact("settings", given, "settings" if given else None, said)


def _title(s: Subject, end: Candidates) -> str:
    return f"{exact(s.n_vocab)} logits: {exact(end.ids.size)} kept"


def _shown(s: Subject, rows: int) -> list[int]:
    """The tokens to show: all in their order, or the likeliest ones."""
    if rows == 0 or s.n_vocab <= rows:
        return list(range(s.n_vocab))
    return s.logits.likeliest(rows)


def _rows(
    s: Subject,
    path: list[tuple[str, Candidates]],
    end: Candidates,
    tokens: list[int],
    observed: dict[int, int] | None,
) -> list[Mapping[str, Any]]:
    probabilities = {name: _column(c, tokens) for name, c in path}
    before, after = _column(s.logits, tokens), _column(end, tokens)
    raw, changed = _values(s.logits, tokens), _values(end, tokens)
    rows: list[Mapping[str, Any]] = []
    for i, token in enumerate(tokens):
        removed = next((name for name, c in path if c.position(token) is None), None)
        rows.append(
            {
                "id": token,
                "label": s.label(token),
                "logit": raw[i],
                "before": before[i],
                **{
                    f"after_{name.replace('-', '_')}": column[i]
                    for name, column in probabilities.items()
                },
                "logit_after": changed[i],
                "probability": after[i],
                "kept": after[i] is not None,
                "removed_by": removed,
                "count": None if observed is None else observed.get(token, 0),
            }
        )
    return rows


def _column(c: Candidates, tokens: list[int]) -> list[float | None]:
    """Probabilities of some tokens; None where a stage removed one."""
    p = c.probabilities
    places = [c.position(t) for t in tokens]
    return [None if at is None else float(p[at]) for at in places]


def _values(c: Candidates, tokens: list[int]) -> list[float | None]:
    """Logits of some tokens; None is minus infinity."""
    places = [c.position(t) for t in tokens]
    return [None if at is None else _finite(float(c.logits[at])) for at in places]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _number(x: float | None) -> str:
    return "-inf" if x is None else f"{x:.6g}"


def _share(p: float | None) -> str:
    return "-" if p is None else f"{p:.4f}" if p >= 0.00005 or p == 0 else f"{p:.1e}"


def _facts(s: Subject, path: list[tuple[str, Candidates]], end: Candidates) -> list[Fact]:
    """Entropy, what is kept, and the loss, before and after."""
    before, after = s.logits.entropy, end.entropy
    mass = kept_mass(s.logits, path)

    def nats(h: float) -> str:
        return f"{h:.4f} nats, {h / math.log(2):.4f} bits, perplexity {math.exp(h):.4g}"

    facts = [
        Fact("order", [name for name, _ in path], "stages" if path else None, ", ".join),
        Fact("entropy_before", before, "entropy before", nats),
        Fact("entropy", after, "entropy after", nats),
        Fact("perplexity_before", math.exp(before)),
        Fact("perplexity", math.exp(after)),
        Fact(
            "n_kept",
            int(end.ids.size),
            "tokens kept",
            lambda n: f"{exact(n)} of {exact(s.n_vocab)}",
        ),
        Fact("kept", end.ids[:LISTED].tolist()),
        Fact("kept_mass", mass, "mass kept", lambda m: f"{m:.6f}"),
    ]
    if s.target is not None:
        facts += [
            Fact(
                "loss_before",
                _loss(s.logits, s.target),
                f"loss if {s.label(s.target)} is right, before",
                _nats,
            ),
            Fact("loss", _loss(end, s.target)),
            Fact("loss_text", _nats(_loss(end, s.target)), "the same, after"),
        ]
    return facts


def _loss(c: Candidates, token: int) -> float | None:
    at = c.position(token)
    return None if at is None else max(0.0, -float(c.log_probabilities[at]))


def _nats(loss: float | None) -> str:
    return "infinite: it was removed" if loss is None else f"{loss:.4f} nats"


def _choice(s: Subject, end: Candidates, chosen: int, greedy: bool, seed: int) -> list[Fact]:
    how = "the likeliest" if greedy else f"drawn with seed {seed}"
    p = 1.0 if greedy else end.probability(chosen)
    return [
        Fact("chosen", chosen, "next token", lambda t: f"{safe(s.label(t))} ({p:.4f}), {how}"),
        Fact("chosen_probability", p),
        Fact("greedy", end.greedy),
        Fact("seed", seed),
    ]


def _drawn(end: Candidates, drawn: Any, tally: Any, seed: int) -> list[Fact]:
    """How the counts compare with the probabilities."""
    statistic, freedom, p = chi_square(end, tally)
    shown = f"chi-square {statistic:.4g} with {freedom} degrees of freedom, p = {p:.4g}"
    return [
        Fact(
            "draws",
            drawn[:LISTED].tolist(),
            f"{exact(len(drawn))} draws, seed {seed}",
            lambda _: shown,
        ),
        Fact("n_draws", len(drawn)),
        Fact("chi_square", statistic),
        Fact("p_value", p),
    ]


def _line_up(
    s: Subject, variants: list[Variant], ends: list[Candidates], rows: int, explain: bool
) -> View:
    """The final probabilities of every variant, side by side."""
    tokens = _shown(s, rows)
    values = [_column(end, tokens) for end in ends]
    raw = _values(s.logits, tokens)
    table = [
        {
            "id": t,
            "label": s.label(t),
            "logit": raw[i],
            **{f"p{j}": column[i] for j, column in enumerate(values)},
        }
        for i, t in enumerate(tokens)
    ]
    columns = [
        Column("id", "id", exact, right=True),
        Column("label", "token", safe, shown=s.labels is not None),
        Column("logit", "logit", _number, right=True),
        *(Column(f"p{j}", label, _share, right=True) for j, (label, _) in enumerate(variants)),
    ]
    facts = []
    for j, ((label, _), end) in enumerate(zip(variants, ends, strict=True)):
        said = f"entropy {end.entropy:.4f} nats, {exact(end.ids.size)} kept"
        loss = None if s.target is None else _loss(end, s.target)
        said += "" if s.target is None else f", loss {_nats(loss)}"
        fact = {"setting": label, "entropy": end.entropy, "n_kept": int(end.ids.size), "loss": loss}
        facts.append(Fact(f"p{j}", {**fact, "text": said}, label, lambda f: str(f["text"])))
    title = f"{exact(s.n_vocab)} logits under {len(variants)} settings"
    return View(
        kind="sample/1",
        title=title,
        columns=columns,
        rows=table,
        facts=facts,
        notes=_notes(s, variants[0][1], tokens),
        explain=explain,
    )


def _notes(s: Subject, settings: Settings, tokens: list[int]) -> list[str]:
    said = [s.engine.rules.note]
    if s.stored in ("float16", "bfloat16", "float32"):
        said.append(f"the logits are {s.stored}; everything is computed in float64")
    if len(tokens) < s.n_vocab:
        said.append(f"{exact(s.n_vocab - len(tokens))} less likely tokens are not shown (--rows)")
    if settings.xtc_probability and settings.xtc_probability < 1:
        said.append(f"XTC is a draw of its own, here with seed {settings.seed}")
    return said


def bars_of(s: Subject, variants: list[Variant], title: str) -> Bars:
    """What a picture shows: the 40 likeliest tokens, before and after, or each variant."""
    tokens = _shown(s, 40)
    ends = {label: run(s.engine, v, s.logits, s.n_vocab) for label, v in variants}
    series = {
        label or "after": _column(path[-1][1] if path else s.logits, tokens)
        for label, path in ends.items()
    }
    if len(variants) == 1:
        series = {"before": _column(s.logits, tokens), **series}
    found = [(k, [p or 0.0 for p in v]) for k, v in series.items()]
    return Bars(title, [s.label(t) for t in tokens], found, "probability", lambda p: f"{p:.4f}")
