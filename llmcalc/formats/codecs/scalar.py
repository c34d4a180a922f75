"""Arrays through a scalar float and back, by ml_dtypes and numpy, saturating: what a writer of
weights does.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from llmcalc.errors import InputError
from llmcalc.formats.floats import FLOATS

Array = NDArray[np.float64]

KINDS: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e4m3_ieee": ml_dtypes.float8_e4m3,
    "float8_e3m4": ml_dtypes.float8_e3m4,
    "float8_e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float6_e2m3": ml_dtypes.float6_e2m3fn,
    "float6_e3m2": ml_dtypes.float6_e3m2fn,
    "float4_e2m1": ml_dtypes.float4_e2m1fn,
}


def stored(numbers: Array, name: str) -> Array:
    """Finite numbers as the format holds them: to nearest, ties to even.

    Beyond the largest they are the largest.

    >>> stored(np.array([0.1, 465.0, 3e-3]), "float8_e4m3fn").tolist()
    [0.1015625, 448.0, 0.00390625]
    """
    top = float(FLOATS[name].largest)
    held = np.clip(numbers, -top, top)
    if name == "tf32":
        return _tf32(held)
    if name not in KINDS:
        raise InputError(f"{name} is no scalar float")
    return np.asarray(held.astype(KINDS[name]).astype(np.float64))


def _tf32(numbers: Array) -> Array:
    """float32 with the last 13 bits of the mantissa rounded away, as tensor cores read it."""
    bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits += 0xFFF + ((bits >> np.uint64(13)) & np.uint64(1))
    bits &= np.uint64(0xFFFFE000)
    return np.asarray(bits.astype(np.uint32).view(np.float32).astype(np.float64))
