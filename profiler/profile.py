"""A profile: everything that was measured of one program, as the reports show it. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dla.emulator.trace import Trace
from dla.isa.program import Program


@dataclass(frozen=True)
class Ceilings:
    """What the hardware can do at most, measured in the same run: the two roofs of the roofline."""

    bytes_per_second: float  # of a copy: read and written
    flops: Mapping[str, float]  # operations per second of a large matrix product, by dtype ("bf16", "f32", ...)


@dataclass(frozen=True)
class Native:
    """An instruction's native kernel on the same shapes, dtypes and layouts."""

    kernel: str  # "torch.addmm (+ bias), on the CPU"
    cold: float  # median, with the second-level cache flushed before
    warm: float | None
    agrees: bool  # its result is the instruction's, within the error bounds of both
    error: float  # the largest, as a share of what the bounds allow


@dataclass(frozen=True)
class Figures:
    """One instruction of the program, over all the times that it was executed.

    `time` is its share of the wall time: its steps on the critical path. `spent` counts from its first block's
    beginning to its last one's end. `working` and `waiting` are averages over all multiprocessors of the machine.
    """

    index: int
    name: str  # "GEMM.glu"
    text: str  # as the disassembler writes it
    location: str | None  # "net.dla:12"
    calls: int
    time: float
    spent: tuple[float, float, float, float]  # total, mean, least, most
    working: float
    waiting: float
    flops: int  # of one call, at the run's dims where these are known, else at their bounds
    bytes: int
    roof: float  # the least time that the ceilings allow one call
    way: str = ""  # how the machine did it, in the plan's words
    native: Native | None = None
    why_no_native: str = ""


@dataclass(frozen=True)
class Step:
    """A stretch of the critical path: what the end of the run waited for, from `begin` to `end` (nanoseconds)."""

    begin: int
    end: int
    instruction: int | None  # None: the launch itself, before the first and behind the last instruction
    block: int
    order: int


@dataclass(frozen=True)
class Whole:
    """The same network elsewhere."""

    name: str  # "PyTorch, CUDA graph"
    time: float | None  # median of a run
    first: float | None  # until the first result, compiling included
    agrees: bool | None
    note: str = ""  # why there is no time


@dataclass(frozen=True)
class Profile:
    """What was measured of `program`."""

    program: Program
    machine: str  # "gpu" or "golden"
    device: Mapping[str, str]  # name, driver, clocks, versions, commit ...
    dims: Mapping[str, int]
    wall: float  # median of runs that were not traced, the launch included; `traced` where all ended in a trap
    traced: float  # of the traced run that `trace` is of: with `launch`, a run
    runs: tuple[float, ...]  # all of `wall`
    overhead: float  # what an empty program takes,
    launch: float  # and how much of that is before its first block begins or behind its last one: in no trace
    figures: tuple[Figures, ...]  # in program order; instructions that were never executed have 0 calls
    critical: tuple[Step, ...]  # in order of time; together they are the traced run
    ceilings: Ceilings
    trace: Trace
    segments: Mapping[str, int]  # bytes by segment
    wholes: tuple[Whole, ...] = ()
    trap: str | None = None  # the run ended so; everything here is of the time before
    natives: str = ""  # whose kernels stand beside the instructions: "PyTorch"; nothing where none were asked for
    chosen: int | None = None  # the instruction that is asked about; None: all

    @property
    def roof(self) -> float:
        """Seconds that the calls of all instructions take at least, one after the other: the program's roofline."""
        return sum(f.roof * f.calls for f in self.figures)
