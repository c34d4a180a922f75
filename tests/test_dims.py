"""Dim: number and formula are one object."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcalc.dims import Dim, ceil_div, least, most, round_up
from tests.formulas import evaluate

NAMES = ["d_model", "n_layers", "head_dim", "n_kv_heads", "some_size"]


def leaves() -> st.SearchStrategy[Dim | int]:
    values = {name: 3 + 2 * i for i, name in enumerate(NAMES)}
    named = st.sampled_from(NAMES).map(lambda n: Dim(values[n], n))
    return st.one_of(named, st.integers(1, 9), st.integers(1, 9).map(Dim))


def trees() -> st.SearchStrategy[Dim | int]:
    def grow(inner: st.SearchStrategy[Dim | int]) -> st.SearchStrategy[Dim | int]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            pair.map(lambda p: p[0] + p[1]),
            pair.map(lambda p: p[0] * p[1]),
            pair.map(lambda p: least(p[0], p[1])),
            pair.map(lambda p: most(p[0], p[1])),
            pair.map(lambda p: ceil_div(p[0], p[1])),
            pair.map(lambda p: round_up(p[0], p[1])),
        )

    return st.recursive(leaves(), grow, max_leaves=8)


@given(trees())
def test_the_printed_formula_evaluates_to_the_number(value: Dim | int) -> None:
    made = Dim(1) * value
    symbols = {"d_model": "d", "n_layers": "L", "head_dim": "d_h", "n_kv_heads": "n_kv"}
    sizes = {symbols.get(name, name): size for name, size in made.sizes.items()}
    assert evaluate(made.formula, sizes) == made
    assert evaluate(made.long_formula, made.sizes) == made


def test_like_terms_collect_as_in_the_papers() -> None:
    d = Dim(768, "d_model")
    block = (
        2 * d + (3 * d * d + 3 * d) + (d * d + d) + 2 * d + (4 * d * d + 4 * d) + (4 * d * d + d)
    )
    assert (block.formula, int(block)) == ("12d² + 13d", 12 * 768**2 + 13 * 768)


def test_a_group_of_layers_stays_a_factor() -> None:
    d, n = Dim(768, "d_model"), Dim(12, "n_layers")
    assert (n * (12 * d * d + 13 * d)).formula == "L·(12d² + 13d)"


def test_neutral_elements_go_by_formula_and_not_by_value() -> None:
    one = Dim(1, "n_kv_heads")
    assert (2 * one * Dim(128, "head_dim")).formula == "2·n_kv·d_h"
    assert (1 * one).formula == "n_kv"


def test_differences_collect() -> None:
    d, v = Dim(4, "d_model"), Dim(9, "vocab")
    assert (v * d + 2 * d - v * d).formula == "2d"


def test_with_numbers_puts_every_size_in() -> None:
    d = Dim(768, "d_model")
    assert (12 * d * d + 13 * d).with_numbers == "12·768² + 13·768"


def test_a_dim_is_an_int() -> None:
    d = Dim(7, "d_model")
    assert d == 7 and hash(d) == hash(7) and isinstance(d, int) and {7: "x"}[d] == "x"


@pytest.mark.parametrize(
    ("value", "to", "wanted"), [(1, 16, 16), (16, 16, 16), (17, 16, 32), (0, 16, 0)]
)
def test_round_up(value: int, to: int, wanted: int) -> None:
    assert round_up(value, to) == wanted


def test_a_product_below_a_fraction_has_brackets() -> None:
    d, n = Dim(3, "d_model"), Dim(5, "n_layers")
    assert ceil_div(d, d * n).formula == "ceil(d / (d·L))"
