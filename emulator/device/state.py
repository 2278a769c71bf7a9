"""State tensors on the device: set back after a trap, and read by the host only where somebody looks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dla.emulator.device.memory import DeviceMemory
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.program import Program, Tensor
from dla.isa.reach import Range, Reach
from dla.isa.table import Role


class Snapshot(Mapping[str, Array]):
    """The state tensors as they were at one moment, by name; each is copied to the host when it is first read."""

    def __init__(self, tensors: Mapping[str, Tensor], read: Callable[[Tensor], Array]) -> None:
        self._tensors = tensors
        self._arrays: dict[str, Array] = {}
        self.read = read

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = self.read(self._tensors[name])
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def settle(self) -> None:
        """Read what has not been read: the device is about to forget it."""
        for name in self._tensors:
            self[name]


class State:
    """The state segment of a session.

    Before a run, what the program may write is copied aside on the device, in case it traps. That copy is also what
    the state was after the run before, so a snapshot of that one can still be read from it.
    """

    def __init__(self, cupy: Any, program: Program, memory: DeviceMemory) -> None:
        self._memory = memory
        self._tensors = {t.name: t for t in program.in_segment(Segment.STATE)}
        self.written = written(program)
        """The ranges of bytes that a run may change: disjoint, sorted, each tensor wholly inside one or outside all."""
        self._aside = cupy.cuda.alloc(sum(high - low for low, high in self.written)) if self.written else None
        self._now: weakref.ref[Snapshot] | None = None
        self._before: weakref.ref[Snapshot] | None = None

    def now(self) -> Snapshot:
        """The state as it is; the snapshot stays what it is when the state changes."""
        alive = _alive(self._now)
        if alive is None:
            alive = Snapshot(self._tensors, lambda tensor: self._memory.read(tensor.descriptor))
            self._now = weakref.ref(alive)
        return alive

    def begin(self) -> None:
        """Before a run whose trap may be set back with `set_back`."""
        if not self.written:
            return
        older = _alive(self._before)
        if older is not None:
            older.settle()
        self._before = None
        for (low, high), place in self._places():
            self._memory.copy_within(place, self._memory.bases[Segment.STATE] + low, high - low)

    def done(self) -> None:
        """After a run that did not trap."""
        if not self.written:
            return
        snapshot = _alive(self._now)
        if snapshot is not None:
            snapshot.read = self._read_aside
        self._before, self._now = self._now, None

    def set_back(self) -> None:
        """Make the state what it was at `begin`."""
        for (low, high), place in self._places():
            self._memory.copy_within(self._memory.bases[Segment.STATE] + low, place, high - low)

    def settle(self) -> None:
        """Before the state changes in any other way than by a run: let snapshots keep what they show."""
        for reference in (self._before, self._now):
            snapshot = _alive(reference)
            if snapshot is not None:
                snapshot.settle()
        self._before = self._now = None

    def _places(self) -> Iterator[tuple[Range, int]]:
        """Each range that may be written, and the device address of its copy."""
        place = self._aside.ptr if self._aside is not None else 0
        for low, high in self.written:
            yield (low, high), place
            place += high - low

    def _read_aside(self, tensor: Tensor) -> Array:
        """A tensor as it was at `begin`."""
        d = tensor.descriptor
        for (low, high), place in self._places():
            if low <= d.offset and d.offset + d.span <= high and d.span:
                return self._memory.read_at(place + d.offset - low, d, d.bounds)
        held: Array = self._memory.read(d)
        return held


def _alive(reference: weakref.ref[Snapshot] | None) -> Snapshot | None:
    return None if reference is None else reference()


def written(program: Program) -> tuple[Range, ...]:
    """The bytes of the state segment that `program` may write, widened so that no tensor lies half inside."""
    reach = Reach(program)
    ranges = {
        reach.of(descriptor)
        for instruction in program.instructions
        for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True)
        if descriptor is not None and descriptor.segment is Segment.STATE and spec.role is Role.OUT
    }
    places = [(t.descriptor.offset, t.descriptor.offset + t.descriptor.span) for t in program.in_segment(Segment.STATE)]
    merged = _merged(ranges)
    while True:
        wider = _merged({*merged, *(p for p in places if any(p[0] < high and low < p[1] for low, high in merged))})
        if wider == merged:
            return merged
        merged = wider


def _merged(ranges: set[Range]) -> tuple[Range, ...]:
    """The union of `ranges`, as disjoint sorted ranges; empty ones are left out."""
    union: list[Range] = []
    for low, high in sorted(ranges):
        if union and low <= union[-1][1]:
            union[-1] = union[-1][0], max(high, union[-1][1])
        elif low < high:
            union.append((low, high))
    return tuple(union)
