"""Activations written out, in many orders of their sums and products."""

from __future__ import annotations

import math

import numpy as np
import pytest
from canonical import BATCH, canonical

from dla.compiler.builder import GraphBuilder
from dla.isa.dtypes import DType

ROOT_HALF = math.sqrt(0.5)
ROOT = math.sqrt(2 / math.pi)


def graph(formula, dtype=DType.F32):
    """Y = formula(b, x)."""
    b = GraphBuilder()
    b.output("y", formula(b, b.input("x", dtype, (BATCH, 7))))
    return b


def erf(b, x):
    """Erf(x / sqrt(2))."""
    return b.act("erf", b.div(x, math.sqrt(2)))


def tanh(b, x, cube=None):
    """The tanh of GELU's approximation."""
    cube = b.ew("pow", x, 3.0) if cube is None else cube
    return b.act("tanh", b.mul(b.add(x, b.mul(cube, 0.044715)), ROOT))


GELU = {
    "(x * 0.5) * (erf + 1)": lambda b, x: b.mul(b.mul(x, 0.5), b.add(erf(b, x), 1.0)),
    "0.5 * (x * (1 + erf))": lambda b, x: b.mul(0.5, b.mul(x, b.add(1.0, erf(b, x)))),
    "(x * (erf + 1)) / 2": lambda b, x: b.div(b.mul(x, b.add(erf(b, x), 1.0)), 2.0),
    "x * (0.5 * erf + 0.5)": lambda b, x: b.mul(x, b.add(b.mul(erf(b, x), 0.5), 0.5)),
    "(erf + 1) * (x * 0.5)": lambda b, x: b.mul(b.add(erf(b, x), 1.0), b.mul(x, 0.5)),
    "erf of a product": lambda b, x: b.mul(b.mul(x, 0.5), b.add(b.act("erf", b.mul(x, ROOT_HALF)), 1.0)),
    "0.5 x + 0.5 x erf": lambda b, x: b.add(b.mul(x, 0.5), b.mul(b.mul(x, erf(b, x)), 0.5)),
}


@pytest.mark.parametrize("spelling", GELU)
def test_gelu(spelling):
    """All orders of its products are one ACT."""
    assert canonical(graph(GELU[spelling])) == {"ACT.gelu": 1}


def test_gelu_of_a_sum():
    """What goes in may itself be a sum, which stays."""
    found = canonical(graph(lambda b, x: GELU["(x * 0.5) * (erf + 1)"](b, b.add(b.act("abs", x), 0.25))))
    assert found == {"ACT.abs": 1, "EW.add": 1, "ACT.gelu": 1}


def test_gelu_in_half_precision_has_rounded_constants():
    """0.7071 as an f16 is not 0.70710678."""
    b = graph(lambda b, x: GELU["(x * 0.5) * (erf + 1)"](b, x), DType.F16)
    assert canonical(b, rtol=4e-3) == {"ACT.gelu": 1}


CUBES = {
    "pow(x, 3)": lambda b, x: b.ew("pow", x, 3.0),
    "x * x * x": lambda b, x: b.mul(b.mul(x, x), x),
    "x * (x * x)": lambda b, x: b.mul(x, b.mul(x, x)),
    "x * pow(x, 2)": lambda b, x: b.mul(x, b.ew("pow", x, 2.0)),
}


@pytest.mark.parametrize("cube", CUBES)
def test_gelu_by_tanh(cube):
    """The cube is a power or products."""

    def formula(b, x):
        return b.mul(b.mul(x, 0.5), b.add(tanh(b, x, CUBES[cube](b, x)), 1.0))

    assert canonical(graph(formula)) == {"ACT.gelu_tanh": 1}


def test_gelu_by_tanh_factored():
    """Tanh(x * 0.797 * (1 + 0.044715 * x * x)), as fast implementations have it."""

    def formula(b, x):
        inner = b.add(1.0, b.mul(b.mul(x, 0.044715), x))
        return b.mul(b.mul(0.5, x), b.add(1.0, b.act("tanh", b.mul(b.mul(x, ROOT), inner))))

    assert canonical(graph(formula)) == {"ACT.gelu_tanh": 1}


def test_gelu_by_tanh_as_a_sigmoid():
    """Since (1 + tanh(x)) / 2 is sigmoid(2 x)."""

    def formula(b, x):
        inner = b.add(x, b.mul(b.ew("pow", x, 3.0), 0.044715))
        return b.mul(x, b.act("sigmoid", b.mul(inner, 2 * ROOT)))

    assert canonical(graph(formula)) == {"ACT.gelu_tanh": 1}


SMALL = {
    "silu": lambda b, x: b.mul(x, b.act("sigmoid", x)),
    "silu, turned": lambda b, x: b.mul(b.act("sigmoid", x), x),
    "silu by exp": lambda b, x: b.mul(x, b.div(1.0, b.add(b.act("exp", b.act("neg", x)), 1.0))),
    "silu, x / (1 + exp(-x))": lambda b, x: b.mul(x, b.act("reciprocal", b.add(1.0, b.act("exp", b.mul(x, -1.0))))),
    "sigmoid by tanh": lambda b, x: b.mul(b.add(b.act("tanh", b.mul(x, 0.5)), 1.0), 0.5),
    "softplus": lambda b, x: b.act("log", b.add(b.act("exp", x), 1.0)),
    "mish": lambda b, x: b.mul(x, b.act("tanh", b.act("softplus", x))),
    "mish by exp": lambda b, x: b.mul(b.act("tanh", b.act("log", b.add(1.0, b.act("exp", x)))), x),
    "hard_swish": lambda b, x: b.div(b.mul(x, clip(b, b.add(x, 3.0), 0.0, 6.0)), 6.0),
    "hard_swish, scaled first": lambda b, x: b.mul(x, b.mul(clip(b, b.add(x, 3.0), 0.0, 6.0), 1 / 6)),
    "hard_swish of a hard sigmoid": lambda b, x: b.mul(x, b.act("hard_sigmoid", x, 1 / 6)),
    "hard_swish by clip": lambda b, x: b.mul(x, clip(b, b.add(b.mul(x, 1 / 6), 0.5), 0.0, 1.0)),
    "hard_sigmoid": lambda b, x: b.div(clip(b, b.add(x, 3.0), 0.0, 6.0), 6.0),
    "hard_sigmoid, 0.2": lambda b, x: clip(b, b.add(b.mul(x, 0.2), 0.5), 0.0, 1.0),
    "hard_sigmoid, min first": lambda b, x: b.ew("max", b.ew("min", b.add(b.mul(x, 0.2), 0.5), 1.0), 0.0),
}


def clip(b, x, low, high):
    """Min(max(x, low), high)."""
    return b.ew("min", b.ew("max", x, low), high)


@pytest.mark.parametrize("spelling", SMALL)
def test_others(spelling):
    """The first word of a spelling is the ACT that it is."""
    name = spelling.split()[0].strip(",")
    assert canonical(graph(SMALL[spelling])) == {f"ACT.{name}": 1}


NEAR = {
    "another factor": lambda b, x: b.mul(b.mul(x, 0.4), b.add(erf(b, x), 1.0)),
    "another scale": lambda b, x: b.mul(b.mul(x, 0.5), b.add(b.act("erf", x), 1.0)),
    "another x": lambda b, x: b.mul(b.mul(b.act("abs", x), 0.5), b.add(erf(b, x), 1.0)),
    "another cube": lambda b, x: b.mul(b.mul(x, 0.5), b.add(tanh(b, x, b.ew("pow", x, 4.0)), 1.0)),
    "no one": lambda b, x: b.mul(b.mul(x, 0.5), b.add(erf(b, x), 0.5)),
    "sigmoid of 1.702 x": lambda b, x: b.mul(x, b.act("sigmoid", b.mul(x, 1.702))),
    "relu6": lambda b, x: clip(b, x, 0.0, 6.0),
    "hard_swish to 5": lambda b, x: b.div(b.mul(x, clip(b, b.add(x, 3.0), 0.0, 5.0)), 6.0),
    "log(2 + exp(x))": lambda b, x: b.act("log", b.add(b.act("exp", x), 2.0)),
}


@pytest.mark.parametrize("spelling", NEAR)
def test_near_misses(spelling):
    """Formulas that differ in one number or function stay."""
    b = graph(NEAR[spelling])
    before = {n.name for n in b.graph.nodes} - {"EW.div"}
    assert before <= canonical(b).keys()


def test_a_curve_that_is_also_read_elsewhere_is_not_computed_twice():
    """The sigmoid has to be computed anyway."""
    b = graph(lambda b, x: b.mul(x, b.act("sigmoid", x)))
    b.output("s", b.graph.outputs["y"].producer.inputs[1])
    b.output("t", b.add(b.graph.outputs["s"], 1.0))
    assert canonical(b) == {"ACT.sigmoid": 1, "EW.mul": 1, "EW.add": 1}


def test_broadcasting_is_no_activation():
    """A column times its row's sigmoid has another shape than x."""
    b = GraphBuilder()
    x = b.input("x", DType.F32, (4, 1))
    b.output("y", b.mul(b.mul(x, b.act("sigmoid", x)), b.constant(np.ones((4, 3), np.float32))))
    assert canonical(b)["ACT.silu"] == 1
