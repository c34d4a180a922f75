"""The options that commands share, each group one record that a command takes as one argument."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from llmcalc.errors import InputError
from llmcalc.sources import Model, resolve
from llmcalc.units import parse_bytes, parse_count, parse_tokens

T = TypeVar("T")

SIZES = "Sizes, without a MODEL"


def size(flag: str, help_text: str) -> Any:
    """An option for one size of a model that has no name."""
    return typer.Option(flag, help=help_text, metavar="N")


def _presets(incomplete: str) -> list[str]:
    """For a shell that completes: the presets that begin so."""
    from llmcalc.sources import presets

    return [name for name in ("toy", *presets.names()) if name.startswith(incomplete)]


@dataclass(frozen=True)
class ModelOptions:
    """Which model: a name, or sizes."""

    argument: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A preset, a file, a directory or a hub id.",
            show_default=False,
            autocompletion=_presets,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The same as MODEL.", autocompletion=_presets),
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change one size: n_kv_heads=8. May be repeated.", metavar="KEY=VALUE"
        ),
    ] = None
    as_family: Annotated[
        str | None,
        typer.Option(
            "--as", help="Count an unknown architecture as this family.", metavar="FAMILY"
        ),
    ] = None
    arch: Annotated[
        str | None, typer.Option("--arch", help="Structure for sizes from flags: gpt2 or llama.")
    ] = None
    d: Annotated[str | None, size("--d", "Width of the model (d_model).")] = None
    layers: Annotated[str | None, size("--layers", "Number of layers.")] = None
    heads: Annotated[str | None, size("--heads", "Query heads.")] = None
    kv_heads: Annotated[str | None, size("--kv-heads", "Key/value heads.")] = None
    head_dim: Annotated[str | None, size("--head-dim", "Width of one head.")] = None
    d_ff: Annotated[str | None, size("--d-ff", "Inner width of the MLP.")] = None
    vocab: Annotated[
        str | None,
        size("--vocab", "Rows of the embedding; without it only the blocks are counted."),
    ] = None
    tied: Annotated[
        bool | None,
        typer.Option("--tied/--untied", help="Whether the head uses the embedding's weight."),
    ] = None

    def sizes(self) -> dict[str, Any]:
        """The sizes that were given."""
        given: dict[str, Any] = {}
        for key in ("d", "layers", "heads", "kv_heads", "head_dim", "d_ff", "vocab"):
            value = getattr(self, key)
            if value is not None:
                given[key] = _positive(f"--{key.replace('_', '-')}", value)
        if self.arch is not None:
            given["arch"] = self.arch
        if self.tied is not None:
            given["tied"] = self.tied
        return given

    def resolve(self, default: str | None = None, cache_only: bool = False, **more: Any) -> Model:
        """The model that was named or described, else the one called ``default``.

        ``cache_only``: what its cache does not depend on may be missing.
        """
        if self.argument and self.model and self.argument != self.model:
            raise InputError(f"MODEL is given twice: {self.argument!r} and --model {self.model!r}")
        sizes = self.sizes() | {k: _positive(f"--{k}", v) for k, v in more.items() if v is not None}
        name = self.argument or self.model or (default if not sizes else None)
        return resolve(name, sizes, self.override or (), self.as_family, cache_only)


def _positive(flag: str, text: str) -> int:
    try:
        value = int(text) if text.lstrip("-").isdigit() else parse_count(text)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from None
    if not 0 < value < 2**40:
        raise InputError(f"{flag} is {text}; it must be a whole number from 1 to 2^40")
    return value


def count_in(flag: str, text: str) -> int:
    """A count, and the option's name where it is none."""
    if flag in TOKENS:
        return tokens_in(flag, text)
    return _named(flag, text, parse_count)


TOKENS = ("--ctx", "--prompt", "--new", "--seq", "--max-tokens", "--truncate")


def tokens_in(flag: str, text: str) -> int:
    """A number of tokens; a suffix is read as vLLM reads it, and said."""
    from llmcalc.cli.said import say

    value, suffix = _named(flag, text, parse_tokens)
    if suffix:
        say(f"{flag} {text} is {value:,}: k is 1,000 and K is 1,024")
    return value


def bytes_in(flag: str, text: str) -> int:
    """A size in bytes, and the option's name where it is none."""
    return _named(flag, text, parse_bytes)


def bytes_if_given(flag: str, text: str | None) -> int | None:
    """The same of an option that may be left out."""
    return None if text is None else bytes_in(flag, text)


def _named(flag: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from None


@dataclass(frozen=True)
class PredictOptions:
    """Whether what predicts further tokens is counted too."""

    with_mtp: Annotated[
        bool,
        typer.Option("--with-mtp", help="Count the modules of multi-token prediction too."),
    ] = False

    def of(self, model: Model) -> Model:
        """The model, with its modules where they are asked for, else with a word about them."""
        if self.with_mtp:
            return dataclasses.replace(model, with_mtp=True)
        from llmcalc.families import predicts

        if model.raw is None or not predicts(model.raw) or not model.is_described:
            return model
        said = model.anatomy.predicting_said
        return dataclasses.replace(model, notes=(*model.notes, said)) if said else model


@dataclass(frozen=True)
class OutputOptions:
    """How to print."""

    form: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", help="table, plain, json, csv or markdown.", metavar="FORMAT"
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every formula with its numbers put in.")
    ] = False
    units: Annotated[
        str, typer.Option("--units", help="binary (GiB = 2^30) or si (GB = 10^9).")
    ] = "binary"
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", help="Draw it: out.svg, .png or .pdf; - here, as text.", metavar="FILE|-"
        ),
    ] = None
    export: Annotated[
        str | None,
        typer.Option(
            "--export", help="Write it to a file as it looks: .html, .svg or .md.", metavar="FILE"
        ),
    ] = None

    @property
    def chosen(self) -> str | None:
        """The format that was asked for."""
        if self.json and self.form not in (None, "json"):
            raise InputError(f"--json and --format {self.form} say different things")
        return "json" if self.json else self.form

    @property
    def si(self) -> bool:
        """Whether bytes are shown in powers of ten."""
        if self.units not in ("binary", "si"):
            raise InputError(f"--units {self.units!r} is neither binary nor si")
        return self.units == "si"


def takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a command take option records: their fields become its parameters.

    Typer reads a function's signature; this one lists the fields of every dataclass argument
    instead of the argument.
    """
    parameters: list[inspect.Parameter] = []
    records: dict[str, Any] = {}
    # eval_str and not get_type_hints: before Python 3.11 that one wraps what defaults to None in
    # Optional, around Annotated, and Typer then sees no option in it
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        hint: Any = parameter.annotation
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            records[name] = hint
            fields = inspect.get_annotations(hint, eval_str=True)
            for field in dataclasses.fields(hint):
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default,
                        annotation=fields[field.name],
                    )
                )
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(function)
    def command(**values: Any) -> Any:
        arguments = {
            name: record(**{f.name: values.pop(f.name) for f in dataclasses.fields(record)})
            for name, record in records.items()
        }
        return function(**arguments, **values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
