"""The golden machine: a program's meaning, one instruction after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dla.emulator import mpi
from dla.emulator.distributed import DistributedSession, world_matches
from dla.emulator.golden.execution import Executed, Perturb
from dla.emulator.golden.lockstep import RankedSession
from dla.emulator.golden.process import GoldenRank
from dla.emulator.golden.session import GoldenSession
from dla.emulator.ranks import distinct_names, world_of
from dla.isa.errors import InputError
from dla.isa.program import Program

MOST_RANKS = 1024
"""Each has segments of its own in the one process."""


@dataclass(frozen=True)
class GoldenMachine:
    """Executes programs by their rows' NumPy semantics, on the CPU, with every access checked.

    `accumulate` is the accumulator type of floats: "f64" makes it the oracle, "f32" is faster. `watch` traps reads
    of scratch and output bytes that were never written. `shuffle` is the seed of a random legal order instead of
    program order, which must change nothing. `trace` is called after each instruction. `perturb` replaces exact
    float results (`dla.emulator.compare` uses it to measure how errors grow). `timeout`, in seconds, ends a run with a
    TimeoutTrap at the next instruction. `ranks` is how many ranks run the program, one beside the other in this
    process; None: as many as it declares, or one (see `RankedSession`). "mpi": this process is one of those that an MPI
    launcher started (see `DistributedSession`).
    """

    accumulate: Literal["f64", "f32"] = "f64"
    watch: bool = True
    shuffle: int | None = None
    trace: Callable[[Executed], None] | None = None
    perturb: Perturb | None = None
    timeout: float | None = None
    ranks: int | Literal["mpi"] | None = None
    name: str = field(default="golden", init=False)

    def load(self, program: Program) -> GoldenSession | RankedSession | DistributedSession:
        """Make `program` ready to run.

        Raises InputError or ContainerError where external weights do not fit, InputError where it is for another
        number of ranks, or outputs of ranks would be called alike, BackendError where MPI is asked for and absent.
        """
        if self.ranks == "mpi":
            peers = mpi.peers()
            world_matches(program, None, peers)
            session = GoldenSession(self, program, peers.rank, peers.world)
            return DistributedSession(GoldenRank(session, peers), peers, self.timeout)
        ranks = world_of(program, self.ranks)
        if ranks > MOST_RANKS:
            raise InputError(f"the golden machine runs at most {MOST_RANKS} ranks, and these are {ranks}")
        distinct_names(program, ranks)
        sessions = tuple(GoldenSession(self, program, rank, ranks) for rank in range(ranks))
        return sessions[0] if ranks == 1 else RankedSession(sessions)
