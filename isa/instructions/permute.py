"""PERMUTE: ranks send to others, pair by pair."""

from __future__ import annotations

import numpy as np

from dla.isa.dtypes import ALL, Array
from dla.isa.ranks import Member, RankTable
from dla.isa.table import Alias, Operand, Out, Role, Row


def semantics(out: Out, x: Array, *, pairs: Member) -> Array:
    """What the rank that sends to this one brings, zeros where none does."""
    return np.zeros(out.shape, x.dtype) if pairs.source is None else x[pairs.source]


ROW = Row(
    "PERMUTE", 0x75, "collectives", "send from rank to rank, in pairs",
    "For each pair [a, b] of `pairs`, rank b gets x of rank a; a rank may send to itself. One that nobody sends to "
    "gets zeros. All ranks execute it, also those in no pair. In place, too: x of every rank is read before out is "
    "written.",
    since="1.3",
    types={"T": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "T", "what is sent to this rank"),
        Operand("x", Role.IN, "[B...]", "T", "what this rank sends"),
    ),
    attributes=(
        RankTable("pairs", 16, "who sends to whom: index + 1 into the table of pairs", default=None, table="pairs"),
    ),
    alias=Alias.SAME,
    raw=True,
    semantics=semantics,
    example="""
.program permute
.world 3
.pairs next [[0, 1], [1, 2]]
.const x : i32[1, 2] = [[1, 2], [3, 4], [5, 6]] shard axis=0
.output y : i32[2]
main:
    PERMUTE y, x[0] pairs=next  ;! y = [[0, 0], [1, 2], [3, 4]]
    HALT
""",
)  # fmt: skip
