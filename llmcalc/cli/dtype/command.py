"""``llmcalc dtype``: what a number format holds, what it does to a number, a tensor, a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from llmcalc.cli.dtype import blocks as packed
from llmcalc.cli.dtype import floats
from llmcalc.cli.dtype.codes import PACKED, codes_in, of_block, of_codes, of_integers, of_word
from llmcalc.cli.options.model import OutputOptions, count_in, takes
from llmcalc.cli.output.pictures import as_bars, by_bytes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError
from llmcalc.formats.block import BLOCKS, INTEGERS, Integer, find
from llmcalc.formats.element import DTYPES, find_dtype
from llmcalc.text import shorten
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
    if len(_asks(asked)) > 1:
        raise InputError(f"{' and '.join(_asks(asked))} are different questions")
    if asked.live:
        _live(asked, output)
        return
    if asked.device != "auto":
        raise InputError("--run-on is where --live casts")
    write(_answer(asked, output.si), output)


def _asks(asked: Questions) -> list[str]:
    """The questions that are asked, by their options."""
    asks = {
        "--value": asked.value,
        "--bits": asked.bits,
        "--codes": asked.codes,
        "--params": asked.params,
        "--model": asked.model,
        "--tensor": asked.tensor,
    }
    return [option for option, given in asks.items() if given is not None]


def _live(asked: Questions, output: OutputOptions) -> None:
    """Casts on a device, which take a format and nothing else."""
    details = {
        "--symmetric": asked.symmetric,
        "--affine": asked.affine,
        "--scale": asked.scale is not None,
        "--zero": asked.zero is not None,
    }
    others = _asks(asked) + [option for option, given in details.items() if given]
    if others:
        raise InputError(f"--live casts its own numbers: {others[0]} does nothing there")
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
    packed_word = asked.bits is not None and name is not None and name.lower() in PACKED
    if scaled and asked.codes is None and not packed_word:
        raise InputError("--scale and --zero go with --codes, or with --bits of gptq and awq")
    if asked.codes is not None:
        return _with_names(_codes(asked, asked.codes))
    if asked.model is not None:
        from llmcalc.cli.dtype.model import of_model

        return of_model(asked.model, name, si)
    if asked.tensor is not None:
        from llmcalc.cli.dtype.tensor import of_tensor

        return of_tensor(asked.tensor, name)
    if asked.params is not None:
        return _memory(count_in("--params", asked.params), name, si)
    if asked.value:
        return _with_names(_values(name, asked.value, only))
    if asked.bits is None:
        return floats.limits(name)
    return _with_names(_bits(asked, asked.bits))


def _with_names(view: View) -> View:
    """Infinities and NaN by their names, since JSON has no numbers for them."""
    rows = [
        {
            key: str(x) if isinstance(x, float) and not math.isfinite(x) else x
            for key, x in row.items()
        }
        for row in view.rows
    ]
    return replace(view, rows=rows)


def _bits(asked: Questions, text: str) -> View:
    """A code of a scalar, one block's bytes, integers, or a packed word."""
    if asked.name is None:
        raise InputError("--bits needs a format", hint="llmcalc dtype bf16 --bits 0x3f80")
    name = asked.name.lower()
    if name in PACKED:
        _must_begin(text, "0x", "0b")
        if asked.scale is not None or asked.zero is not None:
            _must_scale(asked.scale, asked.zero, name)
        view = of_word(name, text, asked.scale, asked.zero)
        return replace(view, notes=[*view.notes, _IN_MEMORY])
    found = find(name)
    if found is None:
        form = floats.named(name)
        _must_begin(text, "0x", "0b")
        return floats.from_bits(form, text)
    _must_begin(text, "0x")
    return of_integers(found, text) if isinstance(found, Integer) else of_block(found, text)


_IN_MEMORY = "the int32 is written as a number; its lowest byte lies first in memory"


def _must_begin(text: str, *starts: str) -> None:
    """A code says its base: 10 is sixteen to one reader and ten to another."""
    if not text.strip().lower().startswith(starts):
        raise InputError(
            f"--bits {shorten(text)!r} is no hexadecimal number that begins with 0x, such as 0x7e"
        )


def _codes(asked: Questions, text: str) -> View:
    """Codes with a scale and a zero point."""
    if asked.name is None:
        raise InputError("--codes needs a format", hint="llmcalc dtype gptq --codes 3,15 ...")
    known = find(asked.name)
    name = known.name if known is not None else asked.name.lower()
    codes = codes_in(name, text)
    _must_scale(asked.scale, asked.zero, name)
    return of_codes(name, codes, asked.scale, asked.zero)


def _must_scale(scale: float | None, zero: int | None, name: str) -> None:
    """A scale that is a number, and a zero point that is a code.

    A scheme's zero point has no default: its symmetric codes lie around 8, which GPTQ's first
    checkpoint format stores as 7.
    """
    if scale is None:
        raise InputError("codes become numbers by --scale", hint="--scale 0.01 --zero 8")
    if not math.isfinite(scale):
        raise InputError(f"--scale is {scale}; it must be a finite number")
    if zero is None:
        if name in PACKED:
            usual = "7 in checkpoint format v1, 8 in v2" if name == "gptq" else "8"
            raise InputError(
                f"codes of {name} need --zero, as it is stored",
                hint=f"symmetric codes have {usual}",
            )
        return
    form = INTEGERS["uint4" if name in PACKED else name]
    if not form.lowest <= zero <= form.highest:
        raise InputError(
            f"--zero {shorten(str(zero))} is not from {form.lowest} to {form.highest} ({form.name})"
        )


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
    found = find(name) if name is not None else None
    block = BLOCKS.get(found.name) if found is not None else None
    if name is None:
        rows = [_bytes_in(form, n) for form in dict.fromkeys([*DTYPES, *BLOCKS])]
    else:
        rows = [_bytes_in(found.name if found is not None else _scalar(name), n)]
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
    return View(
        kind="dtype/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
        picture=drawn,
    )


def _scalar(name: str) -> str:
    """A format without blocks by its own name: stored in files, or computed in alone."""
    known = find_dtype(name)
    return known.name if known is not None else floats.named(name).name


def _bytes_in(form: str, n: int) -> dict[str, Any]:
    """So many parameters in one format: bits of each, bytes, and the pieces of a block."""
    pieces = packed.memory(BLOCKS[form], n) if form in BLOCKS else []
    if form in BLOCKS:
        bits: float = BLOCKS[form].bits
        n_bytes = sum(piece for _, piece in pieces)
    elif form in DTYPES:
        bits = DTYPES[form].bits
        n_bytes = DTYPES[form].bytes_for(n)
    else:
        bits = INTEGERS[form].bits if form in INTEGERS else floats.bits_in_memory(form)
        n_bytes = math.ceil(n * bits / 8)
    row: dict[str, Any] = {"dtype": form, "bits_per_weight": bits, "bytes": n_bytes}
    return row | {f"{key}_bytes": piece for key, piece in pieces}
