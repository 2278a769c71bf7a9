"""ALLTOALL: every rank sends a part to each other one."""

from __future__ import annotations

from dla.isa.dtypes import ALL, Array
from dla.isa.ranks import GROUP, Member
from dla.isa.table import Alias, Operand, Out, Role, Row


def semantics(out: Out, x: Array, *, group: Member) -> Array:
    """What each rank brings for this one."""
    return x[:, group.place]


ROW = Row(
    "ALLTOALL", 0x73, "collectives", "exchange parts between all ranks",
    "The k-th rank of the group sends x[j] to the j-th one, which finds it in out[k]. Twice is back again. In place, "
    "too: x of every rank is read before out is written.",
    since="1.3",
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[R, B...]", "T", "what each of the R ranks of the group sends to this one"),
        Operand("x", Role.IN, "[R, B...]", "T", "what this rank sends to each of them"),
    ),
    attributes=(GROUP,),
    alias=Alias.SAME,
    raw=True,
    semantics=semantics,
    example="""
.program alltoall
.world 2
.const x : i32[2, 2] = [[1, 2], [3, 4], [5, 6], [7, 8]] shard axis=0
.output y : i32[2, 2]
main:
    ALLTOALL y, x       ;! y = [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    HALT
""",
)  # fmt: skip
