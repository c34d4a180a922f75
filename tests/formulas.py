"""An independent reader of printed formulas: it knows the notation, and nothing of the code that
wrote them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_']*|\d+|[⁰¹²³⁴⁵⁶⁷⁸⁹]+|[()+\-·/,]")


def evaluate(formula: str, sizes: Mapping[str, int]) -> int:
    """The value of a printed formula, its sizes given by symbol: ``12d² + 13d``, ``ceil(T /
    16)·16``, ``min(T, W)``.
    """
    python: list[str] = []
    for token in _TOKEN.findall(formula):
        before = python[-1] if python else ""
        if token[0] in _SUPERSCRIPT:
            python.append("**" + "".join(str(_SUPERSCRIPT.index(c)) for c in token))
        elif token in ("ceil", "floor", "min", "max"):
            python.append(token)
        elif token[0].isalpha() or token[0] == "_":
            if before and (before[-1].isdigit()):
                python.append("*")
            python.append(f"sizes[{token!r}]")
        else:
            python.append({"·": "*", "/": "/"}.get(token, token))
    text = "".join(python)
    text = text.replace("ceil(", "ceil_(").replace("floor(", "floor_(")
    names = {"sizes": dict(sizes), "ceil_": math.ceil, "floor_": math.floor, "min": min, "max": max}
    from fractions import Fraction

    text = re.sub(r"(?<![\w'\"\]])(\d+)(?![\w'\"])", r"F(\1)", text)
    names["sizes"] = {k: Fraction(v) for k, v in sizes.items()}
    value = eval(text, {"__builtins__": {}, "F": Fraction, **names})
    assert value == int(value), formula
    return int(value)
