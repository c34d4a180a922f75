"""Formats of public reports that state bits per weight and no layout: so many bytes for each of a
matrix.
"""

from __future__ import annotations

from fractions import Fraction

from llmcalc.dims import Dim, ceil_div
from llmcalc.formats.element import dtype
from llmcalc.formats.layouts import Piece, Pieces
from llmcalc.formats.scheme import Packing, Scheme
from llmcalc.formats.stored import Format, Packed, Plain


def of_bytes(each: Fraction | None) -> Format:
    """Every matrix, the head and the table too, in so many bytes per weight; the rest in
    16 bits.
    """
    wide = dtype("bfloat16")
    if each is None:
        return Plain(wide=wide)

    def pieces(i: Dim, o: Dim, p: Packing) -> Pieces:
        n_bytes = ceil_div(i * o * each.numerator, each.denominator)
        return {"weight": Piece(shape=(n_bytes,), dtype="uint8")}

    scheme = Scheme(name=f"{float(each):g} bytes", pieces=pieces, formula="", embeddings=True)
    return Packed(scheme=scheme, packing=Packing(), wide=wide)
