"""Collectives between launches: what each rank sends and gets as bytes, and what it makes of them on its GPU.

A fold takes what all ranks bring, from the left in ascending order of ranks, in the accumulator's type, and rounds
once: so it has the same bits as inside the kernel, and as on the golden machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.nccl import Round, Transfer
from dla.emulator.device.paths.parties import partners
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import Array, DType
from dla.isa.errors import InputError, Trap
from dla.isa.instructions.allreduce import fold
from dla.isa.program import Program
from dla.isa.ranks import COUNTED, list_with, lists_of
from dla.isa.shapes import parse

TWO_SHOTS_FROM = 2**20
"""Bytes of an ALLREDUCE over more than two ranks from which each rank folds one piece, and then all get all pieces."""


@dataclass(frozen=True)
class Flat:
    """Elements one behind the other in device memory, as unsigned integers of their size."""

    address: int
    elements: Any  # [n]

    @property
    def bytes(self) -> int:
        """Their size."""
        return int(self.elements.nbytes)

    def part(self, begin: int, end: int) -> Flat:
        """Those from `begin` to `end`."""
        return Flat(self.address + begin * int(self.elements.itemsize), self.elements[begin:end])

    def cut(self, count: int) -> list[Flat]:
        """As many parts, all of one size."""
        size = len(self.elements) // count
        return [self.part(k * size, (k + 1) * size) for k in range(count)]


class Part:
    """What one rank does in the collective at `index`, at which its launch has paused with `operands`.

    `operands` are TENSOR records: out and x. Raises Trap ("extent") where they have not a part for each rank.
    """

    def __init__(
        self, cupy: Any, memory: DeviceMemory, program: Program, index: int, rank: int, world: int, operands: Array
    ) -> None:
        instruction = program.instructions[index]
        row, group = instruction.row, instruction.attributes.get("group", 0)
        self._cupy, self._memory = cupy, memory
        self._ranks = list_with(lists_of(program.groups, group, world), rank)
        self._place = self._ranks.index(rank)
        self._sends, gets = partners(instruction, self._ranks, rank, program.pairs)
        self._gets = sorted(gets)
        self._sub = instruction.sub if row.subs else None  # of a fold
        self._addresses: list[int] = []  # of out and x, as all of these
        self._packed: list[bool] = []
        self._descriptors: list[Descriptor] = []
        self._empty = False
        views: list[Any] = []
        in_parts: list[bool] = []
        for spec, descriptor, operand in zip(row.operands, instruction.operands, operands, strict=True):
            assert descriptor is not None, "collectives have no optional operands"
            shape, strides = (operand[name][: descriptor.rank].tolist() for name in ("dims", "strides"))
            in_parts.append(COUNTED in parse(spec.shape).fixed)
            if in_parts[-1] and shape[0] != len(self._ranks):
                raise Trap("extent", f"{spec.name} has {shape[0]} parts, and the group has {len(self._ranks)} ranks",
                           instruction=index, location=program.location(index), rank=rank)  # fmt: skip
            self._addresses.append(int(operand["data"]))
            self._packed.append(bool(operand["contiguous"]))
            self._empty |= 0 in shape
            views.append(None if self._empty else memory.view_at(self._addresses[-1], descriptor, shape, strides))
            self._descriptors.append(descriptor)
        self._out, self._x = views
        self._x_in_parts = in_parts[1]
        self._dtype = DType(int(operands[0]["dtype"]))

    def rounds(self) -> Iterator[Round]:
        """Do it, on the current stream of the rank's GPU: before each next step, what a round brings is there.

        Raises InputError where the GPU lacks the memory.
        """
        if self._empty:
            return
        x, members = self._flat_x(), range(len(self._ranks))
        if self._sub is not None and not self._x_in_parts and len(members) > 2 and x.bytes >= TWO_SHOTS_FROM:
            yield from self._in_two_shots(x, self._sub)
            return
        parts = x.cut(len(members)) if self._x_in_parts else [x] * len(members)
        direct = self._sub is None and self._packed[0] and self._addresses[0] != self._addresses[1]
        size = len(parts[0].elements) * len(self._gets)
        room = self._flat(0, size) if direct else self._room(size)
        come = dict(zip(self._gets, room.cut(len(self._gets)) if self._gets else (), strict=True))
        yield from self._swap({m: parts[m] for m in self._sends}, come)
        if self._sub is not None:
            self._store(folded(self._sub, self._dtype, [one.elements for one in come.values()]))
        elif not self._gets:
            self._out[...] = 0
        elif not direct:
            self._store(room.elements)

    def _in_two_shots(self, x: Flat, sub: str) -> Iterator[Round]:
        """Fold one piece of x, and give it to all."""
        count, elements = len(self._ranks), len(x.elements)
        size = -(-elements // count)
        cuts = list(pairwise(min(k * size, elements) for k in range(count + 1)))
        begin, end = cuts[self._place]
        brought, whole = self._room(count * (end - begin)).cut(count), self._room(elements)
        yield from self._swap({m: x.part(*cuts[m]) for m in range(count)}, dict(enumerate(brought)))
        mine = whole.part(begin, end)
        mine.elements[...] = folded(sub, self._dtype, [one.elements for one in brought])
        yield from self._swap(dict.fromkeys(range(count), mine), {m: whole.part(*cuts[m]) for m in range(count)})
        self._store(whole.elements)

    def _swap(self, given: Mapping[int, Flat], taken: Mapping[int, Flat]) -> Iterator[Round]:
        """A round: what goes to each member, and where what comes from each goes."""
        own = self._place
        if own in given and own in taken:
            taken[own].elements[...] = given[own].elements
        yield Round(self._with_others(given), self._with_others(taken))

    def _with_others(self, flats: Mapping[int, Flat]) -> list[Transfer]:
        found = [(m, flat) for m, flat in flats.items() if m != self._place and flat.bytes]
        return [Transfer(self._ranks[m], flat.address, flat.bytes) for m, flat in found]

    def _flat_x(self) -> Flat:
        """x, a copy unless it has no gaps."""
        if self._packed[1]:
            return self._flat(1, self._x.size)
        copy = self._room(self._x.size)
        copy.elements.reshape(self._x.shape)[...] = self._x
        return copy

    def _flat(self, operand: int, elements: int) -> Flat:
        """All elements of an operand without gaps."""
        address, descriptor = self._addresses[operand], self._descriptors[operand]
        return Flat(address, self._memory.view_at(address, descriptor, (elements,), (1,)))

    def _room(self, elements: int) -> Flat:
        """Memory of the device for so many. Raises InputError where it is missing."""
        size = max(1, elements * self._dtype.itemsize)
        try:
            memory = self._cupy.cuda.alloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise InputError(f"a collective of {len(self._ranks)} ranks needs {size:,} bytes more of GPU memory",
                             hint='transport="peer" needs none, where GPUs reach each other') from error  # fmt: skip
        return Flat(int(memory.ptr), self._memory.carried(elements, self._dtype, memory))

    def _store(self, elements: Any) -> None:
        self._out[...] = elements.reshape(self._out.shape)


def folded(sub: str, dtype: DType, brought: Sequence[Any]) -> Any:
    """`sub` of what the members bring, in their order: arrays of a dtype as unsigned integers of its size."""
    with np.errstate(all="ignore"):
        return _narrowed(fold(sub, [_widened(one, dtype) for one in brought]), dtype)


def _widened(bits: Any, dtype: DType) -> Any:
    """Elements in the accumulator's type: f32, or i32, in which sums wrap as in any wider type."""
    if dtype is DType.BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype is DType.F16 else bits.view(dtype.numpy)


def _narrowed(wide: Any, dtype: DType) -> Any:
    """The opposite, rounded to the nearest, of two equally near to the even one."""
    if dtype is DType.BF16:
        bits = wide.view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
        return np.where(wide != wide, np.uint32(0x7FC0), rounded).astype(np.uint16)
    return wide.astype(np.float16).view(np.uint16) if dtype is DType.F16 else wide.view(np.uint32)
