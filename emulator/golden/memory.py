"""Segments of the golden machine, as NumPy views: addresses are checked, and unwritten bytes are known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.dtypes import Array
from dla.isa.errors import Trap
from dla.isa.program import ConstBlock, Program
from dla.isa.reach import Reach


@dataclass(frozen=True)
class Resolved:
    """A descriptor with the registers' values put in: where its elements are in this execution."""

    descriptor: Descriptor
    shape: tuple[int, ...]
    offset: int  # bytes

    @cached_property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last one; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.descriptor.strides, strict=True))
        return (last + 1) * self.descriptor.dtype.itemsize

    @cached_property
    def byte_strides(self) -> tuple[int, ...]:
        return tuple(s * self.descriptor.dtype.itemsize for s in self.descriptor.strides)


class ConstMemory:
    """The read-only const segment, left in the blocks (perhaps memory maps) in which it came."""

    def __init__(self, blocks: Sequence[ConstBlock]) -> None:
        self._blocks = [block for block in blocks if block.data.size]  # by offset, as they came
        self._starts = [block.offset for block in self._blocks]
        self._joined: dict[tuple[int, int], Array] = {}

    def window(self, low: int, high: int) -> tuple[Array, int]:
        """A u8 array that holds bytes low..high, and the address of its first byte."""
        at = bisect_right(self._starts, low) - 1
        if at >= 0 and high <= self._starts[at] + self._blocks[at].data.size:
            return self._blocks[at].data, self._starts[at]
        if (low, high) not in self._joined:
            self._joined[low, high] = self._join(low, high)
        return self._joined[low, high], low

    def _join(self, low: int, high: int) -> Array:
        joined = np.zeros(high - low, np.uint8)
        for block in self._blocks:
            first, last = max(low, block.offset), min(high, block.offset + block.data.size)
            if first < last:
                joined[first - low : last - low] = block.data[first - block.offset : last - block.offset]
        joined.flags.writeable = False
        return joined


class Memory:
    """All segments of one run.

    `watch` keeps one bool per byte of scratch and output: whether it was written; reading any other byte traps.
    """

    def __init__(self, program: Program, const: ConstMemory, reach: Reach, state: Array, *, watch: bool) -> None:
        self._const = const
        self._reach = reach
        self._bytes = {
            segment: np.zeros(program.segment_bytes.get(segment, 0), np.uint8)
            for segment in (Segment.INPUT, Segment.OUTPUT, Segment.SCRATCH)
        } | {Segment.STATE: state}
        watched = (Segment.OUTPUT, Segment.SCRATCH) if watch else ()
        self._written = {segment: np.zeros(self._bytes[segment].size, np.bool_) for segment in watched}

    def resolve(self, descriptor: Descriptor, registers: Sequence[int]) -> Resolved:
        """Put the integer registers' values into `descriptor`. Traps ("extent") where it leaves its limits."""
        shape = []
        for dim in descriptor.dims:
            size = registers[dim.register] if isinstance(dim, Dynamic) else dim
            if isinstance(dim, Dynamic) and not 0 <= size <= dim.bound:
                raise Trap("extent", f"dim s{dim.register} is {size}, outside 0..{dim.bound}")
            shape.append(size)
        offset = descriptor.offset
        if descriptor.offset_register is not None:
            offset += registers[descriptor.offset_register] * descriptor.offset_scale
        resolved = Resolved(descriptor, tuple(shape), offset)
        low, high = self._reach.limits(descriptor)
        if resolved.nbytes and not low <= offset <= offset + resolved.nbytes <= high:
            # The verifier proves static addresses; only it or a damaged program can be at fault for "bounds".
            raise Trap(
                "extent" if descriptor.is_dynamic else "bounds",
                f"bytes {offset}..{offset + resolved.nbytes} of {descriptor.segment.text} are outside {low}..{high}",
            )
        return resolved

    def set_input(self, descriptor: Descriptor, values: Array) -> None:
        """Put the caller's tensor, which fits the bounds, into the input segment."""
        self._view(Resolved(descriptor, values.shape, descriptor.offset))[...] = values

    def read(self, at: Resolved) -> Array:
        """The elements, as a view that may not be written. Traps ("uninitialised") on bytes never written."""
        written = self._written.get(at.descriptor.segment)
        if written is not None and at.nbytes and not self._byte_view(written, at).all():
            raise Trap("uninitialised", f"reads {at.descriptor.segment.text} memory that was never written")
        view = self._view(at)
        view.flags.writeable = False
        return view

    def write(self, at: Resolved, values: Array) -> None:
        """Store `values` (of the descriptor's dtype and resolved shape)."""
        self._view(at)[...] = values
        written = self._written.get(at.descriptor.segment)
        if written is not None and at.nbytes:
            self._byte_view(written, at)[...] = True

    def _view(self, at: Resolved) -> Array:
        dtype = at.descriptor.dtype.numpy
        if not at.nbytes:
            return np.empty(at.shape, dtype)
        if at.descriptor.segment is Segment.CONST:
            window, base = self._const.window(at.offset, at.offset + at.nbytes)
        else:
            window, base = self._bytes[at.descriptor.segment], 0
        return np.ndarray(at.shape, dtype, window.data, at.offset - base, at.byte_strides)

    @staticmethod
    def _byte_view(flags: Array, at: Resolved) -> Array:
        """The flags of every byte of every element, each once: repeated (stride 0) dims are left out."""
        shape = tuple(1 if s == 0 else n for n, s in zip(at.shape, at.descriptor.strides, strict=True))
        itemsize = at.descriptor.dtype.itemsize
        return np.ndarray((*shape, itemsize), np.bool_, flags.data, at.offset, (*at.byte_strides, 1))


def new_state(program: Program) -> Array:
    """The state segment of a freshly loaded program: zeros."""
    return np.zeros(program.segment_bytes.get(Segment.STATE, 0), np.uint8)


def tensor_views(program: Program, segment: Segment, memory: Array) -> Mapping[str, Array]:
    """The named tensors of `segment`, at their bounds, as views of its bytes."""
    return {
        t.name: np.ndarray(t.descriptor.bounds, t.descriptor.dtype.numpy, memory.data, t.descriptor.offset)
        if t.descriptor.span
        else np.empty(t.descriptor.bounds, t.descriptor.dtype.numpy)
        for t in program.in_segment(segment)
    }
