"""A program on the device with its inputs, ready to be enqueued any number of times without the host's help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType

if TYPE_CHECKING:
    from dla.emulator.device.ranked import RankedDeviceSession
    from dla.emulator.device.session import DeviceSession


class Launch:
    """Runs of a session with inputs and dims that stay on the device. Made by `DeviceSession.launch`.

        launch = session.launch({"x": x})
        launch.enqueue(stream)                # any number of times; may be captured into a CUDA graph
        launch.outputs["y"]                   # a view of device memory
        launch.check()                        # waits, and raises the Trap where a run has ended in one

    State is what earlier runs left, and a trap leaves it as the trapping run had changed it. A launch serves until the
    session's next `run` or `launch`, which puts other inputs in its place.
    """

    def __init__(self, session: DeviceSession) -> None:
        self._session = session

    def enqueue(self, stream: Any = None) -> None:
        """Put one run on a CUDA stream: CuPy's, or any object with `cuda_stream`, as torch's do; None: CuPy's current.

        Returns at once. Runs of one session use the same memory, so they belong on one stream. Raises InputError after
        the session's next `run` or `launch`.
        """
        self._session.enqueue(self, stream)

    def check(self) -> None:
        """Wait for everything that was enqueued on any stream; raises Trap if a run trapped since the last check."""
        self._session.check()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs on the device, at their bounds: CuPy views, bf16 as uint16. What is written there is what runs."""
        return views(self._session, Segment.INPUT)

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The outputs on the device, at their bounds: CuPy views, bf16 as uint16."""
        return views(self._session, Segment.OUTPUT)


class RankedLaunch:
    """Runs of several ranks with inputs and dims that stay on their GPUs. Made by `RankedDeviceSession.launch`.

        launch = session.launch({"x": x})
        launch.enqueue(stream)                # a run of all ranks; any number of times
        launch.outputs[1]["y"]                # a view of the memory of rank 1
        launch.check()                        # waits, and raises the Trap of a rank where a run has ended in one

    State is as with `Launch`, and it serves as long.
    """

    def __init__(self, session: RankedDeviceSession, ranks: Sequence[DeviceSession]) -> None:
        self._session, self._ranks = session, ranks

    def enqueue(self, stream: Any = None) -> None:
        """Put one run on a CUDA stream of the present GPU (see `Launch.enqueue`).

        The launches of all GPUs begin behind what is on the stream, and what comes on it next is behind all of them.
        Returns at once. Raises InputError after the session's next `run` or `launch`.
        """
        self._session.enqueue(self, stream)

    def check(self) -> None:
        """Wait for everything that was enqueued; raises the Trap of a rank if a run trapped since the last check."""
        self._session.check()

    @property
    def inputs(self) -> tuple[Mapping[str, Any], ...]:
        """The inputs of each rank, as `Launch.inputs` has them."""
        return tuple(views(rank, Segment.INPUT) for rank in self._ranks)

    @property
    def outputs(self) -> tuple[Mapping[str, Any], ...]:
        """The outputs of each rank, as `Launch.outputs` has them."""
        return tuple(views(rank, Segment.OUTPUT) for rank in self._ranks)


def views(session: DeviceSession, segment: Segment) -> dict[str, Any]:
    """The tensors of a segment of one rank, at their bounds: CuPy views, bf16 as uint16."""
    found = {}
    for tensor in session.program.in_segment(segment):
        d = tensor.descriptor
        view = session.memory.view(d, d.bounds)
        found[tensor.name] = view if d.dtype is DType.BF16 else view.view(d.dtype.numpy)
    return found
