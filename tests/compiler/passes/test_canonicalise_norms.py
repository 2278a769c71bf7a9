"""Layer, RMS and group norm, and softmax, written out."""

from __future__ import annotations

import numpy as np
import pytest
from canonical import BATCH, SEQ, canonical, canonical_graph
from preserved import normal

from dla.compiler.builder import GraphBuilder
from dla.isa.dtypes import DType

F16, F32 = DType.F16, DType.F32
WIDTH = 6


def start(dtype=F32):
    """A builder with an input x [batch, seq, WIDTH]."""
    b = GraphBuilder()
    return b, b.input("x", dtype, (BATCH, SEQ, WIDTH))


def vector(b, seed, dtype=F32):
    """A constant [WIDTH]."""
    return b.constant(normal(WIDTH, seed=seed), dtype)


def mean(b, x):
    """Along the last axis, which stays."""
    return b.reduce("mean", x, [-1], keepdims=True)


SQUARES = {"pow": lambda b, d: b.ew("pow", d, 2.0), "mul": lambda b, d: b.mul(d, d)}
QUOTIENTS = {
    "d / sqrt": lambda b, d, v: b.div(d, b.act("sqrt", v)),
    "d * (1 / sqrt)": lambda b, d, v: b.mul(d, b.div(1.0, b.act("sqrt", v))),
    "rsqrt * d": lambda b, d, v: b.mul(b.act("rsqrt", v), d),
    "d * reciprocal(sqrt)": lambda b, d, v: b.mul(d, b.act("reciprocal", b.act("sqrt", v))),
    "d * v ** -0.5": lambda b, d, v: b.mul(d, b.ew("pow", v, -0.5)),
}


def layer(b, x, square=SQUARES["pow"], quotient=QUOTIENTS["d / sqrt"]):
    """(x - mean) / sqrt(mean((x - mean) ** 2) + eps)."""
    d = b.sub(x, mean(b, x))
    return quotient(b, d, b.add(mean(b, square(b, d)), 1e-5))


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_layer_norm(square, quotient):
    """With gain and bias, in every spelling of the quotient."""
    b, x = start()
    y = layer(b, x, SQUARES[square], QUOTIENTS[quotient])
    b.output("y", b.add(b.mul(y, vector(b, 1)), vector(b, 2)))
    assert canonical(b) == {"NORM.layer": 1}


@pytest.mark.parametrize("parts", ["", "gain", "bias", "gain in front"])
def test_layer_norm_with_less(parts):
    """Gain and bias may be missing."""
    b, x = start()
    y = layer(b, x)
    if parts.startswith("gain"):
        y = b.mul(vector(b, 1), y) if "front" in parts else b.mul(y, vector(b, 1))
    if parts == "bias":
        y = b.add(y, vector(b, 2))
    b.output("y", y)
    graph = canonical_graph(b)
    (norm,) = graph.nodes
    assert [v is not None for v in norm.inputs[1:3]] == [parts.startswith("gain"), parts == "bias"]


def test_two_subtractions():
    """Old exports compute x - mean(x) twice."""
    b, x = start()
    first, second = b.sub(x, mean(b, x)), b.sub(x, mean(b, x))
    variance = b.add(mean(b, b.ew("pow", first, 2.0)), 1e-5)
    b.output("y", b.div(second, b.act("sqrt", variance)))
    assert canonical(b) == {"NORM.layer": 1}


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_rms_norm(quotient):
    """In every spelling of the quotient."""
    b, x = start()
    y = QUOTIENTS[quotient](b, x, b.add(mean(b, b.ew("pow", x, 2.0)), 1e-6))
    b.output("y", b.mul(vector(b, 1), y))
    assert canonical(b) == {"NORM.rms": 1}


def test_rms_norm_with_casts():
    """In half precision statistics are computed in f32, which NORM does anyway."""
    b, x = start(F16)
    wide = b.cast(x, F32)
    y = b.mul(wide, b.act("rsqrt", b.add(mean(b, b.ew("pow", wide, 2.0)), 1e-5)))
    b.output("y", b.mul(vector(b, 1, F16), b.cast(y, F16)))
    assert canonical(b, rtol=4e-3) == {"NORM.rms": 1}


def near_misses():
    """Graphs that are almost norms."""
    b, x = start()
    b.output("y", QUOTIENTS["d / sqrt"](b, x, b.add(b.reduce("mean", b.mul(x, x), [1], keepdims=True), 1e-5)))
    yield "another axis", b
    b, x = start()
    b.output("y", b.div(b.act("abs", x), b.act("sqrt", mean(b, b.mul(x, x)))))
    yield "another numerator", b
    b, x = start()
    b.output("y", b.div(x, b.act("sqrt", b.sub(mean(b, b.mul(x, x)), 1e-5))))
    yield "eps subtracted", b
    b, x = start()
    b.output("y", b.div(x, b.act("sqrt", b.reduce("sum", b.mul(x, x), [-1], keepdims=True))))
    yield "sum instead of mean", b


@pytest.mark.parametrize(("name", "b"), list(near_misses()))
def test_near_misses(name, b):
    """Formulas that differ in one place stay."""
    with np.errstate(all="ignore"):
        assert not any(op.startswith("NORM") for op in canonical(b))


def test_a_gain_of_another_axis_stays():
    """NORM has one factor for each channel."""
    b, x = start()
    rows = b.input("rows", F32, (SEQ, 1))
    b.output("y", b.mul(layer(b, x), rows))
    assert canonical(b) == {"NORM.layer": 1, "EW.mul": 1}


def test_a_gain_of_a_norm_that_others_read_stays():
    """They want it without."""
    b, x = start()
    y = layer(b, x)
    b.output("y", b.mul(y, vector(b, 1)))
    b.output("z", b.act("abs", y))
    assert canonical(b) == {"NORM.layer": 1, "EW.mul": 1, "ACT.abs": 1}


def test_trivial_gain_and_bias():
    """Ones and zeros are not read."""
    b, x = start()
    b.output("y", b.norm("layer", x, b.constant(np.ones(WIDTH, np.float32)), b.constant(np.zeros(WIDTH, np.float32))))
    (norm,) = canonical_graph(b).nodes
    assert norm.inputs[1:3] == (None, None)


def test_group_norm_as_instance_norm_of_groups():
    """As PyTorch exports it before operator set 18."""
    b = GraphBuilder()
    x = b.input("x", F32, (BATCH, 6, 4, 5))
    seen = b.transpose(b.reshape(x, (BATCH, 3, 40)), (0, 2, 1))
    ones, zeros = b.constant(np.ones(3, np.float32)), b.constant(np.zeros(3, np.float32))
    y = b.reshape(b.transpose(b.norm("group", seen, ones, zeros, groups=3), (0, 2, 1)), x.dims)
    gain, bias = (b.constant(normal(6, 1, 1, seed=s)) for s in (1, 2))
    b.output("y", b.add(b.mul(y, gain), bias))
    graph = canonical_graph(b)
    assert [n.name for n in graph.nodes] == ["TRANSPOSE", "NORM.group", "TRANSPOSE"]
    assert graph.nodes[1].attributes["groups"] == 3
    assert None not in graph.nodes[1].inputs[1:3]


# -- softmax


def exponentials(b, x, axis):
    """exp(x - max(x))."""
    return b.act("exp", b.sub(x, b.reduce("max", x, [axis], keepdims=True)))


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax(axis):
    """With the maximum subtracted."""
    b, x = start()
    e = exponentials(b, x, axis)
    b.output("y", b.div(e, b.reduce("sum", e, [axis], keepdims=True)))
    graph = canonical_graph(b)
    assert [(n.name, n.attributes["axis"]) for n in graph.nodes] == [("SOFTMAX.soft", axis)]


def test_softmax_without_maximum():
    """SOFTMAX subtracts it, so that nothing overflows."""
    b, x = start()
    e = b.act("exp", x)
    b.output("y", b.mul(e, b.act("reciprocal", b.reduce("sum", e, [2], keepdims=True))))
    assert canonical(b) == {"SOFTMAX.soft": 1}


def test_log_softmax():
    """Two spellings."""
    b, x = start()
    d = b.sub(x, b.reduce("max", x, [2], keepdims=True))
    b.output("y", b.sub(d, b.act("log", b.reduce("sum", b.act("exp", d), [2], keepdims=True))))
    b.output("z", b.sub(x, b.reduce("logsumexp", x, [2], keepdims=True)))
    assert canonical(b) == {"SOFTMAX.log": 1}  # both are the same


def test_no_softmax():
    """Sums over other axes, and other sums."""
    b, x = start()
    e = exponentials(b, x, 2)
    b.output("y", b.div(e, b.reduce("sum", e, [1, 2], keepdims=True)))
    b.output("z", b.div(e, b.add(b.reduce("sum", e, [2], keepdims=True), 1.0)))
    assert not any(op.startswith("SOFTMAX") for op in canonical(b))


def test_guard_against_nan():
    """SOFTMAX gives 0 for a row of -infinity."""
    b, x = start()
    p = b.softmax(b.select(b.ew("lt", x, 0.0), float("-inf"), x))
    b.output("y", b.select(b.act("isnan", p), 0.0, p))
    assert canonical(b) == {"EW.lt": 1, "SELECT": 1, "SOFTMAX.soft": 1}
