"""Constants as products of few rows read them quickest: columns of neighbours, whatever the program was written with.

Such a GEMM takes as long as its other matrix takes to be read, and reads columns quicker than rows (paths/stream.py).
The compiler places columns. A matrix [depth, columns] that somebody wrote down lies in rows: where nobody but GEMMs
reads it, it is transposed in device memory when the program is loaded, and the GEMMs' operands with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dla.emulator.device.paths import stream
from dla.isa.descriptor import Descriptor, Dynamic, Segment
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach

ITEM_BYTES = 2
"""Of the types that are streamed."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of 16-bit elements at byte `offset` of the const segment: [depth, columns], columns to be."""

    offset: int
    depth: int
    columns: int


@dataclass(frozen=True)
class LaidOut:
    """A program that reads its constants where they lie once `matrices` are transposed."""

    program: Program
    matrices: tuple[Matrix, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of constants that are transposed."""
        return sum(m.depth * m.columns * ITEM_BYTES for m in self.matrices)


@dataclass(frozen=True)
class _Use:
    """An operand in the const segment: operand `slot` of an instruction, and the bytes that it may read."""

    begin: int
    end: int
    index: int
    slot: int
    descriptor: Descriptor
    is_matrix: bool  # the whole b of a GEMM, in rows
    is_streamed: bool  # in columns, and by a run of the fewest rows


def laid_out(program: Program) -> LaidOut:
    """The verified `program` as a GPU with Hopper's paths executes it, and what to transpose for that.

    Instructions keep their places, and tensors theirs.
    """
    instructions, matrices = list(program.instructions), []
    for group in _apart(_uses(program)):
        found = _matrices(group)
        matrices += found
        for use in group if found else ():
            instructions[use.index] = _with(instructions[use.index], use.slot, _in_columns(use.descriptor))
    if not matrices:
        return LaidOut(program)
    return LaidOut(replace(program, instructions=tuple(instructions)), tuple(matrices))


def transpose(constants: Any, matrices: Iterable[Matrix]) -> None:
    """Transpose `matrices` in the const segment, u8 [n] of NumPy or CuPy, each in its place."""
    for m in matrices:
        place = constants[m.offset : m.offset + m.depth * m.columns * ITEM_BYTES].view(np.uint16)
        place.reshape(m.columns, m.depth)[...] = place.reshape(m.depth, m.columns).T.copy()


def _uses(program: Program) -> Iterator[_Use]:
    reach = Reach(program)
    for index, instruction in enumerate(program.instructions):
        for slot, (spec, d) in enumerate(zip(instruction.row.operands, instruction.operands, strict=True)):
            if d is None or d.segment is not Segment.CONST:
                continue
            is_matrix = instruction.row.mnemonic == "GEMM" and spec.name == "b" and _is_whole(d)
            is_streamed = is_matrix and stream.takes(_of_fewest_rows(_with(instruction, slot, _in_columns(d))))
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
    first = group[0].descriptor
    depth, columns = first.bounds[-2:] if group[0].is_matrix else (0, 0)
    begin, end, size = group[0].begin, max(use.end for use in group), depth * columns * ITEM_BYTES
    if not any(use.is_streamed for use in group) or (end - begin) % size:
        return []
    for use in group:
        d = use.descriptor
        if not use.is_matrix or d.bounds[-2:] != (depth, columns):
            return []
        if (d.offset - begin) % size or d.offset_scale % size:
            return []
    return [Matrix(offset, depth, columns) for offset in range(begin, end, size)]


def _is_whole(b: Descriptor) -> bool:
    """Whether it is one matrix of 16-bit elements in rows without gaps, and not one row or column."""
    if b.rank < 2 or b.dtype.itemsize != ITEM_BYTES or any(isinstance(dim, Dynamic) for dim in b.dims):
        return False
    *batches, depth, columns = b.bounds
    return all(n == 1 for n in batches) and depth > 1 and columns > 1 and b.strides[-2:] == (columns, 1)


def _in_columns(b: Descriptor) -> Descriptor:
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
