"""The machine as a Python program sees it: pick a backend, verify, load, run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dla.emulator import mpi
from dla.emulator.backend import Backend, Session
from dla.emulator.binding import suggest
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.result import Result
from dla.isa.errors import BackendError, InputError
from dla.isa.program import Program
from dla.isa.verifier import verify

BACKENDS = ("auto", "golden", "gpu")


class Machine:
    """A machine that runs programs.

    `backend` is "golden" (NumPy), "gpu" (CUDA through CuPy) or "auto": gpu where a CUDA device can be used, else
    golden; `name` says which it is. In processes that MPI started (`ranks="mpi"`), "auto" is gpu where each can have a
    GPU of its own, and all of them have to ask. `options` are those of `GoldenMachine` or `DeviceMachine`. Raises
    BackendError where "gpu" is asked for and absent, InputError for an unknown backend or option.

        machine = Machine("golden")
        result = machine.run(program, {"x": images})
        result["p"]
    """

    def __init__(self, backend: str = "auto", **options: Any) -> None:
        self._backend = _create(backend, options)

    @property
    def name(self) -> str:
        """Which machine it is, "golden" or "gpu": what "auto" came to."""
        return self._backend.name

    def load(self, program: Program) -> Session:
        """Verify `program` and make it ready to run; `state` tensors then live from run to run.

        Raises VerifyError; InputError or ContainerError where external weights are missing or do not fit; InputError
        for anything else than a program.
        """
        if not isinstance(program, Program):
            raise InputError(f"a machine runs a Program, and this is a {type(program).__name__}",
                             hint="dla.load(path) gives one, and compile_model(...).program is one")  # fmt: skip
        verify(program)
        return self._backend.load(program)

    def run(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Result:
        """Load `program`, set `state` tensors where given, and run it once. See `Session.run`."""
        session = self.load(program)
        if state:
            session.set_state(state)
        return session.run(inputs, dims)


def gpu_missing() -> str | None:
    """Why no CUDA device can be used, as a person would say it; None where one can."""
    try:
        import cupy  # optional, and slow to import: only a question about GPUs needs it
    except ModuleNotFoundError:
        return "CuPy is not installed"
    except ImportError as error:
        return f"CuPy cannot be imported: {str(error).strip().splitlines()[0]}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA does not work: {error}"
    return None if count else "there is no CUDA device"


_HOW_TO_GET_A_GPU = {
    "CuPy is not installed": "pip install 'cupy-cuda12x[ctk]' (or 13x), or use the golden machine, which needs no GPU",
}


def _create(backend: str, options: Mapping[str, Any]) -> Backend:
    if backend not in BACKENDS:
        raise InputError(f"there is no backend '{backend}'", hint=suggest(backend, BACKENDS))
    missing = gpu_missing() if backend != "golden" else None
    if backend == "auto" and options.get("ranks") == "mpi":
        from dla.emulator.device.process import missing_somewhere  # NumPy's half of the device machine

        missing = missing_somewhere(mpi.peers(), missing)
    if backend == "gpu" and missing is not None:
        hint = _HOW_TO_GET_A_GPU.get(missing, "`dla doctor` says what is missing; the golden machine needs no GPU")
        raise BackendError(f"no GPU: {missing}", hint=hint)
    if backend == "golden" or missing is not None:
        _check_options(GoldenMachine, "golden", options)
        return GoldenMachine(**options)
    from dla.emulator.device.machine import DeviceMachine  # imports CuPy

    _check_options(DeviceMachine, "gpu", options)
    return DeviceMachine(**options)


def _check_options(machine: Any, name: str, options: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(machine) if field.init]
    for option in options:
        if option not in known:
            raise InputError(f"the {name} machine has no option '{option}'", hint=suggest(option, known))
