"""Which device and number format a live run uses.

What is not there is an UnavailableError in one line.
"""

from __future__ import annotations

import torch

from llmcalc.errors import InputError, UnavailableError
from llmcalc.formats.element import find_dtype

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
"""Formats that a model can be run in."""
FLOATS = DTYPES | {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}
"""Formats that torch casts to, by our names."""


def choose(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` is the first accelerator there is, else the CPU."""
    if name == "auto":
        return torch.device(_best())
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and not number.isdigit()):
        raise InputError(f"--run-on {name!r} is not one of auto, cpu, cuda, cuda:1, mps")
    if kind == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= found:
            there = f"cuda:0 to cuda:{found - 1}" if found else "no CUDA device"
            raise UnavailableError(
                f"{name} is not here: torch {torch.__version__} sees {there}",
                hint="try --run-on cpu",
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UnavailableError(
            f"{name} is not here: torch {torch.__version__} sees no MPS device",
            hint="try --run-on cpu",
        )
    return torch.device(name)


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def float_dtype(name: str) -> torch.dtype:
    """A format to run in, under any of its spellings."""
    known = find_dtype(name)
    found = DTYPES.get(known.name if known else "")
    if found is None:
        raise InputError(f"a model cannot be run in {name}", hint=f"one of {', '.join(DTYPES)}")
    return found


def name_of(dtype: torch.dtype) -> str:
    """Our name of a torch format."""
    return str(dtype).removeprefix("torch.")


def accelerators() -> list[tuple[str, int]]:
    """The GPUs that torch sees, NVIDIA's or AMD's: name and bytes."""
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [(str(p.name), int(p.total_memory)) for p in found]
