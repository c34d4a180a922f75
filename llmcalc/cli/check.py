"""``llmcalc check``: does a checkpoint hold what its config promises?"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from llmcalc.cli.measured import MeasureOptions, check_measured
from llmcalc.cli.options.model import ModelOptions, OutputOptions, takes
from llmcalc.cli.output.progress import Counting
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError, UnavailableError
from llmcalc.questions.check import Result
from llmcalc.questions.params import parameters
from llmcalc.questions.weights import compared
from llmcalc.sources import Model, resolve
from llmcalc.sources.header import Header
from llmcalc.sources.model import JOBS
from llmcalc.text import safe
from llmcalc.units import both, exact, size


@takes
def check(
    model: ModelOptions,
    output: OutputOptions,
    measure: MeasureOptions,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="Take the config from here: a preset, file or directory.",
            metavar="MODEL",
        ),
    ] = None,
    ctx: Annotated[
        int, typer.Option("--ctx", help="With --live: tokens of the cache to allocate.", min=1)
    ] = 512,
    batch: Annotated[int, typer.Option("--batch", help="With --live: sequences.", min=1)] = 1,
    jobs: Annotated[
        int,
        typer.Option("--jobs", help="Of a hub id: headers that are read at once.", min=1, max=64),
    ] = JOBS,
) -> None:
    """Compare a checkpoint's tensors with what its config promises; exit 1 where they differ.

    \b
    llmcalc check path/to/model
    llmcalc check model.gguf
    llmcalc check model.safetensors --against gpt2
    llmcalc check path/to/model --live --ctx 4096
    """
    measure.check()
    counting = Counting("headers")
    found = with_config(model.resolve().with_header(jobs, counting.tell), against)
    counting.end()
    if found.header is None:
        raise InputError(
            f"{found.name} has no checkpoint to check",
            hint=(
                "name a directory with .safetensors files, a .safetensors or a .gguf file; "
                "pickled .bin and .pt files are not read"
            ),
        )
    result = compared(found, found.header)
    view, wrong = view_of(found, found.header, result, output), 0
    if measure.live and not result.differences:
        view, wrong = check_measured(view, found, ctx, batch, measure)
    write(view, output)
    if wrong:
        raise typer.Exit(1)
    if result.unknown:
        raise UnavailableError(
            f"whether the file is sound is not known: {result.unknown}",
            hint="`llmcalc params FILE` counts its tensors as they are",
        )
    if result.differences:
        n = sum(d.tensors for d in result.differences)
        typer.echo(
            f"{n} tensor{'s differ' if n != 1 else ' differs'} from what the config promises",
            err=True,
        )
        raise typer.Exit(1)


def with_config(model: Model, against: str | None) -> Model:
    """The model with a config: its own, its directory's, or that of another one."""
    if against is not None:
        return replace(model, raw=resolve(against).raw)
    if model.raw is None and model.header is not None and model.header.format != "gguf":
        raise InputError(
            f"{model.name} has no config.json beside it", hint="name one with `--against MODEL`"
        )
    return model


def view_of(model: Model, header: Header, result: Result, output: OutputOptions) -> View:
    """Differences where there are any, else the dtypes by role."""
    total = parameters(model.anatomy)
    blind = model.anatomy.only_counted and header.format != "gguf"
    if blind:
        said = "the files are sound; what they should hold is not known"
    elif result.differences:
        said = "the checkpoint differs from its config"
    else:
        said = "the checkpoint holds what its config promises"
    title = f"{model.name} ({model.anatomy.family}): {said}"
    facts = [
        Fact("same", None if blind else not result.differences),
        Fact("matched", result.matched, "tensors as promised", exact),
        Fact(
            "differences", sum(d.tensors for d in result.differences), "tensors that differ", exact
        ),
        Fact("total_params", total, "parameters", both),
        Fact(
            "stored_bytes",
            header.n_bytes,
            "stored",
            lambda n: f"{size(n, si=output.si)} ({exact(n)} bytes)",
        ),
        Fact("dtypes", dtypes_by_role(result, header), "dtypes", _dtypes),
    ]
    rows: list[dict[str, Any]] = [
        {"kind": d.kind, "where": d.where, "detail": d.detail, "tensors": d.tensors}
        for d in result.differences
    ]
    columns = [
        Column("kind", "difference"),
        Column("where", "tensor", safe),
        Column("detail", "what", safe),
        Column("tensors", "tensors", exact, right=True),
    ]
    notes = [*model.notes, *model.anatomy.notes, *result.notes]
    return View(
        kind="check/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        model=model.about,
        explain=output.explain,
    )


def dtypes_by_role(result: Result, header: Header) -> dict[str, list[str]]:
    """Which formats the tensors of each role are stored in, packed ones and their scales
    included.
    """
    found: dict[str, dict[str, None]] = {}
    for name, stored in header.tensors.items():
        if role := result.roles.get(name):
            found.setdefault(role, {})[stored.dtype] = None
    return {role: list(kinds) for role, kinds in found.items()}


def _dtypes(by_role: dict[str, list[str]]) -> str:
    groups: dict[str, list[str]] = {}
    for role, kinds in by_role.items():
        groups.setdefault("+".join(kinds), []).append(role)
    return "; ".join(f"{kinds}: {', '.join(roles)}" for kinds, roles in groups.items())
