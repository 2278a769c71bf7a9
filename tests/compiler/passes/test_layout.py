"""The layout pass: transposes sink, meet and cancel; outputs stay as they are."""

from __future__ import annotations

import pytest
from preserved import normal, preserved

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import symbol
from dla.compiler.passes import layout
from dla.isa.dtypes import DType

F32 = DType.F32
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def conv(b: GraphBuilder, x, outputs: int, size: int = 1):
    """A convolution as the front-end makes it: channels second outside, last inside."""
    w = b.constant(normal(outputs, size, size, x.dims[1], seed=outputs))
    pads = (size // 2,) * 4
    return b.transpose(b.conv(b.transpose(x, LAST), w, pads=pads), FIRST)


def test_a_residual_network_keeps_two_transposes():
    """Activations, sums and factors of channels let them through."""
    b = GraphBuilder()
    x = b.input("x", F32, (symbol("batch", 4), 3, 6, 6))
    y = b.act("relu", conv(b, x, 8, 3))
    y = b.act("relu", b.add(conv(b, b.act("relu", conv(b, y, 8, 3)), 8), y))
    y = b.mul(y, b.constant(normal(8, 1, 1)))
    b.output("y", y)
    found = preserved(b, layout.run, x=normal(2, 3, 6, 6))
    assert found["TRANSPOSE"] == 2  # at the input and at the output


def test_two_transposes_that_undo_each_other_vanish():
    """Nothing is left of them."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4, 5))
    b.output("y", b.act("relu", b.transpose(b.transpose(x, LAST), FIRST)))
    assert preserved(b, layout.run, x=normal(2, 3, 4, 5)) == {"ACT.relu": 1}


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 1, 2, 3), (3,)])
def test_folded_axes_are_renamed(axes, keepdims):
    """Whether folded axes stay or go."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4, 5))
    b.output("y", b.reduce("sum", b.transpose(x, (3, 1, 0, 2)), axes, keepdims=keepdims))
    preserved(b, layout.run, x=normal(2, 3, 4, 5))


def test_operators_along_an_axis_follow_it():
    """Softmax, running folds, pads, slices."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4))
    turned = b.transpose(x, (2, 0, 1))
    b.output("softmax", b.softmax(turned, 1))
    b.output("scan", b.scan("sum", turned, 2))
    b.output("pad", b.pad(turned, (1, 0, 2), (0, 3, 0)))
    b.output("slice", b.slice(turned, {0: 1, 2: 1}, {0: 3, 2: 2}))
    found = preserved(b, layout.run, x=normal(2, 3, 4))
    assert found["TRANSPOSE"] == 4


def test_parts_of_a_concatenation_are_joined_along_the_renamed_axis():
    """Channels are last inside."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4, 4))
    joined = b.concat([conv(b, x, 4), conv(b, x, 2)], 1)
    b.output("y", conv(b, joined, 3))
    found = preserved(b, layout.run, x=normal(2, 3, 4, 4))
    assert found["TRANSPOSE"] == 3  # one for each reader of the input, and one at the output


def test_a_channel_shuffle_stays_inside():
    """Two reshapes around a transpose of channels."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 4, 3, 3))
    y = conv(b, x, 6)
    y = b.reshape(y, (2, 2, 3, 3, 3))
    y = b.reshape(b.swap(y, 1, 2), (2, 6, 3, 3))
    b.output("y", conv(b, y, 2))
    found = preserved(b, layout.run, x=normal(2, 4, 3, 3))
    assert found["TRANSPOSE"] == 3


def test_a_large_operand_in_the_other_layout_stops_it():
    """It would be read with strides."""
    b = GraphBuilder()
    x, other = b.input("x", F32, (2, 3, 4, 4)), b.input("other", F32, (2, 4, 4, 4))
    b.output("y", b.add(conv(b, x, 4), other))
    preserved(b, layout.run, x=normal(2, 3, 4, 4), other=normal(2, 4, 4, 4))


def test_flattening_after_a_global_pool_is_no_obstacle():
    """Axes of size 1 are nowhere in memory."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 3, 4, 4))
    pooled = b.transpose(b.pool("global_avg", b.transpose(x, LAST)), FIRST)
    b.output("y", b.reshape(pooled, (2, 3)))
    preserved(b, layout.run, x=normal(2, 3, 4, 4))
