"""The device machine: picks a build of the kernel, and loads programs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from dla.emulator import mpi
from dla.emulator.device import build, gpu, process, tune, tuned
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.paths import Choices, Transport
from dla.emulator.device.peer_access import transport_between
from dla.emulator.device.ranked import RankedDeviceSession
from dla.emulator.device.session import DeviceSession
from dla.emulator.device.timer import DeviceTimer
from dla.emulator.distributed import DistributedSession, world_matches
from dla.emulator.ranks import distinct_names, world_of
from dla.isa.errors import InputError
from dla.isa.program import Program

DEFAULT_TIMEOUT = 10.0
"""Seconds that one wait inside the kernel may take before the run is ended."""


def _silent(message: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class DeviceMachine:
    """Runs programs on an NVIDIA GPU of compute capability 8.0 or later.

    `checked` selects the build that checks the address of every element, `traced` the one that notes when each block
    did what (see `DeviceSession.trace`). `timeout` is in seconds, per wait. `tune`
    measures, when a program is loaded or comes with sizes that need another plan, the ways in which its instructions
    can be executed, where that was not done before on this GPU; what was measured once serves every later load (see
    tune.py).
    `architecture` overrides the compiler's target (such as "sm_80"). `only` names the tensor rows that the kernel is to
    have (all by default), for measurements. `progress` hears of slow steps.

    `ranks` is how many ranks run the program, None: as many as it declares, or one. `gpus` are the GPUs that they run
    on, by CUDA's numbers, one for each rank; None: all on the present one, each on a share of its multiprocessors.
    `transport` is how they send to each other: "peer", to memory that they reach, inside the kernel; "nccl", between
    launches, where they do not; None: as what connects the GPUs allows. `ranks` "mpi": this process is one of those
    that an MPI launcher started, and has a GPU of its host for itself; they use NCCL.
    """

    checked: bool = False
    traced: bool = False
    timeout: float = DEFAULT_TIMEOUT
    tune: bool = False
    architecture: str | None = None
    only: frozenset[str] | None = None
    ranks: int | Literal["mpi"] | None = None
    gpus: tuple[int, ...] | None = None
    transport: Transport | None = None
    progress: Callable[[str], None] = _silent
    name: str = "gpu"

    def load(self, program: Program) -> DeviceSession | RankedDeviceSession | DistributedSession:
        """Make `program` (already verified) resident.

        Raises BackendError, InputError (also where it is for another number of ranks, or outputs of ranks would be
        called alike), ContainerError.
        """
        if self.transport not in (None, *get_args(Transport)):
            raise InputError(f"there is no transport '{self.transport}'", hint='"peer" or "nccl"')
        if self.ranks == "mpi":
            return self._load_process(program)
        gpus = self.gpus
        if gpus is not None and self.ranks not in (None, len(gpus)):
            raise InputError(
                f"{self.ranks} ranks do not run on {len(gpus)} GPUs", hint="leave ranks out: one runs on each"
            )
        ranks = world_of(program, self.ranks if gpus is None else len(gpus))
        distinct_names(program, ranks)
        if ranks > 1:
            if self.traced or self.tune:
                raise InputError(f"the program runs on {ranks} ranks, and only one can be profiled or tuned")
            cupy = build.import_cupy()
            places = gpus or (cupy.cuda.Device().id,) * ranks
            fitting = transport_between(cupy, places)
            return RankedDeviceSession(self, program, places, self.transport or fitting)
        if gpus is not None and tuple(gpus) != (build.import_cupy().cuda.Device().id,):
            raise InputError(f"one rank runs on the present GPU, and {gpus[0]} is not",
                             hint=f"CUDA_VISIBLE_DEVICES={gpus[0]} makes it the only one")  # fmt: skip
        kernel = self.kernel()
        choices = self._measured(kernel)
        if not (self.tune and choices):
            return DeviceSession(self, kernel, program, choices)

        def measure(specialised: Program) -> None:
            tune.measure(specialised, kernel.target, choices, self.timer(kernel), self.progress)

        return DeviceSession(self, kernel, program, choices, measure=measure)

    def _load_process(self, program: Program) -> DistributedSession:
        """The same for the rank that this process is."""
        if self.gpus is not None or self.transport == "peer":
            raise InputError("processes that MPI started have a GPU each, and use NCCL",
                             hint="leave gpus and transport out")  # fmt: skip
        if self.traced or self.tune:
            raise InputError("the program runs on ranks in processes, and only one can be profiled or tuned")
        peers = mpi.peers()
        world_matches(program, None, peers)
        return DistributedSession(process.DeviceRank(self, program, peers), peers, self.timeout)

    def kernel(self, *, ranked: bool = False) -> build.Kernel:
        """The build for the present GPU; `ranked`: of several ranks. Raises BackendError, InputError."""
        return build.kernel(
            checked=self.checked, traced=self.traced, ranked=ranked, architecture=self.architecture, only=self.only,
            progress=self.progress,
        )  # fmt: skip

    def timer(self, kernel: build.Kernel) -> DeviceTimer:
        """What times trials on `kernel`."""

        def load(trial: Program, way: Choices | None, memory: DeviceMemory | None) -> DeviceSession:
            return DeviceSession(self, kernel, trial, way, memory, cut=False)  # each after the one before, as a whole

        return DeviceTimer(build.import_cupy(), load)

    def _measured(self, kernel: build.Kernel) -> tuned.Store | None:
        """What was measured with `kernel` on this GPU."""
        present = gpu.present(build.import_cupy().cuda.Device().id)
        if present is None:
            return None
        return tuned.store(
            present, self.progress, architecture=kernel.architecture, checked=self.checked, only=self.only
        )
