"""``llmcalc dtype --live``: formats on a device, their bytes by its allocator and their bits
against the CPU's.
"""

from __future__ import annotations

from typing import Any

import torch

from llmcalc.cli.dtype.floats import named
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError, UnavailableError
from llmcalc.formats.block import find
from llmcalc.formats.element import dtype, find_dtype
from llmcalc.live.device import FLOATS, choose
from llmcalc.live.measure import memory
from llmcalc.units import exact

N = 1 << 22
"""Numbers that are cast: every sign, exponent and upper mantissa of float32, so all specials and
subnormals.
"""


def on_device(name: str | None, where: str) -> tuple[View, int]:
    """What a cast on a device gives: rows per format, and how many of them are not what was
    predicted.
    """
    device = choose(where)
    known = _own(name) if name is not None else None
    if known is not None and known not in FLOATS:
        raise InputError(f"torch casts to no {known}", hint=f"formats: {', '.join(FLOATS)}")
    codes = torch.arange(N, dtype=torch.int64) * (2**32 // N)
    numbers = codes.to(torch.int32).view(torch.float32)
    rows = [
        _row(form, kind, numbers, device) for form, kind in FLOATS.items() if known in (None, form)
    ]
    columns = [
        Column("dtype", "dtype"),
        Column("bytes_predicted", "bytes predicted", exact, right=True),
        Column("bytes", "bytes measured", exact, right=True),
        Column("by", "by"),
        Column("bits_differ", "codes unlike the CPU's", exact, right=True),
    ]
    wrong = sum(r["bytes"] != r["bytes_predicted"] or r["bits_differ"] > 0 for r in rows)
    facts = [
        Fact("device", str(device), "device"),
        Fact("numbers", N, "float32 numbers cast", exact),
    ]
    notes = ["NaN is compared as NaN, whatever its payload"]
    return View(
        kind="dtype/1",
        title="casts on the device",
        columns=columns,
        rows=rows,
        facts=facts,
        notes=notes,
    ), wrong


def _own(name: str) -> str:
    """A format's own name, also where torch has no dtype for it."""
    found = find(name)
    if found is not None:
        return found.name
    known = find_dtype(name)
    return known.name if known is not None else named(name).name


def _row(
    form: str, kind: torch.dtype, numbers: torch.Tensor, device: torch.device
) -> dict[str, Any]:
    try:
        here = numbers.to(device)
        before = memory(device).allocated
        cast = here.to(kind, copy=True)
        grown = memory(device).allocated - before
    except (RuntimeError, TypeError) as error:
        raise UnavailableError(
            f"{device} does not cast to {form}: {str(error).splitlines()[0]}"
        ) from None
    counted = device.type in ("cuda", "mps")
    want, got = numbers.to(kind), cast.cpu()
    size = kind.itemsize
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    nan = torch.isnan(want.float()) & torch.isnan(got.float())
    return {
        "dtype": form,
        "bytes_predicted": dtype(form).bytes_for(numbers.numel()),
        "bytes": grown if counted else cast.untyped_storage().nbytes(),
        "by": "the allocator" if counted else "the tensor's storage",
        "bits_differ": int(((want.view(whole) != got.view(whole)) & ~nan).sum()),
    }
