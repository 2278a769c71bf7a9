"""Proofs about strided views hold against lists of all their bytes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import DType
from dla.isa.verifier.initialisation import Spans
from dla.isa.verifier.strides import apart, disjoint, runs

DIMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=3)
VIEWS = st.builds(
    lambda dims, offset, dtype: Descriptor(
        Segment.STATE, dtype, tuple(n for n, _ in dims), tuple(s for _, s in dims), offset * dtype.itemsize
    ),
    DIMS,
    st.integers(0, 12),
    st.sampled_from([DType.I8, DType.F16, DType.F32]),
)


def all_bytes(view: Descriptor) -> list[int]:
    """Every byte of every element, once for each element that has it."""
    indices = itertools.product(*(range(n) for n in view.dims))
    starts = [
        view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True)) * view.dtype.itemsize
        for index in indices
    ]
    return [start + byte for start in starts for byte in range(view.dtype.itemsize)]


@settings(max_examples=400, deadline=None)
@given(VIEWS, VIEWS)
def test_disjoint_is_exact_for_small_views(a: Descriptor, b: Descriptor) -> None:
    """Two small views are disjoint exactly if they have no byte in common."""
    assert disjoint(a, b) == (not set(all_bytes(a)) & set(all_bytes(b)))


@settings(max_examples=300, deadline=None)
@given(VIEWS)
def test_apart_is_exact_for_small_views(view: Descriptor) -> None:
    """The elements of a small view are apart exactly if no byte is in two of them."""
    everything = all_bytes(view)
    assert apart(view) == (len(everything) == len(set(everything)))


@settings(max_examples=300, deadline=None)
@given(VIEWS)
def test_runs_are_the_bytes_of_the_view(view: Descriptor) -> None:
    """The runs of a view cover its bytes and no others."""
    found = runs(view, 100)
    assert found is not None
    assert {byte for start, end in found for byte in range(start, end)} == set(all_bytes(view))


def test_large_interleaved_views_are_proven_disjoint() -> None:
    """Columns of a matrix with a million rows are told apart without listing addresses."""
    left = Descriptor(Segment.STATE, DType.F32, (2**20, 4), (8, 1), 0)
    right = Descriptor(Segment.STATE, DType.F32, (2**20, 4), (8, 1), 16)
    assert disjoint(left, right)
    assert not disjoint(left, Descriptor(Segment.STATE, DType.F32, (2**20, 4), (8, 1), 12))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8), st.integers(0, 30), st.integers(1, 8))
def test_spans_are_sets_of_bytes(added: list[tuple[int, int]], start: int, size: int) -> None:
    """Ranges of bytes added one by one answer like a set of bytes."""
    spans, plain = Spans(), set[int]()
    for first, length in added:
        spans.add(first, first + length)
        plain |= set(range(first, first + length))
    asked = set(range(start, start + size))
    assert spans.covers(start, start + size) == (asked <= plain)
    assert spans.touches(start, start + size) == bool(asked & plain)
