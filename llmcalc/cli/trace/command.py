"""``llmcalc trace``: shape and cost of everything on the way to the next token, and what it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmcalc.cli.options.model import ModelOptions, OutputOptions, count_in, takes
from llmcalc.cli.output.write import write
from llmcalc.cli.trace.options import CourseOptions, LiveOptions
from llmcalc.errors import InputError
from llmcalc.questions.trace import Ask, Step, ask, walk

if TYPE_CHECKING:
    from llmcalc.cli.trace.table import Subject
    from llmcalc.sources import Model


@takes
def trace(
    subject: ModelOptions,
    run: LiveOptions,
    course: CourseOptions,
    output: OutputOptions,
    batch: Annotated[str, typer.Option("--batch", help="Sequences.", metavar="N")] = "1",
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="New tokens of each sequence.", metavar="N")
    ] = None,
    past: Annotated[
        str, typer.Option("--past", help="Tokens already in the cache.", metavar="N")
    ] = "0",
    full: Annotated[bool, typer.Option("--full", help="Show every layer.")] = False,
) -> None:
    """The way from token ids to the next token: every step's shape, parameters, FLOP and bytes.

    Of a named model, --layers 0,11 says which layers to show; with --d it is how many there are.

    \b
    llmcalc trace --model gpt2 --batch 2 --tokens 5
    llmcalc trace llama-3-8b --tokens 7 --layers 0,31
    llmcalc trace --live --prompt "The weather is"
    llmcalc trace ./SmolLM2 --live --prompt "The capital of France is" --logit-lens
    llmcalc trace --toy --backward
    llmcalc trace --by-hand layernorm
    llmcalc trace --by-hand '{"gelu": [0.5, -0.5]}'
    """
    if course.given():
        if subject.argument or subject.model or run.live:
            raise InputError("a calculation by hand has its own numbers: no MODEL, no --live")
        _course(course, subject, output)
        return
    from llmcalc.cli.trace import table as trace_view

    if not run.live and run.given():
        raise InputError(f"{run.given()[0]} goes with --live")
    shown = None
    if subject.argument or subject.model or subject.d is None:
        # of a named model, --layers says which to show
        shown = _layers(subject.layers)
        subject = replace(subject, layers=None)
    asked = trace_view.Subject(subject.resolve("toy"), shown, full, output.explain)
    model = asked.model
    if run.live:
        _live(asked, run, output, tokens)
        return
    n_batch = _count("--batch", batch)
    n_tokens = _count("--tokens", tokens or "5")
    load = ask(n_batch, n_tokens, _count("--past", past, 0))
    write(trace_view.view(asked, load, _steps(model, load), model.dtype), output)


def _course(course: CourseOptions, subject: ModelOptions, output: OutputOptions) -> None:
    """A calculation by hand, which has no model."""
    allowed = {"layers"} if course.toy else set()
    others = sorted(set(subject.sizes()) - allowed)
    if others:
        raise InputError(f"--{others[0].replace('_', '-')} does not change a calculation by hand")
    if course.toy:
        from llmcalc.cli.trace.toy import of_toy

        view = of_toy(course, subject.sizes().get("layers", 1))
    else:
        from llmcalc.cli.trace.by_hand import attention_by_hand, by_hand
        from llmcalc.sources.json_file import read_json

        path = course.attention_by_hand
        if path is None:
            view = by_hand(course.by_hand or "")
        else:
            view = attention_by_hand(read_json(Path(path)))
    write(view, output)


def _steps(model: Model, a: Ask) -> list[Step]:
    if model.blocks_only:
        raise InputError("tracing needs a vocabulary", hint="give --vocab")
    return list(walk(model.anatomy, a))


def _live(subject: Subject, run: LiveOptions, output: OutputOptions, tokens: str | None) -> None:
    """Loads the model, runs it watched, prints rows side by side; a difference is exit code 1."""
    from llmcalc.cli.measured import need_live

    need_live()
    from llmcalc.cli.trace import live as trace_live

    if tokens is not None:
        raise InputError("with --live the tokens are those of --prompt or --ids")
    view, differences = trace_live.view(subject, run)
    if view is not None:
        write(view, output)
    # what was measured is not what was predicted
    if differences:
        raise typer.Exit(1)


def _count(flag: str, text: str, least: int = 1) -> int:
    value = count_in(flag, text)
    if not least <= value <= 2**32:
        raise InputError(f"{flag} is {text}; it must be from {least} to 2^32")
    return value


def _layers(text: str | None) -> tuple[int, ...] | None:
    """The layers to show, from --layers of a model that has its own number of them."""
    if text is None:
        return None
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise InputError(f"--layers is {text!r}; layers are whole numbers between commas")
    return tuple(int(word) for word in words)
