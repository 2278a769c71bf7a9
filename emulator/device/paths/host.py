"""Collectives that the host executes: the launch ends there, and the next one goes on behind (kernel/pause.cuh)."""

from __future__ import annotations

from dla.emulator.device.layout import PATH_HOST
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.program import Instruction
from dla.isa.ranks import list_with, lists_of


def collective(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a collective where ranks do not reach each other's memory."""
    target = context.target
    if not instruction.row.collective or target.transport == "peer":
        return None
    group = instruction.attributes.get("group", 0)
    members = list_with(lists_of(context.groups, group, target.world), target.rank)
    return Schedule(PATH_HOST, summary=f"NCCL between launches, among {len(members)} ranks")
