"""Arithmetic that changes nothing goes; what is broadcast is computed once."""

from __future__ import annotations

import numpy as np
import pytest
from canonical import BATCH, SEQ, canonical, canonical_graph

from dla.compiler.builder import GraphBuilder
from dla.isa.dtypes import DType

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


def outcome(formula, dtype=F32, shape=(BATCH, 6)):
    """What is left of formula(b, x)."""
    b = GraphBuilder()
    b.output("y", formula(b, b.input("x", dtype, shape)))
    return canonical(b)


NOTHING = {
    "x + 0": lambda b, x: b.add(x, 0.0),
    "0 + x": lambda b, x: b.add(0.0, x),
    "x - 0": lambda b, x: b.sub(x, 0.0),
    "x * 1": lambda b, x: b.mul(x, b.constant(np.ones(6, np.float32))),
    "x / 1": lambda b, x: b.div(x, 1.0),
    "x ** 1": lambda b, x: b.ew("pow", x, 1.0),
    "-(-x)": lambda b, x: b.act("neg", b.act("neg", x)),
    "identity": lambda b, x: b.act("identity", x),
    "x + filled 0": lambda b, x: b.add(x, b.fill((BATCH, 1), 0.0, F32)),
    "max(x, -inf)": lambda b, x: b.ew("max", x, float("-inf")),
    "where(true, x, 1)": lambda b, x: b.select(b.fill((BATCH, 6), 1, BOOL), x, 1.0),
    "where(c, x, x)": lambda b, x: b.select(b.ew("lt", x, 0.0), x, x),
}


@pytest.mark.parametrize("spelling", NOTHING)
def test_nothing_is_left(spelling):
    """These are x."""
    assert outcome(NOTHING[spelling]) == {}


@pytest.mark.parametrize("spelling", ["0 - x", "1 / x", "x + 1", "x * 0", "x ** 3"])
def test_something_is_left(spelling):
    """These are not."""
    formulas = {
        "0 - x": lambda b, x: b.sub(0.0, x),
        "1 / x": lambda b, x: b.div(1.0, x),
        "x + 1": lambda b, x: b.add(x, 1.0),
        "x * 0": lambda b, x: b.mul(x, 0.0),
        "x ** 3": lambda b, x: b.ew("pow", x, 3.0),
    }
    assert sum(outcome(formulas[spelling]).values()) == 1


def test_adding_zeros_of_a_larger_shape_broadcasts():
    """The result has another shape than x."""
    found = outcome(lambda b, x: b.add(x, b.constant(np.zeros((3, 6), np.float32))), shape=(1, 6))
    assert found == {"EW.add": 1}


def test_powers():
    """Cheaper than pow."""
    assert outcome(lambda b, x: b.ew("pow", x, 2.0)) == {"EW.mul": 1}
    assert outcome(lambda b, x: b.ew("pow", b.act("abs", x), 0.5)) == {"ACT.abs": 1, "ACT.sqrt": 1}
    assert outcome(lambda b, x: b.div(1.0, b.act("sqrt", b.act("exp", x)))) == {"ACT.exp": 1, "ACT.rsqrt": 1}


def test_a_product_with_a_reciprocal_is_a_quotient():
    """One node instead of two."""
    assert outcome(lambda b, x: b.mul(b.act("exp", x), b.act("reciprocal", x))) == {"ACT.exp": 1, "EW.div": 1}


def test_a_mean_by_its_sum():
    """If the divisor is the number of terms."""
    assert outcome(lambda b, x: b.div(b.reduce("sum", x, [1]), 6.0)) == {"REDUCE.mean": 1}
    assert outcome(lambda b, x: b.mul(b.reduce("sum", x, [1], keepdims=True), 1 / 6)) == {"REDUCE.mean": 1}
    assert outcome(lambda b, x: b.div(b.reduce("sum", x, [1]), 5.0)) == {"REDUCE.sum": 1, "EW.div": 1}


def test_logic():
    """Neutral elements, double negation, negated comparisons of integers."""
    assert outcome(lambda b, x: b.act("not", b.act("not", x)), BOOL) == {}
    assert outcome(lambda b, x: b.ew("and", x, True), BOOL) == {}
    assert outcome(lambda b, x: b.ew("or", x, False), BOOL) == {}
    assert outcome(lambda b, x: b.act("not", b.ew("lt", x, 3)), I64) == {"EW.ge": 1}
    assert outcome(lambda b, x: b.act("not", b.ew("lt", x, 0.0))) == {"EW.lt": 1, "ACT.not": 1}  # NaN is neither
    assert outcome(lambda b, x: b.select(b.act("not", b.ew("lt", x, 0.0)), x, 1.0)) == {"EW.lt": 1, "SELECT": 1}


def test_what_is_expanded_is_computed_before():
    """A mask of [batch, 1, 1, seq] is not computed for every head and query."""
    b = GraphBuilder()
    mask = b.input("mask", I64, (BATCH, SEQ))
    x = b.input("x", F32, (BATCH, 3, SEQ, SEQ))
    wide = b.expand(b.unsqueeze(mask, 1, 2), (BATCH, 3, SEQ, SEQ))
    b.output("y", b.add(x, b.mul(b.sub(1.0, b.cast(wide, F32)), -1e4)))
    graph = canonical_graph(b)
    assert not [n for n in graph.nodes if n.op == "EXPAND"]
    sizes = {n.op: n.output.dims for n in graph.nodes if n.name == "EW.sub"}
    assert sizes == {"EW": (BATCH, 1, 1, SEQ)}


def test_a_product_broadcasts_its_batch():
    """No EXPAND before a GEMM."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, SEQ, 4))
    w = b.expand(b.constant(np.ones((1, 4, 5), np.float32)), (BATCH, 4, 5))
    b.output("y", b.matmul(x, w))
    graph = canonical_graph(b)
    assert [n.op for n in graph.nodes] == ["GEMM"]


def test_factors_of_products_become_alpha():
    """Of either operand and of the result."""
    b = GraphBuilder()
    x, y = b.input("x", F32, (BATCH, SEQ, 4)), b.input("y", F32, (BATCH, SEQ, 4))
    p = b.matmul(b.mul(x, 0.5), b.swap(b.div(y, 4.0)))
    b.output("p", b.mul(p, 3.0))
    graph = canonical_graph(b)
    (gemm,) = (n for n in graph.nodes if n.op != "TRANSPOSE")
    assert gemm.attributes["alpha"] == 0.375


def test_a_factor_after_a_bias_stays():
    """It scales the bias, too."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, 4))
    w, bias = b.constant(np.ones((4, 3), np.float32)), b.constant(np.arange(3, dtype=np.float32))
    b.output("y", b.mul(b.matmul(x, w, bias=bias), 3.0))
    assert canonical(b) == {"GEMM": 1, "EW.mul": 1}


def test_equal_nodes_are_computed_once():
    """Also where they read different constants of one value."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, 4))
    twice = [b.act("exp", b.mul(x, b.constant(np.full((1,), 2.0, np.float32), name=name))) for name in ("p", "q")]
    b.output("y", b.add(*twice))
    assert canonical(b) == {"EW.mul": 1, "ACT.exp": 1, "EW.add": 1}
