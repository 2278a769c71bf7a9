"""A program on the device with its inputs, ready to be enqueued any number of times without the host's help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType

if TYPE_CHECKING:
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
        return self._views(Segment.INPUT)

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The outputs on the device, at their bounds: CuPy views, bf16 as uint16."""
        return self._views(Segment.OUTPUT)

    def _views(self, segment: Segment) -> dict[str, Any]:
        views = {}
        for tensor in self._session.program.in_segment(segment):
            d = tensor.descriptor
            view = self._session.memory.view(d, d.bounds)
            views[tensor.name] = view if d.dtype is DType.BF16 else view.view(d.dtype.numpy)
        return views
