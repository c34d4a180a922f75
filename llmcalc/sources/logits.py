"""Logits from a line, a JSON, NPY or safetensors file, or standard input.

Nothing in them is executed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError, UnavailableError
from llmcalc.text import shorten, shown

LARGEST = 2**31


def parse(text: str) -> list[float]:
    """Numbers between commas or spaces; ``nan`` and ``inf`` are numbers too."""
    values = []
    for i, word in enumerate(text.replace(",", " ").split()):
        try:
            values.append(float(word))
        except ValueError:
            raise InputError(f"the logit at index {i} is {shorten(word)!r}, not a number") from None
    return values


def read(name: str, tensor: str | None = None) -> tuple[Any, str]:
    """The logits of a file (``-`` is standard input) and the dtype that they were stored in."""
    if name == "-":
        if sys.stdin is None:
            raise UnavailableError("standard input is closed")
        return _from_text(sys.stdin.read(LARGEST), "standard input"), "text"
    path = Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"no file is called {shorten(name)}")
    if path.stat().st_size > LARGEST:
        raise InputError(f"{shorten(name)} is larger than 2 GiB")
    try:
        if path.suffix == ".npy":
            return _from_npy(path)
        if path.suffix == ".safetensors":
            return _from_safetensors(path, tensor)
        return _from_text(path.read_text(), shorten(name)), "text"
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{shorten(name)} cannot be read") from None


def _from_text(text: str, name: str) -> Any:
    """A JSON list, or plain numbers."""
    if not text.lstrip().startswith(("[", "{")):
        return parse(text)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{name} is no JSON list of numbers") from None
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not isinstance(values, list):
        raise InputError(f"{name} is no list of numbers")
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name}: the entry at index {i} is {shown(value)}, not a number")
    return values


def _from_npy(path: Path) -> tuple[Any, str]:
    import numpy as np

    try:
        values = np.load(path, allow_pickle=False)
    except Exception:
        # numpy reads the header as Python source: whatever goes wrong there is the file's fault
        raise InputError(f"{path.name} is no NPY file of numbers") from None
    if getattr(values, "dtype", None) is None or values.dtype.kind not in "fiu":
        raise InputError(f"{path.name} does not hold numbers")
    return values.squeeze(), str(values.dtype)


def _from_safetensors(path: Path, tensor: str | None) -> tuple[Any, str]:
    import numpy as np
    from safetensors import deserialize

    from llmcalc.sources import safetensors

    header = safetensors.read(path)  # every offset is checked here
    names = list(header.tensors)
    name = tensor
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in header.tensors:
        raise InputError(
            f"which tensor of {path.name}?", hint=f"--tensor {', '.join(map(shorten, names[:4]))}"
        )
    stored = header.tensors[name]
    kinds = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
    if stored.dtype not in kinds:
        raise InputError(f"{shorten(name)} is {stored.dtype}; logits are floats")
    entries: Any = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    data = next(entry["data"] for key, entry in entries if key == name)
    values: Any = np.frombuffer(data, dtype=kinds[stored.dtype])
    if stored.dtype == "bfloat16":
        # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(stored.shape).squeeze(), stored.dtype
