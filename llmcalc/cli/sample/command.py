"""``llmcalc sample``: from logits to the next token, every stage visible."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.options.model import OutputOptions, count_in, takes
from llmcalc.cli.output.write import write
from llmcalc.cli.sample.options import GenerateOptions, LogitOptions, StageOptions
from llmcalc.errors import InputError

if TYPE_CHECKING:
    from llmcalc.sampling.settings import Settings

MOST_VARIANTS = 12


@takes
def sample(
    source: LogitOptions,
    live: GenerateOptions,
    stages: StageOptions,
    output: OutputOptions,
    draws: Annotated[
        str | None, typer.Option("--draws", "--n", help="Draw this often, and count.", metavar="N")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same.")] = 0,
    target: Annotated[
        str | None, typer.Option("--target", help="The right token, by id or label: its loss.")
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", help="Rows to show, the likeliest ones; 0 is all.")
    ] = 20,
) -> None:
    """From logits to the next token: every stage, what it removes, and what is left.

    \b
    llmcalc sample --logits 2,1,0.5,-0.5,-1.5 --labels a,b,c,d,e --temperature 0.5,1,2
    llmcalc sample --logits 3,2,1 --temperature 0.5 --top-p 0.8 --like llama.cpp
    llmcalc sample --logits-file logits.json --top-k 40 --top-p 0.9 --draws 1000 --seed 7
    llmcalc sample --live --prompt "She was" --steps 40 --temperature 0.7 --stream
    """
    from llmcalc.cli.sample import table as sample_view

    n = _draws(draws)
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must not be negative")
    engine = _engine(stages)
    variants = variants_of(stages, seed)
    if live.wanted:
        if source.logits is not None or source.logits_file is not None:
            raise InputError("--logits and --model are two sources of logits")
        subject = _run(live, engine, variants, stages.greedy, output, target)
        if subject is None:
            return
    else:
        live.check()
        values, stored = _logits(source)
        names = None if source.labels is None else source.labels.split(",")
        subject = sample_view.subject(values, stored, names, engine, target)
    view = sample_view.view(subject, variants, n, stages.greedy, rows, output.explain)
    drawn = partial(sample_view.bars_of, subject, variants, view.title)
    write(replace(view, picture=drawn), output)


def _run(
    live: GenerateOptions,
    engine: Any,
    variants: Any,
    greedy: bool,
    output: OutputOptions,
    target: str | None,
) -> Any:
    """Generates and prints, or gives the logits of one step for the table of stages."""
    from llmcalc.cli.measured import need_live

    need_live()
    from llmcalc.cli.sample import live as sample_live

    if live.steps is None and not live.stream:
        return sample_live.one_step(live, engine, target)
    if len(variants) > 1:
        raise InputError("a line-up shows one step; --steps takes one value for each setting")
    view = sample_live.many_steps(live, engine, variants[0][1], greedy)
    if view is not None:
        write(view, output)
    return None


def _draws(text: str | None) -> int | None:
    if text is None:
        return None
    n = count_in("--draws", text)
    if not 1 <= n <= 10**8:
        raise InputError(f"--draws is {text}; it must be from 1 to 10^8")
    return n


def _logits(source: LogitOptions) -> tuple[Any, str]:
    from llmcalc.sources import logits

    if (source.logits is None) == (source.logits_file is None):
        raise InputError(
            "give --logits 2,1,0.5 or --logits-file FILE",
            hint="llmcalc sample --logits 2,1,0.5,-0.5,-1.5",
        )
    if source.logits is not None:
        return logits.parse(source.logits), "text"
    return logits.read(str(source.logits_file), source.tensor)


def _engine(stages: StageOptions) -> Any:
    from llmcalc.sampling.engines import ENGINES, STAGES, engine, in_order, ordered_as

    like = engine(stages.like) if stages.like is not None else ENGINES["any"]
    if stages.defaults and stages.like is None:
        raise InputError("--defaults goes with --like")
    if stages.order is None:
        return like
    if "," in stages.order or stages.order in STAGES:
        return in_order(like, [name.strip() for name in stages.order.split(",")])
    return ordered_as(like, engine(stages.order))


def variants_of(stages: StageOptions, seed: int) -> list[tuple[str, Settings]]:
    """Every combination of the listed numbers, each with a label of what it varies."""
    from llmcalc.sampling.settings import Settings

    lists = _lists(stages)
    combinations = list(itertools.product(*lists.values()))
    if len(combinations) > MOST_VARIANTS:
        raise InputError(
            f"the lists make {len(combinations)} combinations; at most {MOST_VARIANTS} fit side by"
            " side"
        )
    fixed: dict[str, Any] = {
        "logit_bias": _biases(stages.logit_bias or []),
        "prompt": _ids("--prompt-ids", stages.prompt_ids),
        "output": _ids("--output-ids", stages.output_ids),
        "dry_breakers": _ids("--dry-breakers", stages.dry_breakers),
        "seed": seed,
    }
    varied = [name for name, many in lists.items() if len(many) > 1]
    found = []
    for values in combinations:
        chosen: dict[str, Any] = dict(zip(lists, values, strict=True))
        label = ", ".join(f"{name.replace('_', '-')} {chosen[name]:g}" for name in varied)
        found.append((label, Settings(**chosen, **fixed)))
    return found


def _lists(stages: StageOptions) -> dict[str, list[float]]:
    """The numbers of every setting that is given, by the user or by the engine's defaults."""
    from llmcalc.sampling.settings import Settings

    lists: dict[str, list[float]] = {}
    for field in fields(StageOptions):
        name, text = field.name, getattr(stages, field.name)
        if name not in Settings.__slots__ or name == "dry_breakers":
            continue
        if isinstance(text, str):
            lists[name] = [_number(name, word) for word in text.split(",")]
    if stages.defaults:
        from llmcalc.sampling.engines import engine

        for name, value in engine(str(stages.like)).rules.defaults.items():
            lists.setdefault(name, [value])
    return lists


_WHOLE = ("top_k", "no_repeat_ngram", "dry_allowed_length", "mirostat", "last_n", "min_keep")


def _number(name: str, word: str) -> float:
    """A setting's number, whole where it counts something."""
    flag = f"--{name.replace('_', '-')}"
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"{flag}: {word!r} is not a number") from None
    if name in _WHOLE:
        if not (abs(value) < 2**53 and value == int(value)):
            raise InputError(f"{flag} is {word}; it must be a whole number")
        return int(value)
    if math.isnan(value):
        raise InputError(f"{flag} is NaN")
    return value


def _ids(flag: str, text: str | None) -> tuple[int, ...]:
    words = [] if text is None else text.replace(",", " ").split()
    if not all(word.isdigit() for word in words):
        raise InputError(f"{flag} is {text!r}; token ids are whole numbers between commas")
    return tuple(int(word) for word in words)


def _biases(texts: list[str]) -> dict[int, float]:
    found = {}
    for text in texts:
        token, equals, value = text.partition("=")
        if not equals or not token.strip().isdigit():
            raise InputError(
                f"--logit-bias {text!r} is not id=value", hint="for example --logit-bias 3=-100"
            )
        found[int(token)] = _number("logit_bias", value)
    return found
