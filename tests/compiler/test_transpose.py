"""Transposition in memory."""

from __future__ import annotations

import numpy as np
import pytest

from dla.compiler.transpose import transposed
from dla.isa.dtypes import DType


@pytest.mark.parametrize("shape", [(3, 5), (128, 129), (300, 257), (2, 130, 1), (0, 4)], ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_it_is_numpys(shape: tuple[int, ...], dtype: DType) -> None:
    """Of whole blocks and of what is left over, of batches and of nothing."""
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    found = transposed(x)
    np.testing.assert_array_equal(found, x.swapaxes(-1, -2))
    assert found.flags.c_contiguous


def test_what_lies_so_already_is_not_copied() -> None:
    """The view of a view is the tensor itself."""
    x = np.arange(6).reshape(2, 3)
    assert np.shares_memory(transposed(x.T), x)
