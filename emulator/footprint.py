"""Footprints: the bytes that operands may touch, and whether two of them can share one.

Two accesses conflict if at least one writes and their bytes may overlap. Bytes are compared as ranges (see
`emulator.reach`); two ranges that overlap are still apart if, modulo a pitch that divides every larger stride of
both, they are apart: column blocks of one matrix, heads of one attention tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from dla.emulator.reach import Reach
from dla.isa.descriptor import Descriptor


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes low..high of a segment that one operand may touch.

    `axes` are (stride, count), in bytes and elements, of the dims that leave gaps, largest stride first, and
    `itemsize` bytes are touched at each; empty where the range is touched without gaps, or nothing better is known.
    """

    low: int
    high: int
    axes: tuple[tuple[int, int], ...] = ()
    itemsize: int = 0

    def apart(self, other: Footprint) -> bool:
        """Whether the two are proven to share no byte."""
        if self.high <= other.low or other.high <= self.low:
            return True
        if not (self.axes and other.axes):
            return False
        return any(_apart_modulo(self, other, pitch) for pitch in {stride for stride, _ in self.axes + other.axes})


def _apart_modulo(a: Footprint, b: Footprint, pitch: int) -> bool:
    """Whether the residues modulo `pitch` of all bytes of `a` and of `b` are two ranges without a common one."""
    ranges = []
    for footprint in (a, b):
        if any(stride % pitch for stride, _ in footprint.axes if stride >= pitch):
            return False
        low = footprint.low % pitch
        inner = sum((count - 1) * stride for stride, count in footprint.axes if stride < pitch)
        ranges.append((low, low + inner + footprint.itemsize))
    (low_a, high_a), (low_b, high_b) = ranges
    return max(high_a, high_b) <= pitch and (high_a <= low_b or high_b <= low_a)


def footprint(descriptor: Descriptor, reach: Reach) -> Footprint:
    """What `descriptor` may touch, whatever the registers hold (dims at their bounds)."""
    low, high = reach.of(descriptor)
    if descriptor.offset_register is not None:
        return Footprint(low, high)
    itemsize = descriptor.dtype.itemsize
    pairs = zip(descriptor.strides, descriptor.bounds, strict=True)
    axes = sorted((stride * itemsize, count) for stride, count in pairs if stride and count > 1)
    dense = itemsize
    for stride, count in axes:
        if stride > dense:
            return Footprint(low, high, tuple(reversed(axes)), itemsize)
        dense += (count - 1) * stride
    return Footprint(low, high)
