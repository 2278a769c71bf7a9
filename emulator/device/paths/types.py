"""What hot paths are given, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dla.emulator.device.layout import PATH_DETAIL, PATH_GENERIC
from dla.emulator.device.paths.choices import C, Choices, Decision, Offer, decide, key_of
from dla.emulator.device.paths.tensor_map import AnyMap
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.program import Instruction
from dla.isa.ranks import RankGroup, RankPairs
from dla.isa.reach import Range, Reach

Transport = Literal["peer", "nccl"]
"""How ranks on GPUs send to each other: inside the kernel, to memory that they reach; or by NCCL, between launches."""


@dataclass(frozen=True)
class Target:
    """What a plan is made for: the number of blocks, one for each multiprocessor, and whether Hopper's paths exist.

    And for which rank of the world, whose blocks these are, and how ranks send to each other.
    """

    blocks: int = 132
    hopper: bool = False
    rank: int = 0
    world: int = 1
    transport: Transport = "peer"


@dataclass(frozen=True)
class Schedule:
    """How one instruction is executed: a path, and up to PATH_DETAIL numbers (u32) that its kernel code understands."""

    path: int
    detail: tuple[int, ...] = ()
    summary: str = ""  # for people: tile shape, splits
    tiles: int = 0  # at the bounds, for placement; 0 where it is for the device to say
    decision: Decision[Any] | None = None  # where there were several ways
    together: int = 1  # blocks that work on it together: the first block is a multiple of that

    def __post_init__(self) -> None:
        if len(self.detail) > PATH_DETAIL:
            raise ValueError(f"a schedule has {len(self.detail)} numbers, and room for {PATH_DETAIL}")


GENERIC = Schedule(PATH_GENERIC)


@dataclass
class Context:
    """What a path may know of the program, and the tables that it adds to."""

    target: Target
    bases: Mapping[Segment, int]
    reach: Reach
    choices: Choices | None = None
    written: Mapping[Segment, Sequence[Range]] = field(default_factory=dict)  # bytes that instructions may write
    groups: Sequence[RankGroup] = ()
    pairs: Sequence[RankPairs] = ()
    decided: Mapping[int, Decision[Any]] = field(default_factory=dict)  # by id of an instruction: it is executed so
    first: Instruction | None = None  # what a launch begins with
    maps: dict[AnyMap, int] = field(default_factory=dict)
    workspace_bytes: int = 0

    def address(self, descriptor: Descriptor) -> int:
        """Device address of the first element, where the offset register (if any) is 0."""
        return self.bases[descriptor.segment] + descriptor.offset

    def limits(self, descriptor: Descriptor) -> Range:
        """Device addresses [low, high) that the view can come by, whatever its registers hold."""
        low, high = self.reach.limits(descriptor)
        base = self.bases[descriptor.segment]
        return base + low, base + high

    def is_constant(self, descriptor: Descriptor) -> bool:
        """Whether no instruction writes there, so that it may be read ahead of everything."""
        if descriptor.segment not in (Segment.CONST, Segment.INPUT, Segment.STATE):
            return False
        low, high = self.reach.of(descriptor)
        return not any(begin < high and low < end for begin, end in self.written.get(descriptor.segment, ()))

    def decide(self, instruction: Instruction, offers: Sequence[Offer[C]]) -> Decision[C]:
        """Which of `offers`, the cheapest first, is taken for `instruction`: the quickest, if it has been measured."""
        if id(instruction) in self.decided:
            return self.decided[id(instruction)]
        return decide(key_of(instruction, len(offers), self.is_constant), offers, self.choices)

    def map_index(self, tensor_map: AnyMap) -> int:
        """Where the kernel finds `tensor_map` in its table; equal ones share a place."""
        return self.maps.setdefault(tensor_map, len(self.maps))

    def workspace(self, size: int) -> int:
        """Offset of `size` bytes of workspace of this instruction alone, 1024-byte aligned."""
        offset = self.workspace_bytes
        self.workspace_bytes += -(-size // 1024) * 1024
        return offset
