"""``llmcalc dtype``: what a number format holds, what it does to a number, a tensor, a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from llmcalc.cli.dtype import blocks as packed
from llmcalc.cli.dtype import floats
from llmcalc.cli.dtype.codes import PACKED, codes_in, of_block, of_codes, of_integers, of_word
from llmcalc.cli.options.model import OutputOptions, count_in, takes
from llmcalc.cli.output.pictures import as_bars, by_bytes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError
from llmcalc.formats.block import BLOCKS, Integer, find
from llmcalc.formats.element import DTYPES, dtype
from llmcalc.units import exact, size


@dataclass(frozen=True)
class Questions:
    """What is asked of a format."""

    name: Annotated[
        str | None, typer.Argument(metavar="FORMAT", help="bf16, fp8, mxfp4, q4_k, nf4, ...")
    ] = None
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value", "--values", help="Store these numbers: 0.1, 65505, nan.", metavar="X,..."
        ),
    ] = None
    bits: Annotated[
        str | None,
        typer.Option(
            "--bits",
            help="A code of FORMAT; a longer one is a float32 to convert.",
            metavar="0xHEX",
        ),
    ] = None
    params: Annotated[
        str | None,
        typer.Option(
            "--params", "--elements", help="What so many take in every format.", metavar="N"
        ),
    ] = None
    codes: Annotated[
        str | None,
        typer.Option("--codes", help="Codes of FORMAT, with --scale and --zero.", metavar="Q,..."),
    ] = None
    scale: Annotated[float | None, typer.Option("--scale", help="With --codes: the scale.")] = None
    zero: Annotated[
        int | None, typer.Option("--zero", help="With --codes: the zero point, as it is stored.")
    ] = None
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Integers around 0: zero point 0.")
    ] = False
    affine: Annotated[bool, typer.Option("--affine", help="Integers with a zero point.")] = False
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A model's weights in every format, or by tensor in FORMAT."
        ),
    ] = None
    tensor: Annotated[
        str | None,
        typer.Option(
            "--tensor",
            help="Real weights: what they are, and what formats make of them.",
            metavar="FILE[:NAME]",
        ),
    ] = None
    live: Annotated[
        bool, typer.Option("--live", help="Cast on a device: bytes measured, bits compared.")
    ] = False
    device: Annotated[
        str,
        typer.Option("--run-on", "--device", help="With --live: cpu, cuda, cuda:0, mps or auto."),
    ] = "auto"


@takes
def show(asked: Questions, output: OutputOptions) -> None:
    """Number formats: their bits and limits, a number in one or all of them, memory in each.

    \b
    llmcalc dtype
    llmcalc dtype bf16
    llmcalc dtype fp8 --value 0.1,448,465
    llmcalc dtype int8 --value=-1,-0.5,0.3,0.75
    llmcalc dtype gptq --codes 3,15,0 --scale 0.01 --zero 7
    llmcalc dtype --params 70e9
    llmcalc dtype q4_k_m --model llama-3-8b
    llmcalc dtype --tensor model.safetensors:lm_head.weight
    """
    asks = (asked.value, asked.bits, asked.codes, asked.params, asked.model, asked.tensor)
    if sum(x is not None for x in asks) > 1:
        raise InputError(
            "--value, --bits, --codes, --params, --model and --tensor are different questions"
        )
    if asked.live:
        _live(asked, output)
        return
    if asked.device != "auto":
        raise InputError("--run-on is where --live casts")
    write(_answer(asked, output.si), output)


def _live(asked: Questions, output: OutputOptions) -> None:
    asks = (asked.value, asked.bits, asked.codes, asked.params, asked.model, asked.tensor)
    if any(x is not None for x in asks):
        raise InputError("--live casts its own numbers; it goes with a FORMAT alone")
    from llmcalc.cli.measured import need_live

    need_live()
    from llmcalc.cli.dtype.live import on_device

    view, wrong = on_device(asked.name, asked.device)
    write(view, output)
    if wrong:
        raise typer.Exit(1)


def _answer(asked: Questions, si: bool) -> View:
    name = asked.name
    only = "symmetric" if asked.symmetric else "affine" if asked.affine else None
    if only and (asked.symmetric == asked.affine or not asked.value):
        raise InputError("--symmetric and --affine are two ways for --value in an integer format")
    scaled = asked.scale is not None or asked.zero is not None
    if scaled and asked.codes is None and not (asked.bits and name in PACKED):
        raise InputError("--scale and --zero go with --codes, or with --bits of gptq and awq")
    if asked.codes is not None:
        return _codes(asked)
    if asked.model is not None:
        from llmcalc.cli.dtype.model import of_model

        return of_model(asked.model, name, si)
    if asked.tensor is not None:
        from llmcalc.cli.dtype.tensor import of_tensor

        return of_tensor(asked.tensor, name)
    if asked.params is not None:
        return _memory(count_in("--params", asked.params), name, si)
    if asked.value:
        return _values(name, asked.value, only)
    if asked.bits is None:
        return floats.limits(name)
    return _bits(asked, asked.bits)


def _bits(asked: Questions, text: str) -> View:
    """A code of a scalar, one block's bytes, integers, or a packed word."""
    if asked.name is None:
        raise InputError("--bits needs a format", hint="llmcalc dtype bf16 --bits 0x3f80")
    name = asked.name.lower()
    if name in PACKED:
        return of_word(name, text, asked.scale, asked.zero)
    found = find(name)
    if isinstance(found, Integer):
        return of_integers(found, text)
    if found is not None:
        return of_block(found, text)
    form = floats.named(name)
    return floats.stored([form], [floats.from_bits(form, text)])


def _codes(asked: Questions) -> View:
    """Codes with a scale and a zero point."""
    if asked.name is None or asked.codes is None:
        raise InputError("--codes needs a format", hint="llmcalc dtype gptq --codes 3,15 ...")
    if asked.scale is None:
        raise InputError("--codes needs --scale", hint="--scale 0.01 --zero 8")
    known = find(asked.name)
    name = known.name if known is not None else asked.name.lower()
    return of_codes(name, codes_in(name, asked.codes), asked.scale, asked.zero)


def _values(name: str | None, texts: list[str], only: str | None) -> View:
    """Numbers in one format, or in every scalar float."""
    numbers = [floats.number(word) for text in texts for word in text.split(",")]
    block = find(name) if name is not None else None
    if block is not None:
        return packed.stored(block, numbers, only)
    if only:
        raise InputError(
            f"--{only} is a question about integers", hint="llmcalc dtype int8 --value 0.3,1"
        )
    return floats.stored([floats.named(name)] if name is not None else floats.every(), numbers)


def _memory(n: int, name: str | None, si: bool) -> View:
    """Bytes of so many parameters, every format or one, all of them in it."""
    if n < 1:
        raise InputError(f"--params is {n}; it must be at least 1")
    if name is not None:
        floats.no_mix(name)
    block = BLOCKS.get(getattr(find(name), "name", "")) if name is not None else None
    names = (
        [block.name] if block else [dtype(name).name] if name is not None else [*DTYPES, *BLOCKS]
    )
    rows = []
    for form in dict.fromkeys(names):
        if form in BLOCKS:
            pieces = packed.memory(BLOCKS[form], n)
            n_bytes, bits = sum(b for _, b in pieces), BLOCKS[form].bits
        else:
            pieces, n_bytes, bits = [], DTYPES[form].bytes_for(n), DTYPES[form].bits
        rows.append(
            {"dtype": form, "bits_per_weight": bits, "bytes": n_bytes}
            | {f"{k}_bytes": b for k, b in pieces}
        )
    facts = []
    if block is not None:
        facts = [Fact(f"{k}_bytes", b, f"{k} bytes", exact) for k, b in packed.memory(block, n)]
        facts.append(Fact("bits_per_weight", block.bits, "bits per weight"))
    if block is not None and block.name == "nf4":
        double = {f"{k}_bytes": b for k, b in packed.memory(BLOCKS["nf4_double"], n)}
        facts.append(Fact("double_quant", double | {"bits_per_weight": BLOCKS["nf4_double"].bits}))
    columns = [
        Column("dtype", "dtype"),
        Column("bits_per_weight", "bits per element", lambda b: f"{b:.10g}", right=True),
        Column("bytes", "bytes", exact, right=True),
        Column("bytes", "", lambda b: size(b, si=si), right=True),
    ]
    notes = [
        "every parameter in one format: a quantised model keeps some tensors wider (`llmcalc dtype"
        " --model`)"
    ]
    title = f"{exact(n)} parameters"
    drawn = partial(as_bars, title, rows, "dtype", "bytes", "bytes", by_bytes(si))
    return View("dtype/1", title, columns, rows, facts, notes=notes, picture=drawn)
