"""Fusing passes: what becomes one instruction, what does not, and that nothing changes in value."""

from __future__ import annotations

import numpy as np
import pytest
from preserved import normal, preserved

from dla.compiler.builder import GraphBuilder
from dla.compiler.passes.fuse import batch_norm, concats, epilogue, glu, siblings
from dla.isa.dtypes import DType

F32 = DType.F32


def product(b: GraphBuilder, x, columns: int, seed: int = 1, bias: bool = False):
    """X @ w with constant weights."""
    w = b.constant(normal(x.dims[-1], columns, seed=seed))
    return b.matmul(x, w, bias=b.constant(normal(columns, seed=seed + 50)) if bias else None)


# -- batch norm


def normalised(b: GraphBuilder, x):
    """NORM.batch with constant statistics."""
    n = x.dims[-1]
    gain, shift, mean = (b.constant(normal(n, seed=s)) for s in (5, 6, 7))
    return b.norm("batch", x, gain, shift, mean=mean, var=b.constant(normal(n, seed=8) ** 2 + 0.5), eps=1e-3)


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_vanishes_in_a_convolution(bias):
    """Weights and bias take it up."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 5, 5, 3))
    y = b.conv(x, b.constant(normal(4, 3, 3, 3)), bias=b.constant(normal(4)) if bias else None)
    b.output("y", normalised(b, y))
    assert preserved(b, batch_norm.run, x=normal(2, 5, 5, 3)) == {"CONV": 1}


def test_batch_norm_vanishes_in_a_matrix_product():
    """Columns instead of kernels."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    b.output("y", normalised(b, product(b, x, 6, bias=True)))
    assert preserved(b, batch_norm.run, x=normal(4, 3)) == {"GEMM": 1}


def test_batch_norm_vanishes_in_a_product_with_transposed_weights():
    """Linear layers keep their weights as [outputs, inputs]."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    weights = b.swap(b.constant(normal(2000, 3)))  # so many that the transposed ones are no constant at once
    b.output("y", normalised(b, b.matmul(x, weights)))
    assert preserved(b, batch_norm.run, x=normal(4, 3)) == {"GEMM": 1}


def test_batch_norm_stays_where_the_product_has_other_readers():
    """They want the product itself."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 5, 5, 3))
    y = b.conv(x, b.constant(normal(4, 1, 1, 3)))
    b.output("y", normalised(b, y))
    b.output("z", y)
    assert preserved(b, batch_norm.run, x=normal(2, 5, 5, 3))["NORM.batch"] == 1


# -- epilogues


def test_bias_activation_residual_and_gate_move_into_the_product():
    """In the order in which they are applied."""
    b = GraphBuilder()
    x, r = b.input("x", F32, (4, 3)), b.input("r", F32, (4, 6))
    y = b.add(product(b, x, 6), b.constant(normal(6)))
    y = b.mul(r, b.add(b.act("gelu", y), r))
    b.output("y", y)
    found = preserved(b, epilogue.run, x=normal(4, 3), r=normal(4, 6))
    assert found == {"GEMM": 1}
    (node,) = b.graph.nodes
    assert node.attributes["steps"] == ("bias", "act", "residual", "gate")


def test_a_second_sum_takes_the_other_step():
    """Bias and residual both broadcast: a table of positions goes where a shortcut would."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 4, 3))
    y = b.add(b.add(product(b, x, 6), b.constant(normal(6))), b.constant(normal(4, 6)))
    b.output("y", y)
    assert preserved(b, epilogue.run, x=normal(2, 4, 3)) == {"GEMM": 1}
    assert b.graph.nodes[-1].attributes["steps"] == ("bias", "residual")


def test_a_step_that_is_there_already_stays_outside():
    """Each kind of step occurs once."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    b.output("y", b.act("tanh", b.act("relu", product(b, x, 6))))
    assert preserved(b, epilogue.run, x=normal(4, 3)) == {"GEMM": 1, "ACT.tanh": 1}


@pytest.mark.parametrize("order", ["max first", "min first"])
def test_a_clamp_is_one_step(order):
    """As ReLU6 is exported, in either order."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    limits = [("max", 0), ("min", 6)]
    y = product(b, x, 6)
    for kind, limit in limits if order == "max first" else reversed(limits):
        y = b.ew(kind, y, limit)
    b.output("y", y)
    assert preserved(b, epilogue.run, x=10 * normal(4, 3)) == {"GEMM": 1}


def test_of_two_products_the_later_one_takes_the_other():
    """The earlier one is there by then."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    first = product(b, x, 6)
    b.order = 1.0
    second = product(b, x, 6, seed=2)
    b.output("y", b.act("relu", b.add(first, second)))
    found = preserved(b, epilogue.run, x=normal(4, 3))
    assert found == {"GEMM": 2}
    assert "residual" in b.graph.nodes[-1].attributes["steps"]


def test_results_with_other_readers_stay():
    """They want what was before the activation."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    y = product(b, x, 6)
    b.output("y", b.act("relu", y))
    b.output("z", y)
    assert preserved(b, epilogue.run, x=normal(4, 3)) == {"GEMM": 1, "ACT.relu": 1}


def test_a_residual_of_the_transposed_product_is_transposed():
    """Attention that puts the sequence before the batch transposes its last product back."""
    b = GraphBuilder()
    x, r, g = b.input("x", F32, (4, 2, 3)), b.input("r", F32, (6, 4, 2)), b.input("g", F32, (6, 4, 2))
    y = b.transpose(product(b, x, 6, bias=True), (2, 0, 1))
    b.output("y", b.mul(b.add(y, r), g))
    found = preserved(b, epilogue.run, x=normal(4, 2, 3), r=normal(6, 4, 2), g=normal(6, 4, 2))
    assert found["GEMM"] == 1
    assert not any(name.startswith("EW") for name in found)


def test_a_transposed_product_with_other_readers_stays():
    """They want what was before the sum, transposed or not."""
    b = GraphBuilder()
    x, r = b.input("x", F32, (4, 3)), b.input("r", F32, (6, 4))
    y = product(b, x, 6)
    b.output("y", b.add(b.transpose(y, (1, 0)), r))
    b.output("z", y)
    assert preserved(b, epilogue.run, x=normal(4, 3), r=normal(6, 4))["EW.add"] == 1


def test_an_operand_that_makes_the_result_larger_stays_outside():
    """A residual broadcasts to the product, not the other way."""
    b = GraphBuilder()
    x, r = b.input("x", F32, (4, 3)), b.input("r", F32, (5, 4, 6))
    b.output("y", b.add(product(b, x, 6), r))
    assert preserved(b, epilogue.run, x=normal(4, 3), r=normal(5, 4, 6))["EW.add"] == 1


# -- gated units


@pytest.mark.parametrize("unit", ["silu", "gelu", "sigmoid"])
def test_a_gated_unit_is_one_product(unit):
    """The gate may be either factor."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    y = b.mul(product(b, x, 6, 2), b.act(unit, product(b, x, 6, 1)))
    b.output("y", y)
    assert preserved(b, glu.run, x=normal(4, 3)) == {"GEMM.glu": 1}


def test_products_of_different_inputs_are_no_gated_unit():
    """One product has one input."""
    b = GraphBuilder()
    x, z = b.input("x", F32, (4, 3)), b.input("z", F32, (4, 3))
    b.output("y", b.mul(product(b, x, 6), b.act("silu", product(b, z, 6, 2))))
    assert preserved(b, glu.run, x=normal(4, 3), z=normal(4, 3))["GEMM"] == 2


# -- siblings


def test_products_of_one_input_are_joined():
    """Queries, keys and values; the results are views."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 4, 3))
    for name, columns in (("q", 6), ("k", 2), ("v", 2)):
        b.output(name, b.reshape(product(b, x, columns, seed=columns + ord(name), bias=True), (2, 4, 2, columns // 2)))
    found = preserved(b, siblings.run, x=normal(2, 4, 3))
    assert found["GEMM"] == 1


def test_products_with_and_without_bias_are_not_joined():
    """They are different instructions."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    b.output("a", product(b, x, 6, bias=True))
    b.output("b", product(b, x, 6, 2))
    assert preserved(b, siblings.run, x=normal(4, 3))["GEMM"] == 2


def test_transposed_constants_are_joined_too():
    """Linear layers store their weights so."""
    b = GraphBuilder()
    x = b.input("x", F32, (4, 3))
    for name, seed in (("a", 1), ("b", 2)):
        b.output(name, b.matmul(x, b.emit("TRANSPOSE", [b.constant(normal(6, 3, seed=seed))], perm=(1, 0))))
    assert preserved(b, siblings.run, x=normal(4, 3))["GEMM"] == 1


# -- concatenations


def test_growing_concatenations_are_nested():
    """Each takes the one before as its first part."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3))
    parts = [b.act("neg", x)]
    for step in range(4):
        parts.append(product(b, b.concat(parts, 1), 3, seed=step))
    b.output("y", b.concat(parts, 1))
    preserved(b, concats.run, x=normal(2, 3), rtol=1e-4)
    sizes = [len(n.inputs) for n in b.graph.nodes if n.op == "CONCAT"]
    assert sizes == [2, 2, 2, 2]


def test_concatenations_along_other_axes_are_not():
    """Equal parts are not enough."""
    b = GraphBuilder()
    x, y = b.input("x", F32, (2, 2)), b.input("y", F32, (2, 2))
    b.output("a", b.concat([x, y], 0))
    b.output("b", b.reduce("sum", b.concat([x, y, x], 1)))
    preserved(b, concats.run, x=normal(2, 2), y=np.ones((2, 2), np.float32))
    assert sorted(len(n.inputs) for n in b.graph.nodes if n.op == "CONCAT") == [2, 3]
