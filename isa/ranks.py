"""Ranks: the machines that run one program together, the groups that they form, and what a collective knows of them.

All run the same program, each on memory of its own, and meet in collectives. A program that declares its world
(`.world 4`) may have tables of groups and of pairs, and constants of which each rank holds a piece. One that does not
runs on any number of ranks, and its collectives span all of them. In shapes, R is the number of ranks in the group.

The semantics of a collective is that of one rank: each input arrives with a leading axis of all ranks of the group, in
ascending order, and the attribute that names ranks as a Member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from dla.isa.attributes import Attribute
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import Array

MAX_WORLD = 2**16 - 1
"""Ranks of one world."""
COUNTED = "R"
"""The dim, in the shape patterns of collectives, that is the number of ranks in the group."""


@dataclass(frozen=True)
class RankGroup:
    """A partition of all ranks, `.group tp [[0, 1], [2, 3]]`: a collective over it works inside each list.

    Ranks ascend in each list, and lists by their first ranks.
    """

    name: str
    ranks: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> frozenset[int]:
        """How long its lists are."""
        return frozenset(map(len, self.ranks))


@dataclass(frozen=True)
class RankPairs:
    """Who sends to whom, `.pairs next [[0, 1], [1, 2]]`: (from, to), in order of senders.

    A rank sends at most once and receives at most once.
    """

    name: str
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Shard:
    """A constant of which each rank holds a piece: `.const w : f32[64, 32] = ... shard axis=1 group=tp`.

    `tensor` names it; its dims are those of one piece. `data` is the whole tensor, as a flat u8 array: row-major, as
    many times longer along `axis` as the group has ranks. Piece k belongs to the k-th rank of each list. `group` is 0
    for all ranks, else the index + 1 into the program's groups.
    """

    tensor: str
    axis: int
    group: int
    data: Array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shard):
            return NotImplemented
        same = (self.tensor, self.axis, self.group) == (other.tensor, other.axis, other.group)
        return same and np.array_equal(self.data, other.data)


@dataclass(frozen=True)
class Member:
    """What one rank is in a collective: number `place` of the `size` ranks of its group.

    `source` is the number of the rank that sends to this one in a PERMUTE, None where none does.
    """

    place: int
    size: int
    source: int | None = None


ALONE = Member(0, 1, 0)
"""The only rank of a world, which sends to itself."""


@dataclass(frozen=True)
class RankTable(Attribute):
    """An entry of one of the program's tables, "groups" or "pairs": its index + 1, or 0. Assembly writes its name."""

    table: str = "groups"
    default: Any = 0
    bits: ClassVar[int] = 16

    def encode(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**self.bits:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return value

    def decode(self, raw: int) -> int | None:
        return None if raw == 0 and self.default is None else raw

    @property
    def expects(self) -> str:
        return "the name of a .group" if self.table == "groups" else "the name of .pairs"


GROUP = RankTable("group", 16, "the group over which it works; 0 is all ranks, else index + 1 into the table of groups")
"""The attribute that all collectives but PERMUTE have."""


def group_problem(group: RankGroup, world: int) -> str | None:
    """Why `group` is no group of a world of so many ranks, or None."""
    lists = group.ranks
    # Counted first: what it costs to refuse a group is what the group lists, however large the world is.
    if sum(map(len, lists)) != world or sorted(rank for ranks in lists for rank in ranks) != list(range(world)):
        return f"does not have each of the ranks 0 to {world - 1} exactly once"
    if any(not ranks or list(ranks) != sorted(ranks) for ranks in lists) or list(lists) != sorted(lists):
        return "has a list that is empty, or lists or ranks that do not ascend"
    return None


def pairs_problem(pairs: RankPairs, world: int) -> str | None:
    """Why `pairs` are no pairs of a world of so many ranks, or None."""
    senders, receivers = [a for a, _ in pairs.pairs], [b for _, b in pairs.pairs]
    if not senders or any(not 0 <= rank < world for rank in senders + receivers):
        return f"has no pairs, or a rank beyond 0 to {world - 1}"
    if len(set(senders)) != len(senders) or len(set(receivers)) != len(receivers):
        return "has a rank that sends twice, or receives twice"
    return None if senders == sorted(senders) else "has pairs that are not in order of their senders"


@lru_cache(maxsize=4)  # asked for at each collective
def everybody(world: int) -> tuple[tuple[int, ...], ...]:
    """All ranks as one group."""
    return (tuple(range(world)),)


def lists_of(groups: Sequence[RankGroup], group: int, world: int) -> tuple[tuple[int, ...], ...]:
    """The lists of ranks of the group that `group` (0, or index + 1) stands for."""
    return groups[group - 1].ranks if group else everybody(world)


def sizes_of(groups: Sequence[RankGroup], group: int, world: int) -> frozenset[int]:
    """How many ranks the lists have of the group that `group` (0, or index + 1) stands for."""
    return groups[group - 1].sizes if group else frozenset((world,))


def list_with(lists: Sequence[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """The list that `rank` is in."""
    return next(ranks for ranks in lists if rank in ranks)


def piece_of(shard: Shard, piece: Descriptor, ranks: tuple[int, ...], rank: int) -> Array:
    """What `rank` of the list `ranks` holds of `shard`: a flat u8 array of the size of `piece`, its tensor."""
    dims = piece.bounds
    whole = (*dims[: shard.axis], len(ranks), *dims[shard.axis :])
    pieces = shard.data.view(piece.dtype.numpy).reshape(whole)
    return np.ascontiguousarray(pieces.take(ranks.index(rank), axis=shard.axis)).reshape(-1).view(np.uint8)
