"""Views of views, casts of casts, slices that are put together again."""

from __future__ import annotations

import numpy as np
import pytest
from canonical import BATCH, SEQ, canonical, canonical_graph

from dla.compiler.builder import GraphBuilder
from dla.compiler.passes.canonicalise.views import common_split, merged_axes
from dla.isa.dtypes import DType

F32 = DType.F32


def left(formula, shape=(BATCH, SEQ, 4, 6), dtype=F32):
    """Names of all nodes that are left of formula(b, x), views included, in order."""
    b = GraphBuilder()
    b.output("y", formula(b, b.input("x", dtype, shape)))
    return [n.name for n in canonical_graph(b).nodes]


def test_transposes():
    """Two are one, or none."""
    assert left(lambda b, x: b.transpose(b.transpose(x, (0, 2, 1, 3)), (0, 2, 1, 3))) == []
    assert left(lambda b, x: b.transpose(b.transpose(x, (0, 2, 1, 3)), (0, 2, 3, 1))) == ["TRANSPOSE"]


def test_reshapes():
    """Only the last shape counts."""
    assert left(lambda b, x: b.reshape(b.reshape(x, (BATCH * SEQ, 24)), (BATCH, SEQ, 4, 6))) == []
    assert left(lambda b, x: b.reshape(b.reshape(x, (BATCH * SEQ, 24)), (BATCH, SEQ, 24))) == ["RESHAPE"]


def test_a_transpose_between_reshapes():
    """As exporters transpose the last two axes of a tensor of rank 4: by way of rank 3."""

    def formula(b, x):
        flat = b.swap(b.reshape(x, (BATCH * SEQ, 4, 6)))
        return b.reshape(flat, (BATCH, SEQ, 6, 4))

    assert left(formula) == ["TRANSPOSE"]


def test_heads_by_way_of_merged_batches():
    """[S, B, H * D] -> [S, B * H, D] -> [B, H, S, D], as nn.MultiheadAttention has it."""

    def formula(b, x):
        flat = b.transpose(b.reshape(x, (SEQ, BATCH * 4, 6)), (1, 0, 2))
        return b.reshape(flat, (BATCH, 4, SEQ, 6))

    assert left(formula, (SEQ, BATCH, 24)) == ["RESHAPE", "TRANSPOSE"]


def test_heads_are_left_as_they_are():
    """Nothing is merged there."""

    def formula(b, x):
        return b.transpose(b.reshape(x, (BATCH, SEQ, 4, 6)), (0, 2, 1, 3))

    assert left(formula, (BATCH, SEQ, 24)) == ["RESHAPE", "TRANSPOSE"]


@pytest.mark.parametrize(
    ("given", "merged", "groups"),
    [
        ((BATCH, 4, 6), (BATCH * 4, 6), [[0, 1], [2]]),
        ((BATCH, SEQ), (BATCH, 1, SEQ), [[0], [], [1]]),
        ((2, 1, 3), (2, 3), [[0], [1, 2]]),
        ((BATCH, 24), (BATCH, 4, 6), None),
        ((2, 3), (3, 2), None),
        ((3, 1), (3,), [[0, 1]]),
    ],
)
def test_merged_axes(given, merged, groups):
    """Which axes each of the merged ones consists of."""
    assert merged_axes(given, merged) == groups


def test_common_split():
    """The axes that both shapes consist of."""
    assert common_split((SEQ, BATCH, 24), (SEQ, BATCH * 4, 6)) == [SEQ, BATCH, 4, 6]
    assert common_split((2, 6), (4, 3)) == [2, 2, 3]
    assert common_split((6, 2), (4, 3)) is None


def test_slices():
    """Of slices, and of everything."""
    assert left(lambda b, x: b.part(b.part(x, 3, 1, 5), 3, 2, 2)) == ["SLICE"]
    assert left(lambda b, x: b.slice(b.slice(x, {3: 1}, {3: 3}, {3: 2}), {3: 1}, {3: 2})) == ["SLICE"]
    assert left(lambda b, x: b.emit("SLICE", [x], starts=(0,) * 4, sizes=x.dims, steps=(1,) * 4)) == []


def test_a_slice_of_one_part_of_a_concat():
    """The other parts are not needed for it."""

    def formula(b, x):
        return b.part(b.concat([b.act("abs", x), b.act("exp", x)], 3), 3, 6, 6)

    assert left(formula) == ["ACT.exp"]
    assert left(lambda b, x: b.part(b.concat([x, b.act("exp", x)], 3), 3, 5, 3)) == ["ACT.exp", "CONCAT", "SLICE"]


def test_parts_put_together_again():
    """If they are neighbours and in order."""

    def split(b, x):
        return [b.part(x, 3, start, 2) for start in (0, 2, 4)]

    assert left(lambda b, x: b.concat(split(b, x), 3)) == []
    assert left(lambda b, x: b.concat(split(b, x)[1:], 3)) == ["SLICE"]
    assert "CONCAT" in left(lambda b, x: b.concat(split(b, x)[::-1], 3))
    assert "CONCAT" in left(lambda b, x: b.concat(split(b, x), 2))


def test_nested_concats():
    """One copy of each part instead of two."""

    def formula(b, x):
        return b.concat([b.concat([x, b.act("abs", x)], 1), b.act("exp", x)], 1)

    assert left(formula).count("CONCAT") == 1


def test_expansions():
    """Only the last shape counts."""
    assert left(lambda b, x: b.expand(b.expand(x, (3, 4, 6)), (2, 3, 4, 6)), (1, 4, 6)) == ["EXPAND"]


CASTS = [
    (DType.F16, [DType.F32, DType.F16], 0),
    (DType.I32, [DType.I64, DType.I32], 0),
    (DType.BOOL, [DType.F32, DType.I64], 1),
    (DType.F32, [DType.F16, DType.F32], 2),
    (DType.F32, [DType.I64, DType.F32], 2),
    (DType.I64, [DType.BOOL, DType.I64], 2),
    (DType.F16, [DType.F32, DType.BF16], 1),
]


@pytest.mark.parametrize(("given", "casts", "count"), CASTS)
def test_casts(given, casts, count):
    """A cast back from a type that holds all values is none."""

    def formula(b, x):
        for dtype in casts:
            x = b.cast(x, dtype)
        return x

    assert left(formula, (BATCH, 5), given) == ["COPY"] * count


def test_indices():
    """Positions are never negative, so they need not count from the end; and they are a slice."""
    b = GraphBuilder()
    table = b.constant(np.arange(60, dtype=np.float32).reshape(20, 3))
    ids = b.input("ids", DType.I64, (BATCH, SEQ))
    places = b.iota((SEQ,), DType.I64, start=2)
    wrapped = [b.ew("max", i, b.ew("mod", i, 20)) for i in (ids, places)]
    b.output("y", b.add(b.gather(table, wrapped[0]), b.gather(table, wrapped[1])))
    assert canonical(b) == {"EW.mod": 1, "EW.max": 1, "GATHER": 1, "EW.add": 1}


def test_a_gather_that_may_leave_the_table_stays():
    """It traps where the model would fail."""
    b = GraphBuilder()
    x, table = b.input("x", F32, (SEQ, 1)), b.constant(np.ones((9, 3), np.float32))
    b.output("y", b.add(x, b.gather(table, b.iota((SEQ,), DType.I64, start=2))))
    assert canonical(b) == {"IOTA": 1, "GATHER": 1, "EW.add": 1}


def test_constant_indices_are_slices():
    """If they run upwards in equal steps."""
    assert left(lambda b, x: b.gather(x, b.constant(3, DType.I64), 3)) == ["SLICE", "RESHAPE"]
    assert left(lambda b, x: b.gather(x, b.constant([1, 3, 5], DType.I64), 3)) == ["SLICE"]
    assert left(lambda b, x: b.gather(x, b.constant([3, 1], DType.I64), 3)) == ["GATHER"]
    assert left(lambda b, x: b.gather(x, b.constant([1, 2, 2], DType.I64), 3)) == ["GATHER"]


def test_a_scatter_to_every_place_in_order_is_its_updates():
    """Assigning to a slice that is everything."""
    b = GraphBuilder()
    x, y = b.input("x", F32, (SEQ, BATCH)), b.input("y", F32, (SEQ, BATCH))
    places = b.expand(b.iota((SEQ, 1), DType.I64), (SEQ, BATCH))
    b.output("z", b.add(b.scatter("set", x, places, y), 1.0))
    assert canonical(b) == {"EW.add": 1}


def test_a_scatter_to_flattened_places():
    """Indices of several axes as one: row * seq + column, negative ones counted from the end."""
    b = GraphBuilder()
    x, y = b.input("x", F32, (BATCH, SEQ)), b.input("y", F32, (BATCH, SEQ))
    rows, columns = b.iota((BATCH, 1), DType.I64), b.iota((SEQ,), DType.I64)
    columns = b.ew("max", columns, b.ew("mod", columns, b.fill((1, 1), SEQ, DType.I64)))
    places = b.add(b.mul(rows, b.fill((1,), SEQ, DType.I64)), columns)
    flat = [b.reshape(v, (BATCH * SEQ, 1)) for v in (x, places, y)]
    b.output("z", b.add(b.reshape(b.scatter("set", *flat), (BATCH, SEQ)), 1.0))
    assert canonical(b) == {"EW.add": 1}


@pytest.mark.parametrize(("kind", "start"), [("add", 0), ("set", None)])
def test_other_scatters_stay(kind, start):
    """Sums, and other orders."""
    b = GraphBuilder()
    x, y = b.input("x", F32, (4, 3)), b.input("y", F32, (4, 3))
    order = np.arange(4) if start == 0 else np.array([1, 0, 2, 3])
    places = b.constant(np.broadcast_to(order[:, None], (4, 3)), DType.I64)
    b.output("z", b.scatter(kind, x, places, y))
    assert canonical(b) == {f"SCATTER.{kind}": 1}
