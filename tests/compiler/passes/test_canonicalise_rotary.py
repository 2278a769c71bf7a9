"""Rotary embeddings in the spellings of exporters, and rotations of neighbouring heads as one."""

from __future__ import annotations

import numpy as np
import pytest
from canonical import BATCH, SEQ, canonical, canonical_graph
from preserved import normal, preserved

from dla.compiler.builder import GraphBuilder
from dla.compiler.passes.fuse import rotations
from dla.isa.dtypes import DType

F32, I64 = DType.F32, DType.I64
HEADS, WIDTH = 3, 8
HALF = WIDTH // 2


def start(shape=(BATCH, HEADS, SEQ, WIDTH)):
    """A builder with an input x."""
    b = GraphBuilder()
    return b, b.input("x", F32, shape)


def angles(b, rows=SEQ):
    """[1, rows, HALF] of positions times frequencies."""
    frequencies = b.constant(np.exp(-np.arange(HALF, dtype=np.float32))[None, :])
    return b.unsqueeze(b.mul(b.cast(b.iota((rows, 1), I64), F32), frequencies), 0)


def tables(b, rows=SEQ):
    """Cosines and sines [1, 1, rows, WIDTH] of angles put beside themselves."""
    once = angles(b, rows)
    twice = b.concat([once, once], 2)
    return b.unsqueeze(b.act("cos", twice), 1), b.unsqueeze(b.act("sin", twice), 1)


def half_turned(b, x):
    """(-second half, first half)."""
    return b.concat([b.act("neg", b.part(x, -1, HALF, HALF)), b.part(x, -1, 0, HALF)], -1)


def columns(b, x, first):
    """Every other element of a row."""
    return b.slice(x, {-1: first}, {-1: HALF}, {-1: 2})


def neighbours_turned(b, x):
    """(-x1, x0, -x3, x2, ...), by slices, a stack and a reshape."""
    pairs = [b.unsqueeze(v, -1) for v in (b.act("neg", columns(b, x, 1)), columns(b, x, 0))]
    return b.reshape(b.concat(pairs, -1), x.dims)


def rotated(b, x, cos, sin, turned=half_turned):
    """Output x * cos + turned(x) * sin."""
    b.output("y", b.add(b.mul(x, cos), b.mul(turned(b, x), sin)))


def rope(b):
    """The one ROPE that is left; no other work on x is."""
    graph = canonical_graph(b)
    (node,) = (n for n in graph.nodes if n.op == "ROPE")
    assert not [n for n in graph.nodes if n.op == "CONCAT" or n.name in ("ACT.neg", "EW.add")]
    return node


def test_by_halves():
    """As Llama has it."""
    b, x = start()
    rotated(b, x, *tables(b))
    node = rope(b)
    assert not node.attributes["interleaved"]
    assert node.inputs[0] is x
    assert node.inputs[1].dims == (SEQ, HALF)


def test_products_in_another_order():
    """Neither sums nor products have one."""
    b, x = start()
    cos, sin = tables(b)
    b.output("y", b.add(b.mul(sin, half_turned(b, x)), b.mul(cos, x)))
    assert rope(b).inputs[0] is x


def test_heads_behind_positions():
    """For x [batch, seq, heads, width] and tables [seq, 1, width]."""
    b, x = start((BATCH, SEQ, HEADS, WIDTH))
    rotated(b, x, *(b.reshape(t, (SEQ, 1, WIDTH)) for t in tables(b)))
    assert rope(b).output.dims == (BATCH, HEADS, SEQ, WIDTH)


def test_constant_tables_that_are_gathered():
    """Rows of half of each table are gathered."""
    b, x = start()
    half = normal(16, HALF)
    cos, sin = (b.constant(np.concatenate([f(half)] * 2, -1)) for f in (np.cos, np.sin))
    ids = b.input("ids", I64, (SEQ,))
    rotated(b, x, *(b.unsqueeze(b.gather(t, ids), 0, 1) for t in (cos, sin)))
    assert canonical(b) == {"GATHER": 2, "ROPE": 1}


def test_constant_tables_that_are_sliced():
    """Half of a constant is a constant."""
    b, x = start()
    cos, sin = (np.concatenate([f(normal(1, 1, 16, HALF))] * 2, -1) for f in (np.cos, np.sin))
    rotated(b, x, *(b.slice(b.constant(t), {}, {2: SEQ}) for t in (cos, sin)))
    assert canonical(b) == {"ROPE": 1}


def test_scaled_tables():
    """Some models multiply the tables by a factor."""
    b, x = start()
    rotated(b, x, *(b.mul(t, 1.25) for t in tables(b)))
    assert rope(b).inputs[1].dims == (SEQ, HALF)


def test_positions_of_each_sample():
    """Tables [batch, 1, seq, width]: all heads of a sample share them."""
    b, x = start()
    places = b.input("places", I64, (BATCH, SEQ))
    once = b.mul(b.unsqueeze(b.cast(places, F32), 2), b.constant(normal(HALF)))
    twice = b.concat([once, once], 2)
    rotated(b, x, *(b.unsqueeze(b.act(kind, twice), 1) for kind in ("cos", "sin")))
    node = rope(b)
    assert node.inputs[0] is x
    assert node.inputs[1].dims == (BATCH, 1, SEQ, HALF)


def test_one_angle_for_all_positions():
    """A table of one row, which ROPE reads for every position."""
    b, x = start()
    cos, sin = (b.constant(np.concatenate([f(normal(1, HALF))] * 2, -1)) for f in (np.cos, np.sin))
    rotated(b, x, cos, sin)
    assert rope(b).inputs[1].dims == (SEQ, HALF)


def test_interleaved():
    """As GPT-J has it."""
    b, x = start()
    once = angles(b)
    twice = b.reshape(b.expand(b.unsqueeze(once, 3), (1, SEQ, HALF, 2)), (1, 1, SEQ, WIDTH))
    rotated(b, x, b.act("cos", twice), b.act("sin", twice), neighbours_turned)
    assert rope(b).attributes["interleaved"]


def pair(b, x, cos, sin, a, other):
    """The pair a * cos - other * sin and other * cos + a * sin."""
    return b.sub(b.mul(a, cos), b.mul(other, sin)), b.add(b.mul(other, cos), b.mul(a, sin))


def test_halves_put_together():
    """Two products for each half."""
    b, x = start()
    cos, sin = (b.act(kind, angles(b)) for kind in ("cos", "sin"))
    b.output("y", b.concat(pair(b, x, cos, sin, b.part(x, -1, 0, HALF), b.part(x, -1, HALF, HALF)), -1))
    assert rope(b).inputs[0] is x


def test_neighbours_put_together():
    """Two products for each of a pair, stacked."""
    b, x = start()
    cos, sin = (b.act(kind, angles(b)) for kind in ("cos", "sin"))
    turned = pair(b, x, cos, sin, columns(b, x, 0), columns(b, x, 1))
    b.output("y", b.reshape(b.concat([b.unsqueeze(v, -1) for v in turned], -1), x.dims))
    assert rope(b).attributes["interleaved"]


@pytest.mark.parametrize("extra", [2, 8])
def test_the_first_columns_only(extra):
    """GPT-J and Phi turn part of each head and copy the rest."""
    b, x = start((BATCH, HEADS, SEQ, WIDTH + extra))
    first, rest = b.part(x, -1, 0, WIDTH), b.part(x, -1, WIDTH, extra)
    cos, sin = tables(b)
    b.output("y", b.concat([b.add(b.mul(first, cos), b.mul(half_turned(b, first), sin)), rest], -1))
    assert rope(b).inputs[0] is x


def near_misses():
    """Graphs that are almost rotations."""
    b, x = start()
    cos, sin = tables(b)
    b.output("y", b.sub(b.mul(x, cos), b.mul(half_turned(b, x), sin)))
    yield "subtracted", b
    b, x = start()
    cos, sin = tables(b)
    turned = b.concat([b.part(x, -1, HALF, HALF), b.act("neg", b.part(x, -1, 0, HALF))], -1)
    b.output("y", b.add(b.mul(x, cos), b.mul(turned, sin)))
    yield "turned the other way", b
    b, x = start()
    rotated(b, x, *(b.constant(normal(WIDTH, seed=s).reshape(1, 1, 1, WIDTH)) for s in (1, 2)))
    yield "halves of the tables differ", b
    b, x = start()
    cos, sin = tables(b)
    rotated(b, x, cos, sin, neighbours_turned)
    yield "interleaved with tables for halves", b
    b, x = start()
    cos, sin = tables(b)
    b.output("y", b.add(b.mul(b.act("abs", x), cos), b.mul(half_turned(b, x), sin)))
    yield "another x", b


@pytest.mark.parametrize(("name", "b"), list(near_misses()))
def test_near_misses(name, b):
    """Another sign, order, table or input stays."""
    assert canonical(b)["ROPE"] == 0


# -- rotations of queries and keys as one


def projected(keys=2, gap=0, table=0):
    """Attention of turned queries (3 heads) and keys, slices of one input, and its last heads as values."""
    b = GraphBuilder()
    x = b.input("x", F32, (2, 5, (HEADS + gap + 2 * keys) * WIDTH))
    cos, sin = (b.constant(normal(5, HALF, seed=s)) for s in (1, 2))
    other = b.constant(normal(5, HALF, seed=3)) if table else cos

    def heads(start, count):
        rows = b.part(x, -1, start * WIDTH, count * WIDTH)
        return b.transpose(b.reshape(rows, (2, 5, count, WIDTH)), (0, 2, 1, 3))

    q = b.rope(heads(0, HEADS), cos, sin)
    k = b.rope(heads(HEADS + gap, keys), other, sin)
    b.output("y", b.attention(q, k, heads(HEADS + gap + keys, keys)))
    return b


def test_neighbouring_heads_turn_together():
    """One ROPE instead of two."""
    left = preserved(projected(keys=1), rotations.run, x=normal(2, 5, 5 * WIDTH))
    assert left["ROPE"] == 1


@pytest.mark.parametrize(("gap", "table"), [(1, 0), (0, 1)])
def test_others_do_not(gap, table):
    """Heads with others between them, or with another table."""
    left = preserved(projected(1, gap, table), rotations.run, x=normal(2, 5, (5 + gap) * WIDTH))
    assert left["ROPE"] == 2


def test_keys_that_are_also_read_elsewhere_stay():
    """A cache wants them in a place of its own."""
    b = projected(keys=1)
    b.output("k", b.graph.nodes[-1].inputs[1])
    assert preserved(b, rotations.run, x=normal(2, 5, 5 * WIDTH))["ROPE"] == 2
