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
    at = None if target is None else _place(target, names, n)
    return Subject(logits=logits, n_vocab=n, stored=stored, labels=names, engine=engine, target=at)


def _place(target: str, names: list[str] | None, n: int) -> int:
    """The id of a token by its name, else by its number."""
    if names and target in names:
        return names.index(target)
    if not target.isdigit() or int(target) >= n:
        raise InputError(f"--target {target!r} is no token of {n}", hint="an id from 0, or a label")
    return int(target)


def view(
    s: Subject, variants: list[Variant], n: int | None, greedy: bool, rows: int, explain: bool
) -> View:
    """One question: its stages side by side; several: their results."""
    if rows < 0:
        raise InputError(f"--rows is {rows}; it must be 0 or more")
    paths = [run(s.engine, settings, s.logits, s.n_vocab) for _, settings in variants]
    ends = [path[-1][1] if path else s.logits for path in paths]
    if len(variants) > 1:
        if n is not None:
            raise InputError("--draws goes with one setting, not with a line-up")
        return _line_up(s, variants, ends, rows, explain)
    path, end = paths[0], ends[0]
    _, settings = variants[0]
    tokens = _shown(s, rows)
    observed: dict[int, int] | None = None
    counted: list[Fact] = []
    if n is not None:
        drawn = draws(end, n, settings.seed)
        tally = counts(end, drawn)
        observed = dict(zip(end.ids.tolist(), tally.tolist(), strict=True))
        counted = _drawn(end, drawn, tally, settings.seed)
    chosen = end.greedy if greedy else int(draws(end, 1, settings.seed)[0])
    return View(
        kind="sample/1",
        title=_title(s, end),
        columns=_columns(s, path, observed is not None),
        rows=_rows(s, path, end, tokens, observed),
        facts=[
            *_facts(s, path, end),
            _settings(settings),
            *_choice(s, end, chosen, greedy, settings.seed),
            *counted,
        ],
        notes=_notes(s, settings, tokens),
        explain=explain,
    )


def _columns(s: Subject, path: list[tuple[str, Candidates]], drawn: bool) -> list[Column]:
    stages = [Column(_after(name), name, _share, right=True) for name, _ in path]
    return [
        Column("id", "id", exact, right=True),
        Column("label", "token", safe, shown=s.labels is not None),
        Column("logit", "logit", _number, right=True),
        Column("before", "softmax", _share, right=True),
        *stages,
        Column("logit_after", "logit after", shown=False),
        Column("probability", "probability", _share, right=True),
        Column("probability", "", lambda p: "█" * round(20 * (p or 0))),
        Column("kept", "kept", shown=False),
        Column("removed_by", "removed by", lambda r: r or ""),
        Column("count", "drawn", _count, right=True, shown=drawn),
    ]


def _after(stage: str) -> str:
    """The key of what a stage leaves."""
    return f"after_{stage.replace('-', '_')}"


def _count(n: int | None) -> str:
    return "-" if n is None else exact(n)


_APART = ("logit_bias", "dry_breakers")


def _settings(settings: Settings) -> Fact:
    """What was asked for, and what the engine's defaults added."""
    names = [name for name in sorted(settings.given()) if name not in _APART]
    given = {name: getattr(settings, name) for name in names}

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
    """One row per token: before, after each stage, and in the end."""
    stages = {_after(name): _column(left, tokens) for name, left in path}
    before, after = _column(s.logits, tokens), _column(end, tokens)
    raw, changed = _values(s.logits, tokens), _values(end, tokens)
    rows: list[Mapping[str, Any]] = []
    for i, token in enumerate(tokens):
        removed = next((name for name, left in path if left.position(token) is None), None)
        rows.append(
            {
                "id": token,
                "label": s.label(token),
                "logit": raw[i],
                "before": before[i],
                **{key: column[i] for key, column in stages.items()},
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
    probabilities = c.probabilities
    places = [c.position(token) for token in tokens]
    return [None if at is None else float(probabilities[at]) for at in places]


def _values(c: Candidates, tokens: list[int]) -> list[float | None]:
    """Logits of some tokens; None is minus infinity."""
    places = [c.position(token) for token in tokens]
    return [None if at is None else _finite(float(c.logits[at])) for at in places]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _number(x: float | None) -> str:
    return "-inf" if x is None else f"{x:.6g}"


def _share(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.4f}" if p >= 0.00005 or p == 0 else f"{p:.1e}"


def _facts(s: Subject, path: list[tuple[str, Candidates]], end: Candidates) -> list[Fact]:
    """Entropy, what is kept, and the loss, before and after."""
    before, after = s.logits.entropy, end.entropy
    mass = kept_mass(s.logits, path)

    def nats(h: float) -> str:
        return f"{h:.4f} nats, {h / math.log(2):.4f} bits, perplexity {math.exp(h):.4g}"

    def of_all(n: int) -> str:
        return f"{exact(n)} of {exact(s.n_vocab)}"

    facts = [
        Fact("order", [name for name, _ in path], "stages" if path else None, ", ".join),
        Fact("entropy_before", before, "entropy before", nats),
        Fact("entropy", after, "entropy after", nats),
        Fact("perplexity_before", math.exp(before)),
        Fact("perplexity", math.exp(after)),
        Fact("n_kept", int(end.ids.size), "tokens kept", of_all),
        Fact("kept", end.ids[:LISTED].tolist()),
        Fact("kept_mass", mass, "mass kept", lambda m: f"{m:.6f}"),
    ]
    if s.target is not None:
        loss = _loss(end, s.target)
        right = f"loss if {s.label(s.target)} is right, before"
        facts += [
            Fact("loss_before", _loss(s.logits, s.target), right, _nats),
            Fact("loss", loss),
            Fact("loss_text", _nats(loss), "the same, after"),
        ]
    return facts


def _loss(c: Candidates, token: int) -> float | None:
    at = c.position(token)
    return None if at is None else max(0.0, -float(c.log_probabilities[at]))


def _nats(loss: float | None) -> str:
    return "infinite: it was removed" if loss is None else f"{loss:.4f} nats"


def _choice(s: Subject, end: Candidates, chosen: int, greedy: bool, seed: int) -> list[Fact]:
    """The next token and its probability, which is 1 where nothing is drawn."""
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
    label = f"{exact(len(drawn))} draws, seed {seed}"
    return [
        Fact("draws", drawn[:LISTED].tolist(), label, lambda _: shown),
        Fact("n_draws", len(drawn)),
        Fact("chi_square", statistic),
        Fact("p_value", p),
    ]


def _line_up(
    s: Subject, variants: list[Variant], ends: list[Candidates], rows: int, explain: bool
) -> View:
    """The final probabilities of every variant, side by side."""
    tokens = _shown(s, rows)
    results = {f"p{j}": _column(end, tokens) for j, end in enumerate(ends)}
    raw = _values(s.logits, tokens)
    table = [
        {
            "id": token,
            "label": s.label(token),
            "logit": raw[i],
            **{key: column[i] for key, column in results.items()},
        }
        for i, token in enumerate(tokens)
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
        loss = None
        if s.target is not None:
            loss = _loss(end, s.target)
            said += f", loss {_nats(loss)}"
        fact = {
            "setting": label,
            "entropy": end.entropy,
            "n_kept": int(end.ids.size),
            "loss": loss,
            "text": said,
        }
        facts.append(Fact(f"p{j}", fact, label, lambda f: str(f["text"])))
    return View(
        kind="sample/1",
        title=f"{exact(s.n_vocab)} logits under {len(variants)} settings",
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
    series: dict[str, list[float | None]] = {}
    if len(variants) == 1:
        series["before"] = _column(s.logits, tokens)
    for label, settings in variants:
        path = run(s.engine, settings, s.logits, s.n_vocab)
        end = path[-1][1] if path else s.logits
        series[label or "after"] = _column(end, tokens)
    found = [(name, [p or 0.0 for p in column]) for name, column in series.items()]
    names = [s.label(token) for token in tokens]
    return Bars(title, names, found, "probability", lambda p: f"{p:.4f}")
