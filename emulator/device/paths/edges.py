"""Edges of products: how the copy engine is kept from rows and columns that do not exist.

For a line of a box that is outside of the tensor it takes some 6 clocks, and 1.7 for one that is inside: of 64 rows of
which one exists, three times as long as of 64 that do, and other blocks wait for that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dla.emulator.device import layout
from dla.emulator.device.paths import epilogue, tilings
from dla.emulator.device.paths.tilings import Choice
from dla.emulator.device.paths.types import Context
from dla.isa.program import Instruction

GROUP = 8
"""Lines of a swizzled tile: boxes have whole ones."""


@dataclass(frozen=True)
class Edge:
    """How many rows or columns a product has. `known`: no register takes part. `boxed`: 16-bit, along the depth."""

    lines: int
    known: bool
    boxed: bool

    @property
    def groups(self) -> int:
        """Lines of the box that has all of them."""
        return -(-self.lines // GROUP) * GROUP

    def is_short(self, lines: int) -> bool:
        """Whether that is to be the box, as tiles have so many `lines`."""
        return self.boxed and self.known and self.groups < lines

    def overlaps(self, lines: int) -> bool:
        """Whether the last of several tiles has lines behind the last one."""
        return self.lines > lines and self.lines % lines != 0


def flags(choice: Choice, rows: Edge, columns: Edge, *, apart: bool, in_chunks: bool, norms: bool) -> dict[int, bool]:
    """Flags of a product's schedule.

    Where the last tile would end behind the last row, it begins earlier: OVERLAPPING_... That is, unless the epilogue
    reads what the result takes the place of (not `apart`): one tile would find what the other one has left. Columns
    that a tile may begin with are a chunk's first. Where there are fewer rows than a tile has, boxes have no more:
    ..._SHORT; but not where tiles do a NORM of their rows. None of tiles whose products take longer than any copies.
    """
    tile = choice.tile
    if tilings.in_boxes(choice):
        return {}
    return {
        layout.OVERLAPPING_DOWN: apart and rows.overlaps(tile.rows),
        layout.OVERLAPPING_ACROSS: apart and in_chunks and columns.overlaps(tile.columns),
        layout.A_SHORT: not norms and not choice.shares_operand and rows.is_short(tile.rows),
        layout.B_SHORT: not choice.shares_operand and columns.is_short(tile.columns),
    }


def is_apart(instruction: Instruction, context: Context) -> bool:
    """Whether no operand of a product's epilogue may share memory with its result."""
    out = instruction.operand("out")
    assert out is not None
    low, high = context.reach.of(out)
    for extra in epilogue.extras(instruction, out.bounds):
        begin, end = context.reach.of(extra.descriptor)
        if extra.descriptor.segment is out.segment and begin < high and low < end:
            return False
    return True
