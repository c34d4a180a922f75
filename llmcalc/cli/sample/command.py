"""``llmcalc sample``: from logits to the next token, every stage visible."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmcalc.cli.options.model import OutputOptions, count_in, takes
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError

if TYPE_CHECKING:
    from llmcalc.sampling.settings import Settings

MOST_VARIANTS = 12


def number(flag: str, help_text: str, *more: str) -> Any:
    """An option that takes one number, or several for a line-up."""
    return typer.Option(flag, *more, help=help_text, metavar="X[,Y...]")


@dataclass(frozen=True)
class LogitOptions:
    """Where the logits come from."""

    logits: Annotated[
        str | None, typer.Option("--logits", help="Logits: 2,1,0.5.", metavar="X,Y,...")
    ] = None
    logits_file: Annotated[
        str | None,
        typer.Option(
            "--logits-file",
            help="A JSON, NPY or safetensors file, or - for standard input.",
            metavar="FILE",
        ),
    ] = None
    tensor: Annotated[
        str | None,
        typer.Option("--tensor", help="Which tensor of a safetensors file.", metavar="NAME"),
    ] = None
    labels: Annotated[
        str | None, typer.Option("--labels", help="Names of the tokens: a,b,c.", metavar="A,B,...")
    ] = None


@dataclass(frozen=True)
class GenerateOptions:
    """A model to take the logits from, and to generate with."""

    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Logits of this checkpoint.")
    ] = None
    live: Annotated[
        bool, typer.Option("--live", help="Logits of a real model: --model's, else the toy's.")
    ] = False
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The text before.", metavar="TEXT")
    ] = None
    ids: Annotated[
        str | None, typer.Option("--ids", help="The token ids before.", metavar="ID,...")
    ] = None
    steps: Annotated[
        int | None, typer.Option("--steps", help="Tokens to generate, one row each.", metavar="N")
    ] = None
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the text as it comes, and nothing else.")
    ] = False
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End when this text comes. May be repeated.")
    ] = None
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")] = (
        "auto"
    )
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Format to run in; default: the checkpoint's.")
    ] = None

    @property
    def wanted(self) -> bool:
        """Whether a model is to be run."""
        return self.live or self.model is not None

    def check(self) -> None:
        """Options of a run without a model are an error."""
        for flag in ("prompt", "ids", "steps", "stream", "stop"):
            if getattr(self, flag):
                raise InputError(f"--{flag} goes with --model, or with --live for the toy model")


@dataclass(frozen=True)
class StageOptions:
    """The stages. A list of numbers makes a line-up: --temperature 0.5,1,2."""

    temperature: Annotated[
        str | None, number("--temperature", "Divides the logits; 0 is greedy.", "-t")
    ] = None
    top_k: Annotated[str | None, number("--top-k", "Keep the k most likely tokens; 0 is off.")] = (
        None
    )
    top_p: Annotated[str | None, number("--top-p", "Keep the smallest set of that mass.")] = None
    min_p: Annotated[
        str | None, number("--min-p", "Keep tokens of that share of the likeliest one.")
    ] = None
    typical_p: Annotated[
        str | None,
        number("--typical-p", "Keep the tokens nearest to the entropy, up to that mass."),
    ] = None
    top_n_sigma: Annotated[
        str | None,
        number("--top-n-sigma", "Keep logits within n standard deviations of the largest."),
    ] = None
    epsilon_cutoff: Annotated[
        str | None, number("--epsilon-cutoff", "Keep tokens of that probability and more.")
    ] = None
    eta_cutoff: Annotated[
        str | None, number("--eta-cutoff", "The same, lower where the entropy is high.")
    ] = None
    top_h: Annotated[
        str | None, number("--top-h", "Keep the likeliest up to that share of the entropy.")
    ] = None
    xtc_probability: Annotated[
        str | None, number("--xtc-probability", "How often to remove the top choices but one.")
    ] = None
    xtc_threshold: Annotated[str | None, number("--xtc-threshold", "What a top choice is.")] = None
    repetition_penalty: Annotated[
        str | None, number("--repetition-penalty", "Divide or multiply logits of seen tokens.")
    ] = None
    frequency_penalty: Annotated[str | None, number("--frequency-penalty", "Subtract per use.")] = (
        None
    )
    presence_penalty: Annotated[
        str | None, number("--presence-penalty", "Subtract once if used.")
    ] = None
    no_repeat_ngram: Annotated[
        str | None, number("--no-repeat-ngram", "Remove what would repeat n tokens.")
    ] = None
    dry_multiplier: Annotated[
        str | None, number("--dry-multiplier", "DRY: penalty for going on with a repetition.")
    ] = None
    dry_base: Annotated[str | None, number("--dry-base", "DRY: growth per token; 1.75.")] = None
    dry_allowed_length: Annotated[
        str | None, number("--dry-allowed-length", "DRY: free length; 2.")
    ] = None
    mirostat: Annotated[
        str | None, number("--mirostat", "1 or 2: aim at a surprise of --mirostat-tau bits.")
    ] = None
    mirostat_tau: Annotated[str | None, number("--mirostat-tau", "The surprise to aim at; 5.")] = (
        None
    )
    dynatemp_range: Annotated[
        str | None,
        number("--dynatemp-range", "Let the temperature follow the entropy within this range."),
    ] = None
    dynatemp_exponent: Annotated[
        str | None, number("--dynatemp-exponent", "How it follows; 1.")
    ] = None
    last_n: Annotated[
        str | None, number("--last-n", "How many tokens penalties look back; -1 all.")
    ] = None
    min_keep: Annotated[
        str | None, number("--min-keep", "The fewest tokens that a stage leaves.")
    ] = None
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest token, the first of equals.")
    ] = False
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", help="Add to a token's logit. May be repeated.", metavar="ID=VALUE"
        ),
    ] = None
    prompt_ids: Annotated[
        str | None,
        typer.Option("--prompt-ids", help="Tokens of the prompt, for penalties.", metavar="ID,..."),
    ] = None
    output_ids: Annotated[
        str | None,
        typer.Option(
            "--output-ids", help="Tokens of the answer so far, for penalties.", metavar="ID,..."
        ),
    ] = None
    dry_breakers: Annotated[
        str | None,
        typer.Option("--dry-breakers", help="Tokens that end a repetition.", metavar="ID,..."),
    ] = None
    like: Annotated[
        str | None,
        typer.Option(
            "--like", help="Order and edge rules of transformers, vllm, llama.cpp or openai."
        ),
    ] = None
    defaults: Annotated[
        bool, typer.Option("--defaults", help="With --like: its defaults where nothing is given.")
    ] = False
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            help="Another order: an engine's, or stages: top-p,temperature.",
            metavar="STAGES",
        ),
    ] = None


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
    engine, variants = _engine(stages), variants_of(stages, seed)
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
    write(
        replace(view, picture=partial(sample_view.bars_of, subject, variants, view.title)), output
    )


def _run(
    live: GenerateOptions,
    engine: Any,
    variants: Any,
    greedy: bool,
    output: OutputOptions,
    target: str | None,
) -> Any:
    """Generates and prints, or gives the logits of one step for the table of stages."""
    from llmcalc.cli.live import need_live

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

    lists: dict[str, list[float]] = {}
    for field in fields(StageOptions):
        text = getattr(stages, field.name)
        if (
            field.name in Settings.__slots__
            and isinstance(text, str)
            and field.name != "dry_breakers"
        ):
            lists[field.name] = [_number(field.name, word) for word in text.split(",")]
    if stages.defaults:
        from llmcalc.sampling.engines import engine

        for name, value in engine(str(stages.like)).rules.defaults.items():
            lists.setdefault(name, [value])
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
    found = []
    for values in combinations:
        chosen: dict[str, Any] = dict(zip(lists, values, strict=True))
        varied = [
            f"{name.replace('_', '-')} {chosen[name]:g}"
            for name, many in lists.items()
            if len(many) > 1
        ]
        found.append((", ".join(varied), Settings(**chosen, **fixed)))
    return found


_WHOLE = ("top_k", "no_repeat_ngram", "dry_allowed_length", "mirostat", "last_n", "min_keep")


def _number(name: str, word: str) -> float:
    flag = f"--{name.replace('_', '-')}"
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"{flag}: {word!r} is not a number") from None
    if name in _WHOLE:
        if not (abs(value) < 2**53 and value == int(value)):
            raise InputError(f"{flag} is {word}; it must be a whole number")
        return int(value)
    if value != value:
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
