"""Hot paths: what fits tensor cores and copy engines is found here, from descriptors alone, when a program is loaded.

A path is a function `schedule(instruction, context)` that answers how its half of the kernel (kernel/hopper) is to
execute an instruction, or None where it does not apply. What no path takes, the row's handler executes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dla.emulator.device.layout import PATH_DETAIL, PATH_GENERIC
from dla.emulator.device.paths.tensor_map import TensorMap
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.program import Instruction
from dla.isa.reach import Range, Reach


@dataclass(frozen=True)
class Target:
    """What a plan is made for: the number of blocks, one for each multiprocessor, and whether Hopper's paths exist."""

    blocks: int = 132
    hopper: bool = False


@dataclass(frozen=True)
class Schedule:
    """How one instruction is executed: a path, and up to 16 numbers (u32) that its half of the kernel understands."""

    path: int
    detail: tuple[int, ...] = ()
    summary: str = ""  # for people: tile shape, splits

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
    maps: dict[TensorMap, int] = field(default_factory=dict)
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
        return descriptor.segment in (Segment.CONST, Segment.INPUT)

    def map_index(self, tensor_map: TensorMap) -> int:
        """Where the kernel finds `tensor_map` in its table; equal ones share a place."""
        return self.maps.setdefault(tensor_map, len(self.maps))

    def workspace(self, size: int) -> int:
        """Offset of `size` bytes of workspace of this instruction alone, 1024-byte aligned."""
        offset = self.workspace_bytes
        self.workspace_bytes += -(-size // 1024) * 1024
        return offset


Path = Callable[[Instruction, Context], Schedule | None]
HOPPER_PATHS: tuple[Path, ...] = ()
"""In the order in which they are asked."""


def schedule(instruction: Instruction, context: Context) -> Schedule:
    """The first path that takes `instruction`, else the generic one."""
    if context.target.hopper:
        for path in HOPPER_PATHS:
            found = path(instruction, context)
            if found is not None:
                return found
    return GENERIC
