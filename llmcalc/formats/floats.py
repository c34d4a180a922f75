"""Floating-point formats bit by bit: what every code means, which code a number gets, and the
limits that follow.

Exact: values are fractions, rounding is to nearest, ties to even. Sources: IEEE 754-2019; OCP 8-bit
Floating Point (OFP8) v1.0; OCP Microscaling Formats v1.0; the fnuz variants of arXiv 2206.02915.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from llmcalc.errors import InputError

Special = Literal["inf", "-inf", "nan", "-0"]
Value = Fraction | Special


@dataclass(frozen=True, slots=True)
class Float:
    """A format: sign, exponent and mantissa bits, bias, and how infinity and NaN are told.

    ``ieee``: the largest exponent is infinity and NaN. ``fn``: no infinity, all ones is NaN.
    ``fnuz``: the code of -0 is the only NaN. ``finite``: every code is a number. ``scale``: powers
    of two alone, all ones is NaN.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    kind: Literal["ieee", "fn", "fnuz", "finite", "scale"] = "ieee"
    sign: int = 1
    stored_bits: int = 0
    """Bits in memory where they are more than the format's own (TF32)."""

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return self.sign + self.exponent + self.mantissa

    def decode(self, code: int) -> Value:
        """The number that a code stands for.

        >>> FLOATS["float8_e4m3fn"].decode(0x7E), FLOATS["bfloat16"].decode(0x3F80)
        (Fraction(448, 1), Fraction(1, 1))
        """
        negative = bool(self.sign and code >> (self.bits - 1))
        e = (code >> self.mantissa) & ((1 << self.exponent) - 1)
        m = code & ((1 << self.mantissa) - 1)
        special = self._special(negative, e, m)
        if special is not None:
            return special
        if self.kind == "scale":
            return _power(e - self.bias)
        if e == 0:
            size = m * _power(1 - self.bias - self.mantissa)
        else:
            size = ((1 << self.mantissa) + m) * _power(e - self.bias - self.mantissa)
        return ("-0" if not size else -size) if negative else size

    def _special(self, negative: bool, e: int, m: int) -> Special | None:
        ones, full = (1 << self.exponent) - 1, (1 << self.mantissa) - 1
        if self.kind == "fnuz":
            return "nan" if negative and not e and not m else None
        if self.kind in ("fn", "scale"):
            return "nan" if e == ones and m == full else None
        if self.kind == "ieee" and e == ones:
            return "nan" if m else "-inf" if negative else "inf"
        return None

    @property
    def largest(self) -> Fraction:
        """The largest finite number."""
        top = (1 << (self.exponent + self.mantissa)) - 1
        above = {"ieee": 1 << self.mantissa, "fn": 1, "scale": 1, "fnuz": 0, "finite": 0}[self.kind]
        found = self.decode(top - above)
        assert isinstance(found, Fraction)
        return found

    @property
    def smallest_normal(self) -> Fraction:
        """The smallest positive number with all its mantissa bits."""
        return _power((0 if self.kind == "scale" else 1) - self.bias)

    @property
    def smallest(self) -> Fraction:
        """The smallest positive number."""
        return (
            self.smallest_normal if self.kind == "scale" else _power(1 - self.bias - self.mantissa)
        )

    @property
    def epsilon(self) -> Fraction:
        """The gap between 1 and the next number."""
        return _power(-self.mantissa)

    @property
    def digits(self) -> int:
        """Decimal digits that survive a round trip through the format: floor(M·log10 2)."""
        return len(str(2**self.mantissa)) - 1

    def encode(self, value: Value, *, saturate: bool = False) -> int:
        """The code of the nearest number, the even one of two; of two powers the larger.

        Above the largest it is infinity, NaN, or saturated. Codes are ml_dtypes' own, with one
        difference: between 2^-127 and 2^-126 float8_e8m0fnu goes to the nearest, where ml_dtypes
        0.6 and torch 2.13 always go up.

        >>> hex(FLOATS["bfloat16"].encode(Fraction("0.1")))
        '0x3dcd'
        """
        if value == "nan":
            return self._nan()
        if value == "-0":
            if not self.sign:
                return self._nan()
            return 0 if self.kind == "fnuz" else 1 << (self.bits - 1)
        negative = value == "-inf" or (isinstance(value, Fraction) and value < 0)
        if not self.sign and (negative or value == 0):
            return self._nan()  # powers of two alone: no zero, nothing below it
        code = None if isinstance(value, str) else self._nearest(abs(value))
        if code is None:
            code = self._above(saturate)
            if not saturate and self.kind in ("fnuz", "scale"):
                return code  # their only NaN has no sign
        if negative and (code or self.kind != "fnuz"):
            code |= 1 << (self.bits - 1)
        return code

    def _nan(self) -> int:
        """The code of NaN; a format without one is an InputError."""
        if self.kind == "finite":
            raise InputError(f"{self.name} has no NaN; ml_dtypes stores it as -0")
        if self.kind == "fnuz":
            return 1 << (self.bits - 1)
        top = (1 << (self.exponent + self.mantissa)) - 1
        return top if self.kind in ("fn", "scale") else top & ~((1 << (self.mantissa - 1)) - 1)

    def _above(self, saturate: bool) -> int:
        """What stands for a number that is too large."""
        if saturate or self.kind == "finite":
            return self._nearest(self.largest) or 0
        if self.kind == "ieee":
            return ((1 << self.exponent) - 1) << self.mantissa
        return self._nan()

    def _nearest(self, size: Fraction) -> int | None:
        """The code of the nearest number without its sign, None where that is beyond the
        largest.
        """
        if self.kind == "scale":
            return self._nearest_power(size)
        e = max(_log2(size), 1 - self.bias) if size else 1 - self.bias
        steps = size / _power(e - self.mantissa)
        whole, rest = divmod(steps.numerator, steps.denominator)
        half = Fraction(rest, steps.denominator)
        if half > Fraction(1, 2) or (half == Fraction(1, 2) and whole % 2):
            whole += 1
        code = ((e + self.bias - 1) << self.mantissa) + whole
        fits = code < 1 << (self.exponent + self.mantissa)
        found = self.decode(code) if fits else "inf"
        return code if isinstance(found, Fraction) else None

    def _nearest_power(self, size: Fraction) -> int | None:
        """The nearest power of two; halfway the larger, as ml_dtypes and torch have it."""
        if size <= self.smallest:
            return 0
        e = _log2(size)
        if size / _power(e) >= Fraction(3, 2):
            e += 1
        return e + self.bias if e + self.bias < (1 << self.exponent) - 1 else None

    def neighbours(self, code: int) -> tuple[Value | None, Value | None]:
        """The next smaller and the next larger number of the format.

        >>> FLOATS["float4_e2m1"].neighbours(0b0001)
        (Fraction(0, 1), Fraction(1, 1))
        """
        if self.decode(code) in ("nan", "inf", "-inf"):
            return None, None
        negative = bool(self.sign and code >> (self.bits - 1))
        sizes = 1 << (self.exponent + self.mantissa)
        size = code & (sizes - 1)
        up = self.decode(size + 1) if size + 1 < sizes else None
        if up == "nan":
            up = None
        if size:
            down: Value | None = self.decode(size - 1)
        else:
            down = _minus(self.decode(1)) if self.sign else None
        if not negative:
            return down, up
        if not down and self.kind == "fnuz":
            return _minus(up), down  # 0 has no sign there
        return _minus(up), _minus(down)


def _minus(value: Value | None) -> Value | None:
    if isinstance(value, Fraction):
        return -value if value else "-0"
    return "-inf" if value == "inf" else value


def _power(n: int) -> Fraction:
    return Fraction(2**n) if n >= 0 else Fraction(1, 2**-n)


def _log2(size: Fraction) -> int:
    """floor(log2 size), exactly."""
    e = size.numerator.bit_length() - size.denominator.bit_length()
    return e if _power(e) <= size else e - 1


FLOATS: dict[str, Float] = {
    f.name: f
    for f in (
        Float(name="float64", exponent=11, mantissa=52, bias=1023),
        Float(name="float32", exponent=8, mantissa=23, bias=127),
        Float(name="tf32", exponent=8, mantissa=10, bias=127, stored_bits=32),
        Float(name="float16", exponent=5, mantissa=10, bias=15),
        Float(name="bfloat16", exponent=8, mantissa=7, bias=127),
        Float(name="float8_e4m3fn", exponent=4, mantissa=3, bias=7, kind="fn"),
        Float(name="float8_e5m2", exponent=5, mantissa=2, bias=15),
        Float(name="float8_e4m3fnuz", exponent=4, mantissa=3, bias=8, kind="fnuz"),
        Float(name="float8_e5m2fnuz", exponent=5, mantissa=2, bias=16, kind="fnuz"),
        Float(name="float8_e4m3_ieee", exponent=4, mantissa=3, bias=7),
        Float(name="float8_e3m4", exponent=3, mantissa=4, bias=3),
        Float(name="float8_e4m3b11fnuz", exponent=4, mantissa=3, bias=11, kind="fnuz"),
        Float(name="float8_e8m0fnu", exponent=8, mantissa=0, bias=127, kind="scale", sign=0),
        Float(name="float6_e2m3", exponent=2, mantissa=3, bias=1, kind="finite"),
        Float(name="float6_e3m2", exponent=3, mantissa=2, bias=3, kind="finite"),
        Float(name="float4_e2m1", exponent=2, mantissa=1, bias=1, kind="finite"),
    )
}
"""Every scalar float in use, by its name in ``llmcalc list dtypes``."""
