"""Arithmetic of shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dla.compiler.dims import symbol
from dla.compiler.shapes import broadcast, common_split, inverse, merged_axes, runs, shape_text
from dla.isa.errors import ModelError

BATCH = symbol("batch", 8)


def test_shapes_broadcast_as_in_numpy_and_symbols_with_1():
    """From the last axis on."""
    assert broadcast([(4, 1), (3,), ()]) == (4, 3)
    assert broadcast([(BATCH, 1), (1, 5)]) == (BATCH, 5)


def test_a_symbol_does_not_broadcast_with_another_size():
    """Its size may differ."""
    with pytest.raises(ModelError, match=r"EW of shapes \[batch\] and \[8\] do not broadcast"):
        broadcast([(BATCH,), (8,)], "EW")


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_the_inverse_order_undoes_a_transposition(perm):
    """Of arrays of different sizes along each axis."""
    x = np.zeros((2, 3, 4, 5))
    assert x.transpose(perm).transpose(inverse(perm)).shape == x.shape


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((4, 6, 5), (2, 12, 5), [((0, 1), (0, 1)), ((2,), (2,))]),
        ((BATCH, 6), (BATCH, 2, 3), [((0,), (0,)), ((1,), (1, 2))]),
        ((BATCH * 6,), (BATCH, 6), [((0,), (0, 1))]),
        ((2, 3), (2, 3, 1, 1), [((0,), (0,)), ((1,), (1, 2, 3))]),
        ((), (), []),
        ((6,), (4,), None),
        ((2, 1), (2,), None),
    ],
    ids=lambda given: shape_text(given) if isinstance(given, tuple) else None,
)
def test_runs_have_equal_products_and_are_as_short_as_can_be(old, new, expected):
    """Axes of size 1 at the end of the new shape belong to its last run."""
    found = runs(old, new)
    assert (found and [(tuple(a), tuple(b)) for a, b in found]) == expected


def test_axes_that_are_merged_are_told_and_those_that_are_split_are_not():
    """Axes of size 1 may belong to any group."""
    assert merged_axes((2, 3, BATCH, 1), (6, BATCH)) == [[0, 1], [2, 3]]
    assert merged_axes((6,), (2, 3)) is None


def test_the_common_split_of_two_shapes_is_as_coarse_as_can_be():
    """Both are made of it by merging neighbours."""
    assert common_split((BATCH * 4, 6), (BATCH, 4, 1, 6)) == [BATCH, 4, 6]
    assert common_split((4, 6), (6, 4)) is None
