"""BROADCAST: every rank gets the tensor of one."""

from __future__ import annotations

import numpy as np

from dla.isa.attributes import Int
from dla.isa.dtypes import ALL, Array
from dla.isa.ranks import GROUP, MAX_WORLD, Member
from dla.isa.table import Alias, Operand, Out, Role, Row


def semantics(out: Out, x: Array, *, group: Member, root: int) -> Array:
    """What the root brings."""
    return np.asarray(x[root])


ROW = Row(
    "BROADCAST", 0x74, "collectives", "give all ranks what one has",
    "Every rank of the group gets x of one of them, the root. What all others have in x does not matter, but they have "
    "one. A flag that one rank decides on, broadcast to all, may steer the program around other collectives.",
    since="1.3",
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "T", "the root's x"),
        Operand("x", Role.IN, "[B...]", "T", "what this rank brings"),
    ),
    attributes=(
        GROUP,
        Int("root", 96, "which rank of the group brings it: 0 is its first one", size=16, high=MAX_WORLD),
    ),
    alias=Alias.SAME,
    raw=True,
    semantics=semantics,
    alike=True,
    example="""
.program broadcast
.world 2
.const x : i32[1, 2] = [[1, 2], [3, 4]] shard axis=0
.output y : i32[2]
main:
    BROADCAST y, x[0] root=1    ;! y = [[3, 4], [3, 4]]
    HALT
""",
)  # fmt: skip
