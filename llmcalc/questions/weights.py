"""In which format a model's weights are: as its files hold them, as its config says, or
as asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from llmcalc.anatomy import Anatomy
from llmcalc.errors import InputError
from llmcalc.formats import recipe
from llmcalc.formats.recipe import Recipe
from llmcalc.formats.scheme import SCHEMES
from llmcalc.formats.stored import Checkpoint, Format, Packed, Plain, Published, named
from llmcalc.questions.check import Difference, Result, compare
from llmcalc.sources import gguf
from llmcalc.sources.header import Header, is_buffer
from llmcalc.sources.model import Model
from llmcalc.sources.names import Want, promised
from llmcalc.text import shorten


def format_of(model: Model, asked: str | None = None) -> Format:
    """The format of a model's weights.

    One that is asked for by name comes first; else a checkpoint that is there is counted by its own
    header, and without one the config's quantisation decides, or its dtype.
    """
    if asked is not None:
        return named(asked, model.wide)
    if model.header is None and not model.is_described:
        model = model.with_header()
    if model.header is not None:
        return checkpoint(model, model.header)
    settings = model.quantisation
    if settings is None:
        return Plain(wide=model.wide)
    recipe = recipe_of(model, settings)
    if recipe is None:
        raise unknown_layout(settings)
    return Published(recipe=recipe, wide=model.wide)


def recipe_of(model: Model, settings: Mapping[str, Any]) -> Recipe | None:
    """What a model's config says of its packing; None of a method that is not known."""
    return recipe.read(
        settings, model.wide.name, str((model.raw or {}).get("transformers_version"))
    )


def unknown_layout(settings: Mapping[str, Any]) -> InputError:
    """The error of a method of which nothing is known but its name."""
    method = shorten(str(settings.get("quant_method", "")).lower(), 40) or "this quantisation"
    return InputError(
        f"which tensors {method} packs, and how, is not known without the checkpoint",
        hint=f"name the checkpoint itself, or give --weights: a dtype or {', '.join(SCHEMES)}",
    )


def checkpoint(model: Model, header: Header, result: Result | None = None) -> Checkpoint:
    """What a checkpoint holds of every weight, layer by layer, scales and tables with
    their matrix.

    ``result`` is the comparison with its config where somebody has made it.
    """
    owners = (result or compared(model, header)).owners
    held: dict[tuple[str, int], tuple[int, int, str]] = {}
    largest: dict[tuple[str, int], int] = {}
    beside = 0
    for name, stored in header.tensors.items():
        want = owners.get(name)
        if want is None:
            beside += stored.n_bytes
            continue
        # what is tied and stored all the same lies beside the weight that it is tied to
        place = (want.weight.tied_to or want.weight.name, want.layer)
        n_bytes, elements, kind = held.get(place, (0, int(want.weight.per_layer), stored.dtype))
        if stored.n_bytes > largest.get(place, 0):
            largest[place], kind = stored.n_bytes, stored.dtype
        held[place] = (n_bytes + stored.n_bytes, elements, kind)
    return Checkpoint(held=held, beside=beside)


def compared(model: Model, header: Header) -> Result:
    """A checkpoint beside what its config promises, under the names that the file's format uses."""
    have = {name: tensor.shape for name, tensor in header.tensors.items()}
    buffers = {name: is_buffer(name, tensor) for name, tensor in header.tensors.items()}
    anatomy = model.anatomy
    if header.format == "gguf":
        wants = promised(anatomy) if anatomy.only_counted else gguf_promises(anatomy, have)
        wants = {n: w for n, w in wants.items() if not w.weight.tied_to or n in have}
        return compare(wants, have, buffers)
    more = (model.raw or {}).get("num_nextn_predict_layers") or 0
    result = compare(
        promised(model.anatomy),
        have,
        buffers,
        None if model.quantisation is None else recipe_of(model, model.quantisation),
        more if isinstance(more, int) else 0,
    )
    absent = tuple(
        Difference("absent", name, f"the index places it in {shard}, which does not hold it", 1)
        for name, shard in header.absent.items()
    )
    told = set(header.absent)
    others = [d for d in result.differences if not (d.kind == "missing" and d.where in told)]
    settings, unknown = model.quantisation, None
    if settings is not None and recipe_of(model, settings) is None and others:
        unknown = str(unknown_layout(settings))
    return replace(result, differences=(*absent, *others), unknown=unknown)


def gguf_promises(anatomy: Anatomy, have: Collection[str] = ()) -> dict[str, Want]:
    """Every tensor that a GGUF of the model should hold, under its name there.

    ``have`` are the names in a file of it.
    """
    return {
        name: Want(shape, weight, layer)
        for name, (shape, weight, layer) in gguf.promised(anatomy, have).items()
    }


def stays_wide(form: Format) -> str | None:
    """What a scheme leaves alone, in words; None of a format that leaves nothing."""
    if isinstance(form, Published):
        said = f"weights as the config's {form.name} packs them; the rest is {form.wide.name}"
        return f"{said}; {form.recipe.note}" if form.recipe.note else said
    if not isinstance(form, Packed):
        return None
    left = "norms and routers" if form.scheme.embeddings else "embeddings, head, norms and routers"
    return f"weights as {form.name}: {form.scheme.formula}; {left} stay {form.wide.name}"
