"""``llmcalc params``: how many parameters, where, by which formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmcalc.cli.measured import MeasureOptions, params_measured
from llmcalc.cli.options.model import ModelOptions, OutputOptions, PredictOptions, count_in, takes
from llmcalc.cli.output.view import View
from llmcalc.cli.output.write import write
from llmcalc.cli.params.table import header_params, of_anatomy, of_header
from llmcalc.errors import InputError
from llmcalc.formats.element import DType, dtype
from llmcalc.questions import params as calc
from llmcalc.sources import Model
from llmcalc.units import exact, several

if TYPE_CHECKING:
    pass


@takes
def params(
    model: ModelOptions,
    predict: PredictOptions,
    output: OutputOptions,
    measure: MeasureOptions,
    ctx: Annotated[
        str | None,
        typer.Option("--ctx", help="Longest context trained for (position table).", metavar="N"),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Group by part, layer, role or weight.")] = "part",
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor with name and shape.")
    ] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", help="Exit 1 unless the total is N.", metavar="N")
    ] = None,
    in_dtype: Annotated[
        str | None, typer.Option("--dtype", help="Weights in this dtype; default: the config's.")
    ] = None,
) -> None:
    """Count parameters: how many, where, by which formula.

    \b
    llmcalc params gpt2
    llmcalc params --d 768 --layers 12
    llmcalc params --model llama-3-8b --tensors --json
    llmcalc params config.json --expect 124439808
    llmcalc params toy --live
    """
    measure.check()
    found = predict.of(model.resolve(ctx=ctx))
    wanted = count_in("--expect", expect) if expect is not None else None
    if by not in calc.GROUPS:
        raise InputError(f"--by {by!r} is not one of {', '.join(calc.GROUPS)}")
    if tensors and by != "part":
        raise InputError(f"--tensors lists every tensor by itself; it does not go with --by {by}")
    view = of_model(found, by, tensors, dtype(in_dtype) if in_dtype else None, output)
    differences = 0
    if measure.live:
        view, differences = params_measured(view, found, measure)
    write(view, output)
    if differences:
        raise typer.Exit(1)
    total = next(f.value for f in view.facts if f.key == "total_params")
    if wanted is not None and found.is_described and found.anatomy.uncounted:
        raise InputError(
            f"the total is not known: {', '.join(found.anatomy.uncounted)} is not counted",
            hint="name the checkpoint: its header has every tensor",
        )
    if wanted is not None and wanted != total:
        more = "more" if total > wanted else "fewer"
        why = None if not found.is_described else calc.explains(found.anatomy, int(total) - wanted)
        said = (
            f"expected {several(wanted, 'parameter')}, found {exact(total)}:"
            f" {exact(abs(total - wanted))} {more}"
        )
        typer.echo(said + (f", {why}" if why else ""), err=True)
        raise typer.Exit(1)


def of_model(
    model: Model, by: str, tensors: bool, form: DType | None, output: OutputOptions
) -> View:
    """The view of a model: from its anatomy, or from its header alone where there is no config for
    it.
    """
    notes: list[str] = list(model.notes)
    if model.adapter is not None:
        from llmcalc.cli.params.adapter import of_adapter

        return of_adapter(model, model.adapter, output.explain)
    if not model.is_described:
        model = model.with_header()
        if model.header is None:
            model.config  # noqa: B018 - says which family is not known
            raise InputError(f"{model.name} has neither a config nor a header")
        why = [] if model.raw is None else model.anatomy.notes
        return of_header(model, model.header, [*notes, *why], output)
    if model.header is not None and model.header.format == "gguf":
        try:
            anatomy = model.anatomy
        except InputError as error:
            return of_header(
                model, model.header, [*notes, f"counted by tensor, since {error}"], output
            )
        if calc.parameters(anatomy) != header_params(model.header):
            notes.append(
                "counted by tensor: its sizes do not describe exactly these tensors (`llmcalc"
                " check` says where)"
            )
            return of_header(model, model.header, notes, output)
    return of_anatomy(model, by, tensors, form, notes, output)
