"""Symbolic dims: arithmetic, equality, bounds, exact division."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.compiler import dims
from dla.compiler.dims import symbol

BATCH, SEQ = symbol("batch", 8), symbol("seq", 100)


def test_equal_expressions_are_equal_however_they_were_made():
    """Products are multiplied out, and terms are in one order."""
    assert (BATCH + 1) * SEQ == SEQ * BATCH + SEQ
    assert hash((BATCH + 1) * SEQ) == hash(SEQ * BATCH + SEQ)
    assert BATCH + SEQ != BATCH * SEQ


def test_what_does_not_depend_on_a_symbol_is_a_number():
    """Symbols that cancel leave an int."""
    assert BATCH - BATCH == 0
    assert (BATCH + 3) - BATCH == 3
    assert isinstance((BATCH + 3) - BATCH, int)
    assert BATCH * 0 == 0


def test_text_reads_like_arithmetic():
    """Constants come last."""
    assert str(BATCH * SEQ * 2 + 1) == "2 * batch * seq + 1"
    assert str(SEQ - 4) == "seq - 4"
    assert str((SEQ + 1) // 2) == "(seq + 1 // 2)"


def test_exact_division():
    """A quotient where one exists for all sizes, else None."""
    assert dims.divide(BATCH * SEQ * 64, SEQ) == BATCH * 64
    assert dims.divide(BATCH * SEQ * 64, 16) == BATCH * SEQ * 4
    assert dims.divide(BATCH * 3, 2) is None
    assert dims.divide(BATCH + SEQ, BATCH + SEQ) == 1
    assert dims.divide(6, 4) is None
    assert dims.divide((BATCH + SEQ + 1) * SEQ * 4, (BATCH + SEQ + 1) * 2) == SEQ * 2
    assert dims.divide((BATCH + SEQ) * (BATCH - SEQ + 2), BATCH - SEQ + 2) == BATCH + SEQ
    assert dims.divide(BATCH * SEQ + 1, BATCH + SEQ) is None


def test_floor_division_simplifies_where_it_is_exact_or_constant():
    """Otherwise it is an atom."""
    assert BATCH * 6 // 3 == BATCH * 2
    assert symbol("n", 3) // 4 == 0
    assert str(SEQ // 2) == "(seq // 2)"


def test_extremes_are_decided_by_bounds():
    """Exporters write 2**63 - 1 for "to the end"."""
    assert dims.minimum(SEQ, 2**62) == SEQ
    assert dims.maximum(SEQ, 0) == SEQ
    assert dims.bound(dims.minimum(SEQ, 50)) == 50


def test_substitution_gives_numbers_or_other_sizes():
    """Inside floors, too."""
    assert dims.substitute(BATCH * SEQ + 1, {"batch": 2, "seq": 5}) == 11
    assert dims.substitute(SEQ // 2, {"seq": BATCH * 4}) == BATCH * 2


_LEAVES = st.sampled_from([BATCH, SEQ]) | st.integers(-9, 9)


def _combine(children: Any) -> Any:
    pair = st.tuples(children, children)
    return (
        pair.map(lambda p: p[0] + p[1])
        | pair.map(lambda p: p[0] - p[1])
        | pair.map(lambda p: p[0] * p[1])
        | st.tuples(children, st.integers(1, 7)).map(lambda p: p[0] // p[1])
        | st.tuples(children, st.integers(1, 7)).map(lambda p: p[0] % p[1])
        | pair.map(lambda p: dims.minimum(*p))
        | pair.map(lambda p: dims.maximum(*p))
    )


@settings(deadline=None, max_examples=200)
@given(st.recursive(_LEAVES, _combine, max_leaves=8), st.integers(0, 8), st.integers(0, 100))
def test_values_stay_inside_the_bounds(dim, batch, seq):
    """Interval arithmetic is sound."""
    low, high = dims.interval(dim)
    assert low <= dims.evaluate(dim, {"batch": batch, "seq": seq}) <= high


@settings(deadline=None, max_examples=200)
@given(st.recursive(_LEAVES, _combine, max_leaves=5), st.recursive(_LEAVES, _combine, max_leaves=5),
       st.integers(0, 8), st.integers(0, 100))  # fmt: skip
def test_arithmetic_commutes_with_evaluation(a, b, batch, seq):
    """Computing first or putting in numbers first is the same."""
    sizes = {"batch": batch, "seq": seq}
    x, y = dims.evaluate(a, sizes), dims.evaluate(b, sizes)
    assert dims.evaluate(a + b, sizes) == x + y
    assert dims.evaluate(a - b, sizes) == x - y
    assert dims.evaluate(a * b, sizes) == x * y
    assert dims.evaluate(dims.minimum(a, b), sizes) == min(x, y)
    quotient = dims.divide(a, b)
    if quotient is not None and y:
        assert dims.evaluate(quotient, sizes) * y == x


def test_differences_of_extremes_have_exact_bounds():
    """What is missing to the larger of two sizes is never negative, and at most that one."""
    assert dims.interval(dims.maximum(SEQ, 10) - SEQ) == (0, 10)
    assert dims.interval(SEQ - dims.minimum(SEQ, 10)) == (0, dims.bound(SEQ) - 10)
    wide = sum((dims.maximum(SEQ, k) for k in range(1, 40)), 0)
    assert dims.interval(wide)[1] == sum(max(dims.bound(SEQ), k) for k in range(1, 40))


def test_a_symbol_may_be_zero():
    """Nothing can be divided by it then."""
    with pytest.raises(ZeroDivisionError):
        dims.evaluate(4 // SEQ, {"seq": 0})
