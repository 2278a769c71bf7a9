"""Collectives of several ranks: who the ranks of the group are, and what this one sends and gets (kernel/mail.cuh)."""

from __future__ import annotations

from collections.abc import Sequence

from dla.emulator.device.layout import DIRECT_BYTES, MOST_RANKS, PARTY_AT, PATH_GENERIC
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, contiguous_strides
from dla.isa.errors import InputError
from dla.isa.program import Instruction
from dla.isa.ranks import RankPairs, list_with, lists_of

MAY_REACH, SENDS_AT, GETS_AT = 1 << 4, 8, 16
"""Of the second number: whether members may read and write each other's memory; bits of the members that get something
from this rank, and of those that it gets something from."""
_DIVIDED = ("ALLTOALL", "REDUCESCATTER")
"""Their x has a part for each rank."""
_SENT_BY_ONE = ("BROADCAST", "PERMUTE")
"""A rank gets something from one other at most."""
_CHUNK = 16
"""Bytes that they read and write at a time."""
_SWAPPED = ("ALLTOALL", "PERMUTE")
"""What a rank brings to one, and gets from it, lies in the same place if out is x: so nobody else may write there."""


def party(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a collective where there are several ranks."""
    if not instruction.row.collective or context.target.world == 1:
        return None
    own, world = context.target.rank, context.target.world
    members = list_with(lists_of(context.groups, instruction.attributes.get("group", 0), world), own)
    sends, gets = partners(instruction, members, own, context.pairs)
    ranks = sum(rank << 4 * place for place, rank in enumerate(members))
    whom = len(members) | sum(1 << SENDS_AT + m for m in sends) | sum(1 << GETS_AT + m for m in gets)
    assert len(members) <= MOST_RANKS, "few_enough comes first"
    x, out = _operand(instruction, "x"), _operand(instruction, "out")
    may_reach = _in_chunks(x) and _in_chunks(out) and not (x == out and instruction.row.mnemonic in _SWAPPED)
    share = x.elements * x.dtype.itemsize // (len(members) if instruction.row.mnemonic in _DIVIDED else 1)
    copies = 2 if instruction.row.mnemonic in _SENT_BY_ONE else len(members)
    large = share * copies > DIRECT_BYTES * context.target.blocks
    how = "in each other's memory" if may_reach and large else "by cards"
    numbers = (ranks, whom | MAY_REACH * may_reach)
    return Schedule(PATH_GENERIC, (0,) * PARTY_AT + numbers, f"among {len(members)} ranks, {how}")


def few_enough(ranks: int) -> None:
    """Raise InputError where they are more than send to each other inside the kernel."""
    if ranks > MOST_RANKS:
        raise InputError(f"at most {MOST_RANKS} ranks reach each other's memory, and these are {ranks}",
                         hint="--transport nccl, with a GPU for each, or --backend golden")  # fmt: skip


def partners(
    instruction: Instruction, members: Sequence[int], own: int, pairs: Sequence[RankPairs]
) -> tuple[set[int], set[int]]:
    """The members, counted from 0, that rank `own` sends to in a collective, and those that it gets from."""
    everyone = set(range(len(members)))
    if "root" in instruction.row.all_attributes:
        root = instruction.attributes.get("root", 0)
        return (everyone if members[root] == own else set()), {root}
    if "pairs" in instruction.row.all_attributes:
        listed = pairs[instruction.attributes["pairs"] - 1].pairs
        sends = {members.index(receiver) for sender, receiver in listed if sender == own}
        return sends, {members.index(sender) for sender, receiver in listed if receiver == own}
    return everyone, everyone


def _operand(instruction: Instruction, name: str) -> Descriptor:
    operand = instruction.operand(name)
    assert operand is not None
    return operand


def _in_chunks(view: Descriptor) -> bool:
    """Whether it is without gaps and begins with a chunk, wherever a register moves it to."""
    whole = view.strides == contiguous_strides(view.dims)
    return whole and view.offset % _CHUNK == 0 and view.offset_scale % _CHUNK == 0
