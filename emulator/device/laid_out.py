"""Constants as products of few rows read them quickest: packed along the depth, whatever a program was written with.

Such a GEMM takes as long as its b takes to be read, and one that is packed along the depth (`w.T` of [columns, depth])
is read quicker than one that lies across (`w` of [depth, columns]; paths/stream.py). The compiler packs weights. One
that somebody wrote down is transposed in device memory when the program is loaded, and the GEMMs' operands with it,
where GEMMs read the whole of it and nobody else reads any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dla.emulator.device.paths import stream
from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.dtypes import Array
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach

ITEM_BYTES = 2
"""Of the types that are streamed."""


@dataclass(frozen=True)
class Matrix:
    """A matrix [depth, columns] of 16-bit elements at byte `offset` of the const segment, to be [columns, depth]."""

    offset: int
    depth: int
    columns: int

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return self.depth * self.columns * ITEM_BYTES


@dataclass(frozen=True)
class LaidOut:
    """A program that reads its constants where they lie once `matrices` are transposed."""

    program: Program
    matrices: tuple[Matrix, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of constants that are transposed."""
        return sum(m.nbytes for m in self.matrices)


@dataclass(frozen=True)
class _Use:
    """An operand in the const segment: operand `slot` of an instruction, and the bytes that it may read."""

    begin: int
    end: int
    index: int
    slot: int
    descriptor: Descriptor
    is_matrix: bool  # the whole b of a GEMM, which lies across
    is_streamed: bool  # once it is packed, by a run of the fewest rows


def laid_out(program: Program, *, hopper: bool) -> LaidOut:
    """The verified `program` as a GPU with Hopper's paths executes it, and what to transpose for it; else as it is.

    Instructions keep their places, and tensors theirs.
    """
    if not hopper:
        return LaidOut(program)
    instructions, matrices = list(program.instructions), []
    for group in _apart(_uses(program)):
        found = _matrices(group)
        matrices += found
        for use in group if found else ():
            instructions[use.index] = _with(instructions[use.index], use.slot, _packed(use.descriptor))
    if not matrices:
        return LaidOut(program)
    return LaidOut(replace(program, instructions=tuple(instructions)), tuple(matrices))


def transpose(constants: Array, matrices: Iterable[Matrix]) -> None:
    """Transpose `matrices` in the const segment, u8 [n], each in its place."""
    for m in matrices:
        place = constants[m.offset : m.offset + m.nbytes].view(np.uint16)
        place.reshape(m.columns, m.depth)[...] = place.reshape(m.depth, m.columns).T.copy()


def _uses(program: Program) -> Iterator[_Use]:
    reach = Reach(program)
    for index, instruction in enumerate(program.instructions):
        for slot, (spec, d) in enumerate(zip(instruction.row.operands, instruction.operands, strict=True)):
            if d is None or d.segment is not Segment.CONST:
                continue
            is_matrix = instruction.row.mnemonic == "GEMM" and spec.name == "b" and _is_whole(d)
            is_streamed = is_matrix and stream.takes(_of_fewest_rows(_with(instruction, slot, _packed(d))))
            yield _Use(*reach.of(d), index, slot, d, is_matrix, is_streamed)


def _apart(uses: Iterable[_Use]) -> Iterator[list[_Use]]:
    """Groups of operands that have bytes in common, with others through others."""
    group: list[_Use] = []
    end = 0
    for use in sorted(uses, key=lambda use: use.begin):
        if group and use.begin >= end:
            yield group
            group = []
        group.append(use)
        end = max(end, use.end)
    if group:
        yield group


def _matrices(group: Sequence[_Use]) -> list[Matrix]:
    """What a group reads, if it is matrices of one shape, side by side, that are worth it; else nothing."""
    if not all(use.is_matrix for use in group) or not any(use.is_streamed for use in group):
        return []
    depth, columns = group[0].descriptor.bounds[-2:]
    begin, end, size = group[0].begin, max(use.end for use in group), depth * columns * ITEM_BYTES
    for d in (use.descriptor for use in group):
        if d.bounds[-2:] != (depth, columns) or (d.offset - begin) % size or d.offset_scale % size:
            return []
    return [Matrix(offset, depth, columns) for offset in range(begin, end, size)] if (end - begin) % size == 0 else []


def _is_whole(b: Descriptor) -> bool:
    """Whether it is one matrix of 16-bit elements, row after row without gaps, and not one row or column."""
    if b.rank < 2 or b.dtype.itemsize != ITEM_BYTES or any(isinstance(dim, Dynamic) for dim in b.dims):
        return False
    *batches, depth, columns = b.bounds
    return all(n == 1 for n in batches) and depth > 1 and columns > 1 and b.strides[-2:] == (columns, 1)


def _packed(b: Descriptor) -> Descriptor:
    """The same matrix, transposed in its place."""
    return replace(b, strides=(*b.strides[:-2], 1, b.bounds[-2]))


def _with(instruction: Instruction, slot: int, descriptor: Descriptor) -> Instruction:
    operands = (*instruction.operands[:slot], descriptor, *instruction.operands[slot + 1 :])
    return replace(instruction, operands=operands)


def _of_fewest_rows(instruction: Instruction) -> Instruction:
    """The instruction of a run in which each dim that is in a register is 1."""
    return replace(instruction, operands=tuple(d and _fewest(d) for d in instruction.operands))


def _fewest(d: Descriptor) -> Descriptor:
    return replace(d, dims=tuple(1 if isinstance(dim, Dynamic) else dim for dim in d.dims))
