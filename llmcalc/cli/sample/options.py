"""What ``sample`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from llmcalc.cli.options.run import RunDtype, RunOn
from llmcalc.errors import InputError


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
    device: RunOn = "auto"
    dtype: RunDtype = None

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
