"""Which bytes an operand may touch, whatever the registers hold.

The verifier and dependency analysis believe these ranges, so machines trap ("extent") rather than leave them.
"""

from __future__ import annotations

from bisect import bisect_right

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.program import Program

Range = tuple[int, int]
"""First byte, and last byte + 1, of a segment."""


class Reach:
    """Ranges of the operands of one program.

    A descriptor without an offset register touches the range from its offset to the end of its last element at the
    bounds. One with an offset register stays inside the named tensor that its immediate offset points into; where
    it points into none, inside the segment.
    """

    def __init__(self, program: Program) -> None:
        self._sizes = {segment: program.segment_bytes.get(segment, 0) for segment in Segment}
        self._tensors: dict[Segment, list[Range]] = {segment: [] for segment in Segment}
        for tensor in program.tensors:
            d = tensor.descriptor
            self._tensors[d.segment].append((d.offset, d.offset + d.span))
        for ranges in self._tensors.values():
            ranges.sort()

    def of(self, descriptor: Descriptor) -> Range:
        """The bytes of its segment that `descriptor` may touch; empty ranges for empty tensors."""
        if descriptor.offset_register is None:
            return descriptor.offset, descriptor.offset + descriptor.span
        return self._around(descriptor.segment, descriptor.offset)

    def limits(self, descriptor: Descriptor) -> Range:
        """The bytes inside which a machine must keep `descriptor`: its reach, or the segment if it is static."""
        if descriptor.offset_register is None:
            return 0, self._sizes[descriptor.segment]
        return self._around(descriptor.segment, descriptor.offset)

    def _around(self, segment: Segment, offset: int) -> Range:
        ranges = self._tensors[segment]
        at = bisect_right(ranges, (offset, 2**63)) - 1
        if at >= 0 and ranges[at][0] <= offset < ranges[at][1]:
            return ranges[at]
        return 0, self._sizes[segment]
