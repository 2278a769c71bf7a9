"""Views of storages: they find the elements that NumPy's views find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.compiler.dims import symbol
from dla.compiler.lower.storage import Storage, View, whole
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType


def storage(*shape):
    """Memory of 64-bit integers."""
    return Storage(Segment.SCRATCH, DType.I64, tuple(shape))


def elements(view: View) -> np.ndarray:
    """What the view sees of the numbers 0, 1, ... ."""
    memory = np.arange(view.storage.nbytes // 8)
    return np.ndarray(view.dims, memory.dtype, memory.data, view.offset * 8, tuple(s * 8 for s in view.strides))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_views_are_those_of_numpy(data):
    """Random chains of transposes, slices and reshapes."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    view = whole(storage(*shape))
    array = np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from(["transpose", "slice", "reshape"]))
        if kind == "transpose":
            perm = data.draw(st.permutations(range(array.ndim)))
            view, array = view.transpose(perm), array.transpose(perm)
        elif kind == "slice":
            starts = [data.draw(st.integers(0, n - 1)) for n in array.shape]
            steps = [data.draw(st.integers(1, 2)) for _ in array.shape]
            array = array[tuple(slice(a, None, k) for a, k in zip(starts, steps, strict=True))]
            view = view.slice(starts, array.shape, steps)
        else:
            flat = list(array.shape)
            at = data.draw(st.integers(0, len(flat) - 1))
            if at and data.draw(st.booleans()):
                shape = (*flat[: at - 1], flat[at - 1] * flat[at], *flat[at + 1 :])
            else:
                divisor = data.draw(st.sampled_from([d for d in range(1, flat[at] + 1) if flat[at] % d == 0]))
                shape = (*flat[:at], divisor, flat[at] // divisor, *flat[at + 1 :])
            found = view.reshape(shape)
            if found is None:  # only where NumPy, too, would have to copy
                assert not np.shares_memory(array.reshape(shape), array)
                continue
            view, array = found, array.reshape(shape)
    np.testing.assert_array_equal(elements(view), array)


def test_a_reshape_that_numpy_can_do_without_a_copy_is_found():
    """Axes of a slice that lie like one."""
    view = whole(storage(2, 3, 4)).slice([0, 0, 0], [2, 3, 2], [1, 1, 1])
    assert view.reshape((6, 2)).strides == (4, 1)
    assert view.reshape((12,)) is None


def test_expanded_axes_have_stride_zero():
    """New ones as well as those of size 1."""
    view = whole(storage(3, 1)).expand((2, 3, 4))
    assert view.strides == (0, 1, 0)


BATCH, SEQ = symbol("batch", 8), symbol("seq", 16)


def test_only_the_outermost_of_merged_axes_may_be_symbolic():
    """Shorter inner rows leave gaps."""
    assert whole(storage(BATCH, 5, 4)).reshape((BATCH * 5, 4)).strides == (4, 1)
    assert whole(storage(BATCH, SEQ, 4)).reshape((BATCH * SEQ, 4)) is None


def test_the_last_axis_splits_into_heads_where_others_are_symbolic():
    """As attention needs it."""
    view = whole(storage(BATCH, SEQ, 12)).reshape((BATCH, SEQ, 3, 4))
    assert view.strides == (16 * 12, 12, 4, 1)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_tensors_have_any_shape(shape):
    """There is nothing to find in them."""
    assert whole(storage(*shape)).reshape((0,)).dims == (0,)
