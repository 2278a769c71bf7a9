"""Programs in which one rank goes wrong, in one of several ways, before a collective or between two."""

from __future__ import annotations

from dataclasses import dataclass

from dla.assembler import assemble
from dla.isa.program import Program


@dataclass(frozen=True)
class Fault:
    """What `k`, an input of each rank, does; its value where all is well, and where it is not; the Trap's category."""

    code: str
    fine: int
    wrong: int
    category: str


FAULTS = {
    "assert": Fault("CMP.eq p0, s0, 0\n    ASSERT p0", 0, 1, "assert"),
    "index": Fault("GATHER z, x, k axis=0", 3, 99, "index"),
    "division": Fault("ALU.div s1, 7, s0", 1, 0, "arithmetic"),
    "loop": Fault("LOOP s1, s0 max=4\n    FILL z, 1\n    ENDLOOP", 2, -1, "loop"),
    "view": Fault("COPY z, x[s0:s0 + 1]", 2, 40, "extent"),
}
RANKS = [(world, rank) for world in (2, 3, 4) for rank in range(world)]
"""Worlds, and which of their ranks goes wrong."""
_TEXT = """
.world {world}
.input  k : i32[1]
.input  x : i32[4]
.state  n : i32[4]
.scratch z : i32[1]
.output y : i32[4]
main:
    ALLREDUCE.sum n, x
    LOADS s0, k[0]
    {before}
    ALLREDUCE.max y, n
    {after}
    ALLREDUCE.sum y, y
    HALT
"""


def program(code: str, world: int, *, first: bool) -> Program:
    """For `world` ranks, with `code` before a collective, or between two. n is the sum of x, and y world times that."""
    before, after = (code, "NOP") if first else ("NOP", code)
    return assemble(_TEXT.format(world=world, before=before, after=after))
