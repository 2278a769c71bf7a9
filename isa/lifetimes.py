"""Which bytes of scratch memory hold something that is still needed, instruction by instruction.

A byte is in use during an instruction that writes it, and from a write to the last read that may see it. All of that
follows from the operands and from the order in which instructions may run (loops, branches and calls included), so it
holds for any program, whoever placed its tensors. Dims are taken at their bounds. Where a view has too many pieces to
tell apart, or its address is in a register, it is taken as a whole that a write does not clear; in very long programs
neighbouring pieces are taken together. Then more may seem in use than is, never less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import Array
from dla.isa.program import Program, Tensor
from dla.isa.reach import Range, Reach
from dla.isa.table import Role
from dla.isa.verifier.strides import runs

_MAX_TABLE = 2**25
"""Bytes of a table, [instructions, pieces of memory]; pieces are told apart as finely as that allows."""
_FINENESS = (2**14, 2**10, 2**5, 1)
"""Pieces that one view may have: the first of these that keeps the table small enough."""
_NEAR = 256
"""Tensors that are looked at for the name of one view."""


@dataclass
class Lifetime:
    """A piece of scratch memory from the instruction that first writes it to the last one that reads it."""

    name: str  # of the declared tensor that lies there; "" where none does
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Usage:
    """The use of the scratch segment, of `size` bytes.

    `held[i, k]` says whether piece `k`, the bytes from `edges[k]` to `edges[k + 1]`, is in use during instruction `i`.
    """

    size: int
    edges: Array
    held: Array
    lifetimes: tuple[Lifetime, ...]

    @cached_property
    def in_use(self) -> list[int]:
        """Bytes in use during each instruction."""
        return [int(n) for n in self.held @ np.diff(self.edges)]

    @property
    def lower_bound(self) -> int:
        """The most bytes in use during one instruction: no other placement needs less."""
        return max(self.in_use, default=0)

    @property
    def peak(self) -> int:
        """The first instruction that has so many bytes in use."""
        return self.in_use.index(self.lower_bound)

    def shares(self, rows: int, columns: Sequence[Range]) -> Array:
        """How much of the segment is in use, 0 to 1: [rows, columns], address 0 first.

        Rows are equal ranges of addresses, columns ranges of instructions.
        """
        limits = np.linspace(0, self.size, rows + 1)
        low, high = self.edges[:-1, None], self.edges[1:, None]
        overlap = np.clip(np.minimum(high, limits[1:]) - np.maximum(low, limits[:-1]), 0, None)  # [pieces, rows]
        means = np.stack([self.held[first:end].mean(axis=0) for first, end in columns])
        return np.asarray((means @ overlap).T / (self.size / rows))


def usage(program: Program) -> Usage:
    """The use of scratch memory by `program`, which is verified."""
    size = program.segment_bytes.get(Segment.SCRATCH, 0)
    most = _MAX_TABLE // len(program.instructions)
    for fineness in _FINENESS:
        accesses, edges = _accesses(program, fineness, size)
        if len(edges) <= most:
            break
    else:
        edges = np.append(edges[: -1 : -(-len(edges) // most)], edges[-1])
    reads, writes, clears = _tables(accesses, edges, len(program.instructions))
    followers = _followers(program)
    needed = _needed(reads, clears, followers)
    written = _written(writes, followers)
    held = (needed & written) | writes
    return Usage(size, edges, held, _lifetimes(program, accesses, edges, held, needed & written))


@dataclass(frozen=True)
class _Access:
    """What an operand touches: pieces of memory, all of which it is sure to touch if it is `exact`."""

    instruction: int
    descriptor: Descriptor
    writes: bool
    exact: bool
    pieces: list[Range]

    def mask(self, edges: Array, *, whole: bool = False) -> Array:
        """The pieces that it touches (or touches as a `whole`), as a bool for each."""
        start, end = np.array(self.pieces, np.int64).reshape(-1, 2).T
        if whole:
            first, last = edges.searchsorted(start, "left"), edges.searchsorted(end, "right") - 1
        else:
            first, last = edges.searchsorted(start, "right") - 1, edges.searchsorted(end, "left")
        change = np.zeros(len(edges), np.int64)
        np.add.at(change, first, last > first)
        np.subtract.at(change, last, last > first)
        return np.asarray(np.cumsum(change)[:-1] > 0)


def _accesses(program: Program, fineness: int, size: int) -> tuple[list[_Access], Array]:
    """Every access to scratch memory, and the addresses at which one begins or ends."""
    reach = Reach(program)
    found = []
    for index, instruction in enumerate(program.instructions):
        for operand, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
            if descriptor is None or descriptor.segment is not Segment.SCRATCH:
                continue
            static = descriptor.offset_register is None
            pieces = runs(descriptor, fineness) if static else None
            exact = pieces is not None
            found.append(_Access(index, descriptor, operand.role is Role.OUT, exact,
                                 [reach.of(descriptor)] if pieces is None else pieces))  # fmt: skip
    ends = [np.array(access.pieces, np.int64).reshape(-1) for access in found]
    return found, np.unique(np.concatenate([np.array([0, size], np.int64), *ends]))


def _tables(accesses: Sequence[_Access], edges: Array, count: int) -> tuple[Array, Array, Array]:
    """What each instruction reads, writes, and is sure to write: bools [instructions, pieces]."""
    reads, writes, clears = (np.zeros((count, len(edges) - 1), np.bool_) for _ in range(3))
    for access in accesses:
        mask = access.mask(edges)
        (writes if access.writes else reads)[access.instruction] |= mask
        if access.writes and access.exact:
            clears[access.instruction] |= access.mask(edges, whole=True)
    return reads, writes, clears


def _needed(reads: Array, clears: Array, followers: Sequence[Sequence[int]]) -> Array:
    """Whether a later read may see the bytes as they are before each instruction."""
    needed = np.zeros_like(reads)
    changed = True
    while changed:  # once for straight code; loops take a pass more for each level of nesting
        changed = False
        for index in range(len(reads) - 1, -1, -1):
            after = np.logical_or.reduce(needed[followers[index]], axis=0)
            before = reads[index] | (after & ~clears[index])
            if not np.array_equal(before, needed[index]):
                needed[index], changed = before, True
    return needed


def _written(writes: Array, followers: Sequence[Sequence[int]]) -> Array:
    """Whether the bytes may have been written before each instruction."""
    written = np.zeros_like(writes)
    changed = True
    while changed:
        changed = False
        for index, targets in enumerate(followers):
            after = written[index] | writes[index]
            for target in targets:
                if (after & ~written[target]).any():
                    written[target] |= after
                    changed = True
    return written


def _followers(program: Program) -> list[list[int]]:
    """The instructions that may run right after each one. A function may return to any of its calls."""
    code = program.instructions
    jumps = [i.attributes.get("target", 0) if i.row.mnemonic in ("BR", "CALL") else 0 for i in code]
    functions = sorted({0, *(t for i, t in zip(code, jumps, strict=True) if i.row.mnemonic == "CALL")})
    returns: dict[int, list[int]] = {start: [] for start in functions}
    for index, instruction in enumerate(code):
        if instruction.row.mnemonic == "CALL":
            returns[jumps[index]].append(index + 1)
    found = []
    for index, instruction in enumerate(code):
        attributes, following = instruction.attributes, [index + 1]
        match instruction.row.mnemonic:
            case "HALT":
                following = []
            case "RET":
                following = returns[functions[bisect_right(functions, index) - 1]]
            case "CALL":
                following = [jumps[index]]
            case "BR":
                following = [jumps[index]] + ([index + 1] if attributes.keys() & {"if", "unless"} else [])
            case "LOOP":
                following = [index + 1, attributes.get("end", 0) + 1]
            case "ENDLOOP":
                following = [attributes.get("begin", 0) + 1, index + 1]
        found.append([f for f in following if f < len(code)])
    return found


def _lifetimes(
    program: Program, accesses: Sequence[_Access], edges: Array, held: Array, kept: Array
) -> tuple[Lifetime, ...]:  # fmt: skip
    """The lives of what is written, in order; what is changed in place lives on. `kept`: in use before."""
    names = _Names(program)
    found: list[Lifetime] = []
    owner = np.full(len(edges) - 1, -1)  # of each piece: the number of its lifetime
    by_instruction: dict[int, list[_Access]] = {}
    for access in accesses:
        by_instruction.setdefault(access.instruction, []).append(access)
    sizes = np.diff(edges)
    for index in range(len(held)):
        owner[~held[index]] = -1
        here = by_instruction.get(index, [])
        read = {access.descriptor.offset for access in here if not access.writes}
        for access in here:
            if not access.writes:
                continue
            fresh = access.mask(edges)
            if not access.exact:
                fresh &= owner == -1
            elif access.descriptor.offset in read:
                fresh &= ~kept[index]
            if fresh.any():
                owner[fresh] = len(found)
                start, name = int(edges[np.argmax(fresh)]), names.of(access.descriptor)
                found.append(Lifetime(name, start, int(sizes[fresh].sum()), index, index))
        for number in np.unique(owner[owner >= 0]):
            found[number].last = index
    return tuple(found)


class _Names:
    """Which declared tensor lies where an instruction writes. Several may share memory, one after the other."""

    def __init__(self, program: Program) -> None:
        self._tensors = sorted(program.in_segment(Segment.SCRATCH), key=lambda t: t.descriptor.offset)
        self._starts = [tensor.descriptor.offset for tensor in self._tensors]
        self._used: set[str] = set()

    def of(self, written: Descriptor) -> str:
        """The name of the tensor that `written` is, or lies in: of those that fit equally well, one not met before."""
        found = [(rank, tensor.name) for tensor in self._near(written) if (rank := self._rank(tensor, written))]
        name = min(found, key=lambda ranked: ranked[0], default=(None, ""))[1]
        self._used.add(name)
        return name

    def _near(self, written: Descriptor) -> Sequence[Tensor]:
        """The tensors that begin last before `written`: those around it, but where tensors nest deeply."""
        at = bisect_right(self._starts, written.offset)
        return self._tensors[max(0, at - _NEAR) : at]

    def _rank(self, tensor: Tensor, written: Descriptor) -> tuple[int, bool, int] | None:
        """How well `tensor` fits, best first; None if `written` is not in it."""
        d = tensor.descriptor
        if written.offset + written.span > d.offset + d.span:
            return None
        exact = (d.offset, d.span) == (written.offset, written.span)
        same = exact and (d.dtype, d.dims) == (written.dtype, written.dims)
        return 0 if same else 1 if exact else 2, tensor.name in self._used, d.span
