"""What ``tokenize`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from llmcalc.errors import InputError


@dataclass(frozen=True)
class TokenOptions:
    """Under which tokenizer, and what of it to show."""

    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", "-t", help="An encoding, an OpenAI model, or a file.", metavar="NAME"
        ),
    ] = None
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The tokenizer of this model.")
    ] = None
    ids: Annotated[
        str | None, typer.Option("--ids", help="Decode these ids instead.", metavar="ID,...")
    ] = None
    compare: Annotated[
        str | None,
        typer.Option("--compare", help="Several tokenizers, one row each.", metavar="A,B,..."),
    ] = None
    special: Annotated[
        str,
        typer.Option(
            "--special", help="Text that spells a special token: refuse, allow (or parse), text."
        ),
    ] = "refuse"
    bos_eos: Annotated[
        bool,
        typer.Option("--bos-eos", help="Put the file's own special tokens around: BOS, EOS."),
    ] = False
    add_special: Annotated[
        list[str] | None,
        typer.Option(
            "--add-special",
            help="A further special token: '<|im_start|>=100264'. May be repeated.",
            metavar="TOKEN=ID",
        ),
    ] = None
    errors: Annotated[
        str, typer.Option("--errors", help="Bytes that are no UTF-8: strict or replace.")
    ] = "strict"
    as_text: Annotated[
        bool, typer.Option("--text", help="Arguments are texts, even where files are called so.")
    ] = False
    field: Annotated[
        str, typer.Option("--field", help="The text in JSON Lines and Parquet.", metavar="KEY")
    ] = "text"
    chat: Annotated[
        str | None,
        typer.Option("--chat", help="Messages, by the model's own template.", metavar="FILE"),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Count files by a Dask scheduler's workers: tcp://host:8786.",
            metavar="ADDRESS",
        ),
    ] = None
    template_set: Annotated[
        list[str] | None,
        typer.Option(
            "--template-set",
            help="With --chat: a variable of the template: enable_thinking=false.",
            metavar="KEY=VALUE",
        ),
    ] = None

    @property
    def spelt(self) -> str:
        """The tokenizer as it was named, for whoever looks it up elsewhere."""
        return self.tokenizer or self.model or "gpt2"

    def mode(self) -> str:
        """What to do with special tokens."""
        known = {"refuse": "refuse", "allow": "allow", "parse": "allow", "text": "text"}
        if self.special not in known:
            raise InputError(f"--special {self.special!r} is none of refuse, allow and text")
        if self.errors not in ("strict", "replace"):
            raise InputError(f"--errors {self.errors!r} is neither strict nor replace")
        return known[self.special]


@dataclass(frozen=True)
class CountOptions:
    """What to do with the count."""

    count: Annotated[bool, typer.Option("--count", help="Print the number of tokens alone.")] = (
        False
    )
    max_tokens: Annotated[
        str | None, typer.Option("--max-tokens", help="Exit 1 if there are more.", metavar="N")
    ] = None
    truncate: Annotated[
        str | None, typer.Option("--truncate", help="Print the first N tokens' text.", metavar="N")
    ] = None
    top: Annotated[int | None, typer.Option("--top", help="The most frequent pieces.", min=1)] = (
        None
    )
    price_in: Annotated[
        float | None, typer.Option("--price-in", help="A price per --unit tokens.", min=0)
    ] = None
    unit: Annotated[
        str, typer.Option("--unit", help="How many tokens that price is for.", metavar="N")
    ] = "1M"
    live: Annotated[
        bool, typer.Option("--live", help="Decode it back, and look at the model's rows.")
    ] = False
    rows: Annotated[int, typer.Option("--rows", help="Tokens to list; 0 is all.", min=0)] = 200
