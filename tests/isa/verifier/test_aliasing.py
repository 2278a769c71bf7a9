"""Views at registers that the verifier takes to be disjoint have no byte in common, whatever the registers hold."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dla.isa.descriptor import Descriptor, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.program import Program, Tensor
from dla.isa.reach import Reach
from dla.isa.verifier.aliasing import Checker

SEGMENT_BYTES = 64
INTERVALS = st.tuples(st.integers(-3, 4), st.integers(-3, 4)).map(lambda ends: (min(ends), max(ends)))
VIEWS = st.builds(
    lambda dims, offset, register, scale: Descriptor(
        Segment.STATE,
        DType.F16,
        tuple(n for n, _ in dims),
        tuple(s for _, s in dims),
        2 * offset,
        register,
        0 if register is None else 2 * scale,
    ),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), max_size=2),
    st.integers(0, 24),
    st.sampled_from([None, 0, 1]),
    st.integers(-4, 8),
)
TENSORS = st.lists(st.integers(0, SEGMENT_BYTES // 8), max_size=3, unique=True).map(
    lambda cuts: tuple(
        Tensor(f"t{a}", contiguous(Segment.STATE, DType.U8, (8 * (b - a),), 8 * a))
        for a, b in itertools.pairwise(sorted(cuts))
    )
)


def bytes_of(view: Descriptor, registers: tuple[int, int], reach: Reach) -> set[int]:
    """The bytes of `view` in one execution; none where the machine would trap instead."""
    offset = view.offset
    if view.offset_register is not None:
        offset += registers[view.offset_register] * view.offset_scale
    indices = itertools.product(*(range(n) for n in view.bounds))
    starts = [offset + 2 * sum(i * s for i, s in zip(index, view.strides, strict=True)) for index in indices]
    low, high = reach.limits(view)
    if min(starts) < low or max(starts) + 2 > high:
        return set()
    return {start + byte for start in starts for byte in range(2)}


@settings(max_examples=400, deadline=None)
@given(VIEWS, VIEWS, TENSORS, INTERVALS, INTERVALS)
def test_disjoint_views_never_meet(
    a: Descriptor, b: Descriptor, tensors: tuple[Tensor, ...], s0: tuple[int, int], s1: tuple[int, int]
) -> None:
    """Over all values in the registers' intervals, two views that are called disjoint share no byte."""
    reach = Reach(Program("t", (), tensors, (), {Segment.STATE: SEGMENT_BYTES}))
    known = [s0, s1] + [(0, 0)] * 30
    if Checker(reach).are_disjoint(a, b, known):
        for values in itertools.product(range(s0[0], s0[1] + 1), range(s1[0], s1[1] + 1)):
            assert not bytes_of(a, values, reach) & bytes_of(b, values, reach)


def test_views_of_two_tensors_are_disjoint_at_any_registers() -> None:
    """An index into one tensor cannot reach another, so nothing need be known of the registers."""
    tensors = tuple(Tensor(name, contiguous(Segment.STATE, DType.F16, (16,), at)) for name, at in (("k", 0), ("v", 32)))
    reach = Reach(Program("t", (), tensors, (), {Segment.STATE: SEGMENT_BYTES}))
    row = contiguous(Segment.STATE, DType.F16, (4,))
    k = dataclasses.replace(row, offset_register=0, offset_scale=8)
    v = dataclasses.replace(row, offset=32, offset_register=1, offset_scale=8)
    assert Checker(reach).are_disjoint(k, v, None)
    assert not Checker(reach).are_disjoint(k, dataclasses.replace(k, offset_register=1), None)
