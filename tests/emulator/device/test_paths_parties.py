"""What a plan says of collectives: who is in the group, who sends to whom, and by which way."""

from __future__ import annotations

import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import DIRECT_BYTES, PARTY_AT
from dla.emulator.device.paths import Schedule, Target
from dla.emulator.device.paths.parties import GETS_AT, MAY_REACH, SENDS_AT
from dla.isa.descriptor import Segment

BLOCKS = 4
LARGE = 2 * BLOCKS * DIRECT_BYTES  # elements of f32


def collective(text: str, rank: int = 0, world: int = 2) -> Schedule:
    """The schedule of the first collective of a program, for one of its ranks."""
    program = assemble(f".world {world}\n{text}\n    HALT\n")
    target = Target(BLOCKS, rank=rank, world=world)
    built = plan.build(program, dict.fromkeys(Segment, 0), target)
    code = zip(program.instructions, built.schedules, strict=True)
    return next(schedule for instruction, schedule in code if instruction.row.collective)


def members(schedule: Schedule, at: int) -> set[int]:
    """The members whose bits are set."""
    whom = schedule.detail[PARTY_AT + 1] >> at & 0xFF
    return {member for member in range(8) if whom >> member & 1}


def test_members_are_those_of_the_ranks_own_list():
    """Four bits each, in ascending order; all send to all."""
    text = ".group g [[0, 2], [1, 3]]\n.state x : f32[4]\nmain:\n    ALLREDUCE.sum x, x group=g"
    for rank, ranks in enumerate((0x20, 0x31, 0x20, 0x31)):
        found = collective(text, rank, 4)
        assert found.detail[PARTY_AT] == ranks
        assert found.detail[PARTY_AT + 1] & 15 == 2
        assert members(found, SENDS_AT) == members(found, GETS_AT) == {0, 1}


def test_who_sends_to_whom():
    """The root of a BROADCAST to all; of a PERMUTE what the pairs say."""
    broadcast = ".state x : f32[4]\nmain:\n    BROADCAST x, x root=1"
    permute = ".pairs p [[0, 2], [2, 1]]\n.state x : f32[4]\nmain:\n    PERMUTE x, x pairs=p"
    sends = [members(collective(broadcast, rank, 3), SENDS_AT) for rank in range(3)]
    gets = [members(collective(broadcast, rank, 3), GETS_AT) for rank in range(3)]
    assert (sends, gets) == ([set(), {0, 1, 2}, set()], [{1}] * 3)
    sends = [members(collective(permute, rank, 3), SENDS_AT) for rank in range(3)]
    gets = [members(collective(permute, rank, 3), GETS_AT) for rank in range(3)]
    assert (sends, gets) == ([{2}, set(), {1}], [set(), {2}, {0}])


@pytest.mark.parametrize(("text", "reaches"), [
    (f".state x : f32[{LARGE}]\nmain:\n    ALLREDUCE.sum x, x", True),
    (f".state x : f32[{LARGE // 64}]\nmain:\n    ALLREDUCE.sum x, x", False),
    (f".state x : f32[2, {LARGE}]\nmain:\n    ALLTOALL x, x", False),
    (f".input x : f32[2, {LARGE}]\n.output y : f32[2, {LARGE}]\nmain:\n    ALLTOALL y, x", True),
    (f".input x : f32[2, {LARGE // 16}]\n.output y : f32[{LARGE // 16}]\nmain:\n    REDUCESCATTER.sum y, x", False),
    (f".state x : f32[{LARGE + 4}]\nmain:\n    ALLREDUCE.sum x[1:{LARGE + 1}], x[1:{LARGE + 1}]", False),
    (f".state x : f32[{LARGE + 4}]\nmain:\n    ALLREDUCE.sum x[4:], x[4:]", True),
    (f".state x : f32[{LARGE // 16}]\nmain:\n    BROADCAST x, x", False),
    (f".state x : f32[{LARGE // 16 + 4}]\nmain:\n    BROADCAST x, x", True),
    (f".state x : f32[64, {LARGE // 64}]\nmain:\n    ALLREDUCE.sum x.T, x.T", False),
])  # fmt: skip
def test_ways(text: str, reaches: bool):
    """What is large, without gaps and aligned, is read and written in place, unless others would come too early."""
    found = collective(text)
    assert found.summary == "among 2 ranks, " + ("in each other's memory" if reaches else "by cards")
    assert bool(found.detail[PARTY_AT + 1] & MAY_REACH) >= reaches


def test_more_ranks_reach_into_memory_earlier():
    """Cards go to all of them, and all of them write a part."""
    text = f".state x : f32[{LARGE // 32 + 4}]\nmain:\n    ALLREDUCE.sum x, x"
    assert [collective(text, world=world).summary.endswith("memory") for world in (2, 4, 8)] == [False, True, True]
