"""Ranks in a `.dlab` file: the section of groups, and the one of shards, which only programs with shards have.

groups       u32 size of the world; nothing more if it is 0, else
u32 count of groups: name, u32 count of lists: u32 count of ranks: u32
u32 count of pairs: name, u32 count: u32 from, u32 to
shards       u32 count: name of the tensor, u8 axis, u32 group (0: all ranks, else index + 1), u64 size;
then the whole tensors, in order; each at a multiple of 64 bytes, zeros between
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dla.isa.container.stream import Reader, Writer
from dla.isa.descriptor import Segment
from dla.isa.errors import ContainerError
from dla.isa.files import Chunk
from dla.isa.program import MAX_TENSORS, ExternalConst, Program, Tensor
from dla.isa.ranks import MAX_WORLD, RankGroup, RankPairs, Shard

MAX_LISTED = 2**17
"""Ranks in all tables of one program: what they take as objects stays small, however hostile the file."""
_ALIGNMENT = 64


def elsewhere(tensors: Sequence[Tensor], external: Sequence[ExternalConst], shards: Sequence[Shard]) -> list[int]:
    """Where constants lie in the const segment whose bytes the const data section does not have."""
    cut = {shard.tensor for shard in shards}
    places = [t.descriptor.offset for t in tensors if t.segment is Segment.CONST and t.name in cut]
    return places + [entry.offset for entry in external]


def encode_groups(program: Program) -> bytes:
    """The groups section."""
    w = Writer()
    w.number(program.world, 4)
    if not program.world:
        if program.groups or program.pairs:
            raise ContainerError("the program cannot be written: it has groups of ranks, but no world")
        return bytes(w.data)
    lists = (ranks for group in program.groups for ranks in group.ranks)
    if sum(1 + len(ranks) for ranks in lists) + sum(len(pairs.pairs) for pairs in program.pairs) > MAX_LISTED:
        raise ContainerError("the program cannot be written: it has groups and pairs with more than "
                             f"{MAX_LISTED} ranks in them")  # fmt: skip
    w.number(len(program.groups), 4)
    for group in program.groups:
        w.name(group.name)
        w.number(len(group.ranks), 4)
        for ranks in group.ranks:
            _numbers(w, ranks)
    w.number(len(program.pairs), 4)
    for pairs in program.pairs:
        w.name(pairs.name)
        w.number(len(pairs.pairs), 4)
        for pair in pairs.pairs:
            w.number(pair[0], 4)
            w.number(pair[1], 4)
    return bytes(w.data)


def _numbers(w: Writer, numbers: Sequence[int]) -> None:
    w.number(len(numbers), 4)
    for number in numbers:
        w.number(number, 4)


def decode_groups(data: memoryview) -> tuple[int, tuple[RankGroup, ...], tuple[RankPairs, ...]]:
    """Size of the world, groups and pairs."""
    r = Reader(data, "groups")
    world = r.number(4)
    groups: list[RankGroup] = []
    pairs: list[RankPairs] = []
    if world:
        if world > MAX_WORLD:
            raise r.bad(f"a world has at most {MAX_WORLD} ranks, not {world}")
        left = MAX_LISTED
        for _ in range(r.count(6, MAX_LISTED)):
            name, lists = r.name(), []
            for _ in range(r.count(4, max(0, left))):
                lists.append(tuple(r.number(4) for _ in range(r.count(4, max(0, left)))))
                left -= 1 + len(lists[-1])
            groups.append(RankGroup(name, tuple(lists)))
        for _ in range(r.count(6, MAX_LISTED)):
            name = r.name()
            pairs.append(RankPairs(name, tuple((r.number(4), r.number(4)) for _ in range(r.count(8, max(0, left))))))
            left -= len(pairs[-1].pairs)
    r.end()
    return world, tuple(groups), tuple(pairs)


def encode_shards(shards: Sequence[Shard]) -> list[Chunk]:
    """The shards section, in pieces."""
    w = Writer()
    w.number(len(shards), 4)
    for shard in shards:
        w.name(shard.tensor)
        w.number(shard.axis, 1)
        w.number(shard.group, 4)
        w.number(shard.data.nbytes, 8)
    chunks: list[Chunk] = [bytes(w.data)]
    end = len(w.data)
    for shard in shards:
        data = np.ascontiguousarray(shard.data).data.cast("B") if shard.data.size else b""
        gap = -end % _ALIGNMENT
        chunks += [bytes(gap), data]
        end += gap + len(data)
    return chunks


def decode_shards(data: memoryview) -> tuple[Shard, ...]:
    """Constants that are cut, as read-only views of `data`. Raises ContainerError unless `encode_shards` gives this."""
    r = Reader(data, "shards")
    heads = [(r.name(), r.number(1), r.number(4), r.number(8)) for _ in range(r.count(15, MAX_TENSORS))]
    if not heads:
        raise r.bad("it is empty")
    shards = []
    for name, axis, group, size in heads:
        if any(r.raw(-r.position % _ALIGNMENT)):
            raise r.bad("bytes between tensors are not zero")
        shards.append(Shard(name, axis, group, np.frombuffer(r.view(size), np.uint8)))
    r.end()
    return tuple(shards)
