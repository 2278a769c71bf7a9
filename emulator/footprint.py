"""Footprints: the bytes that operands may touch, and whether two of them can share one.

Two accesses conflict if at least one writes and their bytes may overlap. Bytes are compared as ranges (see
`isa.reach`); two ranges that overlap are still apart if their residues modulo a pitch are, where the pitch divides
every larger stride of both: column blocks of one matrix, heads of one attention tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dla.isa.descriptor import Descriptor, bound_of
from dla.isa.reach import Range, Reach

_NOTHING: Mapping[int, Range] = {}


class Footprint(NamedTuple):
    """The bytes low..high of a segment that one operand may touch.

    `residues` gives, by pitch in bytes, the range in which all its addresses lie modulo that pitch; it is empty
    where the bytes are touched without gaps, or where nothing better than low..high is known. `first`..`last` is
    the range to file it under: a bit wider than low..high, so that column blocks of one matrix share it. `void_at`
    are the registers any of which makes it no byte at all where it is 0; they hold the same throughout a run.
    """

    low: int
    high: int
    residues: Mapping[int, Range]
    first: int
    last: int
    void_at: frozenset[int] = frozenset()

    def apart(self, other: Footprint) -> bool:
        """Whether the two are proven to share no byte."""
        if self.high <= other.low or other.high <= self.low:
            return True
        for pitch, (low, high) in self.residues.items():
            theirs = other.residues.get(pitch)
            if theirs is not None and (high <= theirs[0] or theirs[1] <= low):
                return True
        return False


def solid(low: int, high: int) -> Footprint:
    """All of the bytes low..high."""
    return Footprint(low, high, _NOTHING, low, high)


def footprint(descriptor: Descriptor, reach: Reach) -> Footprint:
    """What `descriptor` may touch, whatever the registers hold (dims at their bounds)."""
    if descriptor.offset_register is not None:
        return solid(*reach.of(descriptor))
    low, itemsize = descriptor.offset, descriptor.dtype.itemsize
    dense = span = 1  # elements; `dense` as long as the dims so far, from the last, leave no gap
    for dim, stride in zip(reversed(descriptor.dims), reversed(descriptor.strides), strict=True):
        count = bound_of(dim)
        if count == 0:
            return solid(low, low)
        span += (count - 1) * stride
        if count == 1 or stride == dense:
            dense *= count
    if dense == span:
        return solid(low, low + span * itemsize)
    return _strided(descriptor, low, low + span * itemsize)


def _strided(descriptor: Descriptor, low: int, high: int) -> Footprint:
    itemsize = descriptor.dtype.itemsize
    pairs = zip(descriptor.strides, descriptor.bounds, strict=True)
    axes = sorted((stride * itemsize, count) for stride, count in pairs if stride and count > 1)
    residues: dict[int, Range] = {}
    extent = itemsize  # bytes from the first to the last one touched by the axes below the pitch
    gaps = False
    for at, (pitch, count) in enumerate(axes):
        gaps = gaps or pitch > extent
        start = low % pitch
        if start + extent <= pitch and all(stride % pitch == 0 for stride, _ in axes[at:]):
            residues[pitch] = start, start + extent
        extent += (count - 1) * pitch
    if not gaps or not residues:
        return solid(low, high)
    widest = max(residues)
    return Footprint(low, high, residues, low - low % widest, high + -high % widest)
