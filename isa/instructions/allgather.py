"""ALLGATHER: every rank gets the tensors of all."""

from __future__ import annotations

from dla.isa.dtypes import ALL, Array
from dla.isa.ranks import GROUP, Member
from dla.isa.table import Operand, Out, Role, Row


def semantics(out: Out, x: Array, *, group: Member) -> Array:
    """What the ranks bring, one after the other."""
    return x


ROW = Row(
    "ALLGATHER", 0x71, "collectives", "collect what all ranks bring",
    "Every rank of the group gets x of all of them: out[k] is what the k-th one brings. To put them one behind the "
    "other along another axis, write to a view of out that has the ranks first, as `y.reshape(8, 4, 16).permute(1, 0, "
    "2)` for the columns of y.",
    since="1.3",
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[R, B...]", "T", "what each of the R ranks of the group brings"),
        Operand("x", Role.IN, "[B...]", "T", "what this rank brings"),
    ),
    attributes=(GROUP,),
    raw=True,
    semantics=semantics,
    alike=True,
    example="""
.program allgather
.world 2
.const x : i32[1, 2] = [[1, 2], [3, 4]] shard axis=0
.output rows    : i32[2, 2]
.output columns : i32[2, 2]
main:
    ALLGATHER rows, x[0]        ;! rows = [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]
    ALLGATHER columns.T, x[0]   ;! columns = [[[1, 3], [2, 4]], [[1, 3], [2, 4]]]
    HALT
""",
)  # fmt: skip
