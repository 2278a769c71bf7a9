"""What the tests of rows share: calling a row's semantics without a program around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dla.isa.dtypes import Array, DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.table import Out, result_arrays

Evaluate = Callable[..., tuple[Array, ...]]


@pytest.fixture
def evaluate() -> Evaluate:
    """`evaluate("REDUCE.sum", shape, x, axes=(1,))`: the arrays that the row's semantics gives for a first output of
    `shape`. Operands are in the row's order; trailing ones may be left out. `dtype` is the output's type.
    """  # noqa: D205

    def call(
        name: str, shape: tuple[int, ...], *operands: Array | None, dtype: DType = DType.F32, **attributes: Any
    ) -> tuple[Array, ...]:
        mnemonic, _, sub = name.partition(".")
        row = BY_MNEMONIC[mnemonic]
        given = dict(zip((o.name for o in row.inputs), operands, strict=False))
        arguments = {o.name: given.get(o.name) for o in row.inputs} | row.with_defaults(attributes)
        if row.subs:
            arguments["sub"] = sub or row.default_sub
        assert row.semantics is not None
        results = result_arrays(row, row.semantics(Out(shape, dtype), **arguments))
        assert results[0] is not None
        assert np.shape(results[0]) == shape
        return tuple(r for r in results if r is not None)

    return call


@pytest.fixture
def random() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(20_26)
