"""Folding: nodes whose inputs are constant are computed, unless something in them is known only at a run."""

from __future__ import annotations

import numpy as np

import dla
from dla.isa.dtypes import DType


def test_a_slice_that_starts_at_a_symbol_is_left_to_the_run() -> None:
    """A row of a table of positions, chosen by a length: the table is constant, its place in it is not."""
    b = dla.GraphBuilder("g")
    n = dla.symbol("n", 3)
    x = b.input("x", DType.F32, (n,))
    table = b.constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    b.output("y", b.slice(table, {0: n}, {0: 1}))
    b.output("z", b.ew("add", x, 1.0))
    program = dla.compile_model(b).program
    for size in (1, 3):
        result = dla.Machine("golden").run(program, {"x": np.zeros(size, np.float32)})
        np.testing.assert_array_equal(result["y"], [[2 * size, 2 * size + 1]])


def test_small_results_are_constants_at_once() -> None:
    """The builder folds, so that shapes may depend on the result."""
    b = dla.GraphBuilder("g")
    y = b.ew("add", b.constant(np.array([1, 2], np.int64)), 1)
    assert y.constant is not None
    assert y.constant.tolist() == [2, 3]
