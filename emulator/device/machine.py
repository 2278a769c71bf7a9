"""The device machine's host side: loads programs, launches the kernel once per run, reads back what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.emulator.binding import Bound, bind, bind_state, is_device_array
from dla.emulator.device import build, plan
from dla.emulator.device.generate import TRAP_CODES
from dla.emulator.device.layout import BLOCK_THREADS, COUNTERS, LAUNCH, PROBE, REPORT
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.result import Probe, Result
from dla.isa import weights
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.dtypes import Array
from dla.isa.errors import TimeoutTrap, Trap
from dla.isa.program import Program, Tensor

_CATEGORIES = {code: name for name, code in TRAP_CODES.items()}
_ERROR_NOT_READY = 600
"""cudaErrorNotReady (CUDA Runtime API), which CuPy does not name."""
DEFAULT_TIMEOUT = 10.0
"""Seconds that one wait inside the kernel may take before the run is ended."""


def _silent(message: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class DeviceMachine:
    """Runs programs on an NVIDIA GPU of compute capability 8.0 or later.

    `checked` selects the build that checks the address of every element. `timeout` is in seconds, per wait.
    `architecture` overrides the compiler's target (such as "sm_80"). `progress` hears of slow steps.
    """

    checked: bool = False
    timeout: float = DEFAULT_TIMEOUT
    architecture: str | None = None
    progress: Callable[[str], None] = _silent
    name: str = "gpu"

    def load(self, program: Program) -> DeviceSession:
        """Make `program` (already verified) resident. Raises BackendError, InputError, ContainerError."""
        kernel = build.kernel(checked=self.checked, architecture=self.architecture, progress=self.progress)
        return DeviceSession(self, kernel, program)


class DeviceSession:
    """A program on the GPU: its segments, its plan, and the buffers of a launch."""

    def __init__(self, machine: DeviceMachine, kernel: build.Kernel, program: Program) -> None:
        self.program = program
        self._machine = machine
        self._kernel = kernel
        self._cupy = build.import_cupy()
        self._memory = DeviceMemory(self._cupy, program)
        self._memory.upload_constants(weights.blocks(program))
        self._plan = plan.build(program, self._memory.bases)
        self._writes_state = any(
            d is not None and d.segment is Segment.STATE and o.role.value == "out"
            for i in program.instructions
            for o, d in zip(i.row.operands, i.operands, strict=True)
        )
        upload = self._memory.upload
        self._tables = {
            name: upload(getattr(self._plan, name)) for name in ("words", "records", "operands", "waits", "wait_lists")
        }
        self._counters = upload(np.zeros(COUNTERS + 1, np.uint32))
        self._abort = upload(np.zeros(1, np.uint32))
        self._report = upload(np.zeros(1, REPORT.dtype))
        self._probes = upload(np.zeros(max(1, len(self._plan.probes)), PROBE.dtype))
        self._registers = upload(np.zeros(32, np.int64))
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._side_stream = self._cupy.cuda.Stream(non_blocking=True)
        self.expected_base = 0
        """What the kernel believes the counters to start from. The tests plant a hang here."""

    @property
    def plan(self) -> plan.Plan:
        """The plan that the kernel follows."""
        return self._plan

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors on the host, at their bounds."""
        return {t.name: self._memory.read(t.descriptor) for t in self.program.in_segment(Segment.STATE)}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors. Raises InputError."""
        for name, array in bind_state(self.program, values).items():
            self._memory.write(self.program.by_name[name].descriptor, array)

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT in one launch. Raises InputError before the run, Trap during it; a Trap leaves state as it was.

        Outputs are CuPy arrays if any input was one, else NumPy arrays.
        """
        bound = bind(self.program, inputs, dims)
        for name, array in bound.arrays.items():
            self._memory.write(self.program.by_name[name].descriptor, array)
        if self._writes_state:
            self._memory.save_state()
        report, elapsed = self._launch(bound)
        if report["claimed"]:
            self._recover()
            raise self._trap(report)
        on_device = any(is_device_array(array) for array in bound.arrays.values())
        outputs = {
            tensor.name: self._memory.read(tensor.descriptor, _shape(tensor, report["registers"]), on_device=on_device)
            for tensor in self.program.in_segment(Segment.OUTPUT)
        }
        return Result(outputs, self.state, self._read_probes(), self._machine.name, elapsed, bound.dims)

    def _launch(self, bound: Bound) -> tuple[Any, float]:
        """One launch, waited for; returns the report, and the seconds that the kernel took."""
        registers = np.zeros(32, np.int64)
        for symbol in self.program.dims:
            registers[symbol.register] = bound.dims[symbol.name]
        self._memory.overwrite(self._registers, registers)
        if self._plan.probes:
            self._memory.overwrite(self._probes, np.zeros(len(self._plan.probes), PROBE.dtype))
        launch = np.zeros((), LAUNCH.dtype)
        for name, table in self._tables.items():
            launch[name] = table.ptr
        launch["counters"], launch["abort"] = self._counters.ptr, self._abort.ptr
        launch["report"], launch["probes"] = self._report.ptr, self._probes.ptr
        launch["initial_registers"] = self._registers.ptr
        launch["timeout_ns"] = int(self._machine.timeout * 1e9)
        launch["instructions"] = len(self.program.instructions)
        launch["expected_base"], launch["rank"], launch["world"] = self.expected_base, 0, 1
        kernel = self._kernel
        self._cupy.cuda.runtime.deviceSynchronize()
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        with self._stream:
            start.record()
            kernel.function((kernel.blocks,), (BLOCK_THREADS,), (launch,), shared_mem=kernel.shared_bytes)
            end.record()
        self._wait(end)
        elapsed = self._cupy.cuda.get_elapsed_time(start, end) / 1e3
        return self._memory.fetch(self._report, REPORT.dtype, 1)[0], elapsed

    def _wait(self, end: Any) -> None:
        """Wait for the launch; an interrupt from the keyboard stops the kernel first."""
        query = self._cupy.cuda.runtime.eventQuery
        patience = time.perf_counter() + 0.002
        try:
            # `synchronize` would not let an interrupt through. A fault of the device ends the loop as well.
            while query(end.ptr) == _ERROR_NOT_READY:
                if time.perf_counter() > patience:
                    time.sleep(0.0005)
        except KeyboardInterrupt:
            with self._side_stream:
                self._memory.overwrite(self._abort, np.ones(1, np.uint32), stream=self._side_stream)
            end.synchronize()
            self._recover()
            raise
        end.synchronize()

    def _recover(self) -> None:
        """After a trap or an interrupt: the next run starts as if this one had never been."""
        self._memory.overwrite(self._abort, np.zeros(1, np.uint32))
        self._memory.overwrite(self._report, np.zeros(1, REPORT.dtype))
        self._memory.overwrite(self._counters, np.zeros(COUNTERS + 1, np.uint32))
        if self._writes_state:
            self._memory.restore_state()

    def _trap(self, report: Any) -> Trap:
        category = _CATEGORIES[int(report["category"])]
        detail = [int(d) for d in report["detail"]]
        index: int | None = int(report["instruction"])
        if index is not None and index >= len(self.program.instructions):
            index = None
        location = None if index is None else self.program.location(index)
        if category == "timeout":
            what, counter, value, target = detail[:4]
            text = (
                f"waited {self._machine.timeout:g} s for counter {counter}, which is {value} and should reach {target}"
                if what == 0
                else f"waited {self._machine.timeout:g} s for the workers of a block"
            )
            return TimeoutTrap(category, text, instruction=index, location=location)
        return Trap(category, self._explain(category, index, detail), instruction=index, location=location)

    def _explain(self, category: str, index: int | None, detail: list[int]) -> str:
        if category == "assert":
            messages = dict(self.program.debug.messages) if self.program.debug else {}
            text = messages.get(-1 if index is None else index)
            return f"assertion failed, code {detail[0]}" + (f": {text}" if text else "")
        name = "" if index is None else self.program.instructions[index].name + ": "
        return name + {
            "index": f"index {np.uint32(detail[0]).astype(np.int32)} is out of range",
            "arithmetic": "integer division by zero, or a negative exponent",
            "loop": "the loop count is negative or larger than max",
            "extent": "a dim or an address taken from registers is out of its bounds",
            "bounds": "an access outside its segment (a defect of the machine; please report it)",
        }.get(category, "trapped")

    def _read_probes(self) -> dict[int, Probe]:
        """The report of the last PROBE of each tag that was executed."""
        messages = dict(self.program.debug.messages) if self.program.debug else {}
        records = self._memory.fetch(self._probes, PROBE.dtype, max(1, len(self._plan.probes)))
        executed = [(r, index) for r, index in zip(records, self._plan.probes, strict=False) if r["order"]]
        reports = {}
        for r, index in sorted(executed, key=lambda pair: int(pair[0]["order"])):
            tag = self.program.instructions[index].attributes.get("tag", 0)
            reports[tag] = Probe(
                tag, int(r["count"]), float(r["minimum"]), float(r["maximum"]), float(r["mean"]), int(r["nans"]),
                int(r["infinities"]), index, messages.get(index),
            )  # fmt: skip
        return reports


def _shape(tensor: Tensor, registers: Array) -> tuple[int, ...]:
    """The shape of an output with the registers as they were at HALT."""
    return tuple(int(registers[d.register]) if isinstance(d, Dynamic) else d for d in tensor.descriptor.dims)
