"""Footprints: what is called apart shares no byte, and what programs really do is recognised."""

from __future__ import annotations

import random

import pytest

from dla.emulator.footprint import Footprint, footprint
from dla.isa.descriptor import Descriptor, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.program import Program, Tensor
from dla.isa.reach import Reach

WHOLE = contiguous(Segment.SCRATCH, DType.F32, (1024,))
REACH = Reach(Program("p", (), (Tensor("whole", WHOLE),), segment_bytes={Segment.SCRATCH: 8192}))


def of(descriptor: Descriptor) -> Footprint:
    """The footprint in a segment of 8192 bytes, of which the first 4096 are one tensor."""
    return footprint(descriptor, REACH)


def view(dims: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: DType = DType.F32) -> Descriptor:
    """A view of scratch."""
    return Descriptor(Segment.SCRATCH, dtype, dims, strides, offset)


def addresses(d: Descriptor) -> set[int]:
    """Every byte of a view."""
    starts = {d.offset}
    for n, stride in zip(d.bounds, d.strides, strict=True):
        starts = {a + i * stride * d.dtype.itemsize for a in starts for i in range(n)}
    return {a + b for a in starts for b in range(d.dtype.itemsize)}


def random_view(generator: random.Random) -> Descriptor:
    """Up to three dims with strides that often divide each other, as views of tensors have."""
    rank = generator.randrange(4)
    strides = [generator.choice((0, 1, 2, 3, 4, 8, 16, 32, 64)) for _ in range(rank)]
    dims = [generator.choice((0, 1, 2, 3, 4, 8)) for _ in range(rank)]
    dtype = generator.choice((DType.F32, DType.F16, DType.I8, DType.I64))
    return view(tuple(dims), tuple(strides), dtype.itemsize * generator.randrange(64), dtype)


@pytest.mark.parametrize("seed", range(8))
def test_apart_is_a_proof(seed: int) -> None:
    """Over random pairs of views: those called apart share no byte, and every byte lies in low..high."""
    generator = random.Random(seed)
    proofs = 0
    for _ in range(500):
        a, b = random_view(generator), random_view(generator)
        bytes_a, bytes_b = addresses(a), addresses(b)
        fa, fb = of(a), of(b)
        assert all(fa.low <= byte < fa.high for byte in bytes_a)
        assert fa.first <= fa.low <= fa.high <= fa.last
        assert fa.apart(fb) == fb.apart(fa)
        if fa.apart(fb):
            assert not bytes_a & bytes_b
            proofs += fa.low < fb.high and fb.low < fa.high
    assert proofs > 0, "no pair was proven apart by its residues"


def test_column_blocks_are_apart_and_filed_together() -> None:
    """Columns 0..3 and 4..7 of an 8 x 8 matrix interleave in memory but share nothing."""
    left, right = of(view((8, 4), (8, 1), 0)), of(view((8, 4), (8, 1), 16))
    assert left.apart(right)
    assert (left.first, left.last) == (right.first, right.last) == (0, 256)
    assert not left.apart(of(view((8, 4), (8, 1), 12)))
    assert not left.apart(of(view((8, 8), (8, 1), 0)))


def test_transposes_are_solid() -> None:
    """A transposed or reshaped contiguous tensor touches its range without gaps."""
    for d in (view((4, 6), (6, 1), 64), view((6, 4), (1, 6), 64), view((2, 3, 4), (12, 1, 3), 64)):
        assert of(d) == (64, 160, {}, 64, 160, frozenset())


def test_moving_views_may_touch_their_whole_tensor() -> None:
    """An offset register reaches the tensor that the offset points into; outside of all, the segment."""
    inside = Descriptor(Segment.SCRATCH, DType.F32, (4,), (1,), 128, 3, 16)
    outside = Descriptor(Segment.SCRATCH, DType.F32, (4,), (1,), 4096, 3, 16)
    assert of(inside)[:2] == (0, 4096)
    assert of(outside)[:2] == (0, 8192)


def test_dynamic_dims_count_at_their_bounds() -> None:
    """A smaller batch leaves the footprint as it is."""
    d = Descriptor(Segment.SCRATCH, DType.F32, (Dynamic(31, 8), 4), (4, 1), 32)
    assert of(d)[:2] == (32, 160)


def test_empty_views_touch_nothing() -> None:
    """A zero among the dims makes an empty range."""
    assert of(view((4, 0), (1, 1), 100))[:2] == (100, 100)
