"""Collectives of several ranks: who the ranks of the group are, and what this one sends and gets (kernel/mail.cuh)."""

from __future__ import annotations

from dla.emulator.device.layout import MOST_RANKS, PARTY_AT, PATH_GENERIC
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.program import Instruction
from dla.isa.ranks import list_with, lists_of

SENDS_AT, GETS_AT = 8, 16
"""Bits of the second number: the members that get this rank's parcels, and those that it gets parcels from."""


def party(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a collective where there are several ranks."""
    if not instruction.row.collective or context.target.world == 1:
        return None
    own, attributes = context.target.rank, instruction.attributes
    members = list_with(lists_of(context.groups, attributes.get("group", 0), context.target.world), own)
    everyone = set(range(len(members)))
    sends, gets = everyone, everyone
    if "root" in instruction.row.all_attributes:
        root = attributes.get("root", 0)
        sends, gets = (everyone if members[root] == own else set()), {root}
    elif "pairs" in instruction.row.all_attributes:
        pairs = context.pairs[attributes["pairs"] - 1].pairs
        sends = {members.index(receiver) for sender, receiver in pairs if sender == own}
        gets = {members.index(sender) for sender, receiver in pairs if receiver == own}
    ranks = sum(rank << 4 * place for place, rank in enumerate(members))
    whom = len(members) | sum(1 << SENDS_AT + m for m in sends) | sum(1 << GETS_AT + m for m in gets)
    assert len(members) <= MOST_RANKS, "the machine refuses more"
    return Schedule(PATH_GENERIC, (0,) * PARTY_AT + (ranks, whom), f"among {len(members)} ranks")
