"""Dim: an int that carries its formula, so that number and formula are one object.

Arithmetic records what it did; the formula is put in order only when somebody asks for it: a sum of
monomials (integer coefficient, sizes with powers), like terms collected, so that GPT-2's block
reads ``12d² + 13d``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, TypeAlias

SYMBOLS = {
    "d_model": "d",
    "n_layers": "L",
    "n_heads": "n_h",
    "n_kv_heads": "n_kv",
    "head_dim": "d_h",
    "vocab": "V",
    "max_context": "C",
    "window": "W",
    "n_experts": "E",
    "n_active_experts": "k",
    "context": "T",
    "tokens": "T",
    "past": "P",
    "batch": "B",
    "rank": "r",
    "element_bytes": "b",
    "q_lora_rank": "r_q",
    "kv_lora_rank": "r_kv",
    "qk_nope_head_dim": "d_n",
    "qk_rope_head_dim": "d_r",
    "v_head_dim": "d_v",
    "d_ff_expert": "d_e",
    "n_shared_experts": "E_s",
    "n_dense_layers": "L_dense",
    "n_moe_layers": "L_moe",
    "n_sliding_layers": "L_sw",
    "n_full_layers": "L_full",
    "n_linear_layers": "L_lin",
    "n_attention_layers": "L_attn",
    "d_state": "N",
    "d_conv": "K",
    "d_inner": "d_in",
    "dt_rank": "R",
    "n_groups": "G",
    "n_linear_heads": "n_lv",
    "linear_num_key_heads": "n_lk",
    "linear_key_head_dim": "d_lk",
    "linear_value_head_dim": "d_lv",
    "linear_head_dim": "d_l",
}
"""Short symbols of papers for our names; a size without one prints under its own name."""

_LAST = ("element_bytes", "key_bytes", "value_bytes")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Node: TypeAlias = tuple[Any, ...]
"""What an operation did: ("num", n), ("sym", name, value), or (add, mul, min, max, ceil, floor;
left; right).
"""

Atom: TypeAlias = tuple[Any, ...]
"""A factor that is not taken apart: ("sym", name, value), ("sum", terms) or (min, max, ceil, floor;
terms; terms).
"""

Term: TypeAlias = tuple[int, tuple[tuple[Atom, int], ...]]
"""A monomial: coefficient, then atoms with their powers in the order of first use."""


class Dim(int):
    """A size with its formula; behaves as the plain int everywhere else.

    Sums and products of Dims are Dims. A neutral element is dropped by its formula and not by its
    value: a plain 1 vanishes from a product, ``Dim(1, "n_kv_heads")`` stays.

    >>> d = Dim(768, "d_model")
    >>> (12 * d * d + 13 * d).formula
    '12d² + 13d'
    >>> 4 * d, (4 * d).formula
    (3072, '4d')
    """

    node: Node

    def __new__(cls, value: int, name: str | None = None, *, node: Node | None = None) -> Dim:
        self = super().__new__(cls, value)
        self.node = node or (("sym", name, int(value)) if name else ("num", int(value)))
        return self

    def __add__(self, other: int) -> Dim:
        if not isinstance(other, int):
            return NotImplemented
        return Dim(int(self) + int(other), node=("add", self.node, node_of(other)))

    def __radd__(self, other: int) -> Dim:
        return Dim(int(other) + int(self), node=("add", node_of(other), self.node))

    def __sub__(self, other: int) -> Dim:
        return self + -1 * Dim(other, node=node_of(other))

    def __mul__(self, other: int) -> Dim:
        if not isinstance(other, int):
            return NotImplemented
        return Dim(int(self) * int(other), node=("mul", self.node, node_of(other)))

    def __rmul__(self, other: int) -> Dim:
        return Dim(int(other) * int(self), node=("mul", node_of(other), self.node))

    def __floordiv__(self, other: int) -> Dim:
        return Dim(int(self) // int(other), node=("floor", self.node, node_of(other)))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (int(self),)

    @property
    def formula(self) -> str:
        """The formula in short symbols, as papers write it."""
        return _write(_terms(self.node), lambda name, _: SYMBOLS.get(name, name))

    @property
    def long_formula(self) -> str:
        """The formula under the names that code, flags and JSON use."""
        return _write(_terms(self.node), lambda name, _: name)

    @property
    def with_numbers(self) -> str:
        """The formula with every size replaced by its value."""
        return _write(_terms(self.node), lambda _, value: str(value))

    @property
    def sizes(self) -> dict[str, int]:
        """Every named size that the formula uses, with its value."""
        return dict(_sizes(self.node))


def node_of(value: int) -> Node:
    """The record behind a Dim, or a plain number's."""
    return value.node if isinstance(value, Dim) else ("num", int(value))


def dim(value: int) -> Dim:
    """Any int as a Dim, its formula kept where it has one."""
    return value if isinstance(value, Dim) else Dim(value)


def product(factors: Iterable[int]) -> Dim:
    """The product of some sizes, as a Dim."""
    return dim(prod(factors, start=Dim(1)))


def total(summands: Iterable[int]) -> Dim:
    """The sum of some sizes, as a Dim."""
    return dim(sum(summands, start=Dim(0)))


def least(a: int, b: int) -> Dim:
    """The smaller of two sizes, written ``min(a, b)``."""
    return Dim(min(int(a), int(b)), node=("min", node_of(a), node_of(b)))


def most(a: int, b: int) -> Dim:
    """The larger of two sizes, written ``max(a, b)``."""
    return Dim(max(int(a), int(b)), node=("max", node_of(a), node_of(b)))


def ceil_div(a: int, b: int) -> Dim:
    """How many b it takes to hold a, written ``ceil(a / b)``.

    >>> ceil_div(Dim(100, "context"), 16).formula, int(ceil_div(100, 16))
    ('ceil(T / 16)', 7)
    """
    return Dim(-(-int(a) // int(b)), node=("ceil", node_of(a), node_of(b)))


def round_up(a: int, to: int) -> Dim:
    """The next multiple of ``to``, written ``ceil(a / to)·to``."""
    return ceil_div(a, to) * to


def _terms(node: Node) -> tuple[Term, ...]:
    """A recorded operation as a sum of monomials, like terms collected, higher degrees first."""
    kind = node[0]
    if kind == "num":
        return ((node[1], ()),) if node[1] else ()
    if kind == "sym":
        return ((1, ((node, 1),)),)
    if kind == "add":
        return _collect(term for part in _flatten(node, "add") for term in _terms(part))
    if kind == "mul":
        return _multiply([_terms(part) for part in _flatten(node, "mul")])
    return ((1, (((kind, _terms(node[1]), _terms(node[2])), 1),)),)


def _flatten(node: Node, kind: str) -> Iterator[Node]:
    """The operands of a chain of one operation, left to right, without recursion (a sum may have
    thousands).
    """
    stack = [node]
    while stack:
        top = stack.pop()
        if top[0] == kind:
            stack += (top[2], top[1])
        else:
            yield top


def _collect(terms: Iterator[Term]) -> tuple[Term, ...]:
    sums: dict[frozenset[tuple[Atom, int]], Term] = {}
    for coefficient, factors in terms:
        key = frozenset(factors)
        sums[key] = (
            (sums[key][0] + coefficient, sums[key][1]) if key in sums else (coefficient, factors)
        )
    kept = [term for term in sums.values() if term[0]]
    return tuple(sorted(kept, key=lambda term: -sum(power for _, power in term[1])))


def _multiply(factors: list[tuple[Term, ...]]) -> tuple[Term, ...]:
    """A product; a sum of several terms stays together as one factor in brackets."""
    signs = [terms for terms in factors if terms == ((-1, ()),)]
    others = [terms for terms in factors if terms != ((-1, ()),)]
    if (
        signs and len(others) == 1
    ):  # -1 times a sum: the sign goes inside, so that a difference collects like terms
        return tuple(((-1) ** len(signs) * c, atoms) for c, atoms in others[0])
    coefficient, powers = 1, dict[Atom, int]()
    for terms in factors:
        if not terms:
            return ()
        if len(terms) > 1:
            terms = ((1, ((("sum", terms), 1),)),)
        coefficient *= terms[0][0]
        for atom, power in terms[0][1]:
            powers[atom] = powers.get(atom, 0) + power
    if coefficient == 1 and len(powers) == 1 and 1 in powers.values():
        ((atom, _),) = powers.items()
        if atom[0] == "sum":
            return tuple(atom[1])
    return ((coefficient, tuple(powers.items())),)


def _write(terms: tuple[Term, ...], name: Callable[[str, int], str]) -> str:
    text = ""
    for coefficient, factors in terms:
        sign = (" - " if coefficient < 0 else " + ") if text else ("-" if coefficient < 0 else "")
        text += sign + _write_term(abs(coefficient), factors, name)
    return text or "0"


def _write_term(
    coefficient: int, factors: tuple[tuple[Atom, int], ...], name: Callable[[str, int], str]
) -> str:
    factors = tuple(
        sorted(
            factors, key=lambda factor: factor[0][1] in _LAST if factor[0][0] == "sym" else False
        )
    )
    written = [
        _write_atom(a, name) + (str(p).translate(_SUPERSCRIPT) if p > 1 else "") for a, p in factors
    ]
    if coefficient == 1 and written:
        return "·".join(written)
    if len(written) == 1 and len(_write_atom(factors[0][0], name)) == 1 and written[0][0].isalpha():
        return f"{coefficient}{written[0]}"
    return "·".join([str(coefficient), *written])


def _write_atom(atom: Atom, name: Callable[[str, int], str]) -> str:
    kind = atom[0]
    if kind == "sym":
        return name(atom[1], atom[2])
    if kind == "sum":
        return f"({_write(atom[1], name)})"
    left, right = _write(atom[1], name), _write(atom[2], name)
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})"
    if len(atom[1]) > 1:
        left = f"({left})"
    if "·" in right or not (
        right.isdigit() or right.isidentifier()
    ):  # a middle dot passes as part of an identifier
        right = f"({right})"
    return f"{kind}({left} / {right})"


def _sizes(node: Node) -> Iterator[tuple[str, int]]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part[0] == "sym":
            yield part[1], part[2]
        elif part[0] != "num":
            waiting += reversed(part[1:])
