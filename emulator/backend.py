"""What every machine offers: load a program once, run it any number of times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dla.emulator.result import Result
from dla.emulator.trace import Trace
from dla.isa.dtypes import Array
from dla.isa.errors import Trap
from dla.isa.program import Program


class Session(Protocol):
    """A loaded program: its constants are resident, and `state` tensors survive from run to run."""

    @property
    def program(self) -> Program:
        """The program that was loaded."""
        ...

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors on the host, at their bounds; zeros until something wrote them."""
        ...

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors; those not named keep their value. Raises InputError."""
        ...

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run from the first instruction to HALT.

        `inputs` are arrays by tensor name (NumPy, CuPy, or anything with `__dlpack__`); `dims` are values of named
        dims, of which those that the inputs' shapes give may be left out. Raises InputError before the run, Trap
        during it; after a Trap, state is as it was before the run. On several ranks, arrays may have a leading axis of
        all ranks, and results do (see `golden.lockstep`).
        """
        ...


class TracedSession(Session, Protocol):
    """A session whose machine records what it does: every one of GoldenMachine, those of DeviceMachine(traced=True)."""

    def trace(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> tuple[Result | Trap, Trace]:
        """`run`, and when each instruction ran; a Trap is given back with what ran before it, not raised."""
        ...


class Backend(Protocol):
    """A machine."""

    @property
    def name(self) -> str:
        """Which machine it is: "golden" or "gpu"."""
        ...

    def load(self, program: Program) -> Session:
        """Make `program` (already verified) ready to run."""
        ...
