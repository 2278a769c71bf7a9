"""A program on one GPU, or on the share of one that a rank has: launches the kernel, reads back what happened."""

from __future__ import annotations

import ctypes
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dla.emulator.binding import Bound, bind, bind_state, is_device_array
from dla.emulator.device import build, plan, tracing
from dla.emulator.device.generate import TRAP_CODES
from dla.emulator.device.launch import Launch
from dla.emulator.device.layout import (
    BLOCK_THREADS,
    LAUNCH,
    REPORT,
    TRACE_BLOCK,
    TRACE_SPAN,
)
from dla.emulator.device.loaded import LoadedPlan
from dla.emulator.device.memory import DeviceMemory
from dla.emulator.device.paths import Choices, Target
from dla.emulator.device.specialise import Sizes, Specialiser
from dla.emulator.device.state import State
from dla.emulator.result import Probe, Result
from dla.emulator.trace import Trace
from dla.isa.descriptor import Dynamic, Segment
from dla.isa.dtypes import Array
from dla.isa.errors import LONGER, InputError, TimeoutTrap, Trap
from dla.isa.program import Program, Tensor

if TYPE_CHECKING:
    from dla.emulator.device.machine import DeviceMachine

_CATEGORIES = {code: name for name, code in TRAP_CODES.items()}
MOST_PLANS, MOST_PLAN_BYTES = 32, 2**29
"""That a session keeps, of the last runs: their number, and about how much memory they take on the GPU."""
NOT_READY = 600
"""cudaErrorNotReady (CUDA Runtime API), which CuPy does not name."""


class DeviceSession:
    """A program on the GPU: its segments, its plans, and the buffers of a launch.

    There is a plan for each size that runs come with (specialise.py): first for all dims at their bounds.

    `memory` is that of another session of an equal program, which then must not run at the same time. `target`: of the
    plans, where it is not all of the kernel's blocks. `measure` is told of each program before it is planned.
    """

    def __init__(
        self, machine: DeviceMachine, kernel: build.Kernel, program: Program, choices: Choices | None = None,
        memory: DeviceMemory | None = None, *, target: Target | None = None, cut: bool = True,
        measure: Callable[[Program], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.program = program
        self._machine = machine
        self._kernel = kernel
        self._choices, self._cut, self._measure = choices, cut, measure
        self._target = target or kernel.target
        self._cupy = build.import_cupy()
        stream = self._cupy.cuda.Stream(non_blocking=True)
        self._side_stream = self._cupy.cuda.Stream(non_blocking=True)
        self._began, self._ended = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        self.memory = memory or DeviceMemory(self._cupy, program, stream, self._target)
        """The segments."""
        self._stream = self.memory.stream
        self._state = State(self._cupy, program, self.memory)
        self._abort = self.memory.upload(np.zeros(1, np.uint32))
        self.record = self._launch_record()
        """What the kernel is given: where everything lies."""
        self._arguments = (ctypes.c_void_p * 1)(self.record.ctypes.data)
        self._specialiser = Specialiser(self.memory.program)
        self._plans: OrderedDict[Sizes, LoadedPlan] = OrderedDict()  # the one that is followed comes last
        self._use(self._specialiser.largest)
        self._bound: Launch | None = None
        self._outputs = tuple(program.in_segment(Segment.OUTPUT))
        self.expected_base = 0
        """What the kernel believes the counters to start from. The tests plant a hang here."""

    @property
    def plan(self) -> plan.Plan:
        """The plan that the kernel follows: of the last run or launch; before the first, of dims at their bounds."""
        return self._loaded.plan

    @property
    def _loaded(self) -> LoadedPlan:
        return self._plans[next(reversed(self._plans))]

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of the state tensors on the host, at their bounds, each made when it is first read."""
        self._quiet()
        return self._state.now()

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the named state tensors. Raises InputError."""
        arrays = bind_state(self.program, values)
        self._quiet()
        self._state.settle()
        for name, array in arrays.items():
            self.memory.write(self.program.by_name[name].descriptor, array)
        self._stream.synchronize()

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """Run to HALT in one launch. Raises InputError before the run, Trap during it; a Trap leaves state as it was.

        Outputs are CuPy arrays if any input was one, else NumPy arrays. Runs that were enqueued before are checked
        first (see `Launch.check`).
        """
        self._finish()
        bound = bind(self.program, inputs, dims)
        self.begin(bound)
        trap = self.launch_once()
        if trap is not None:
            self.recover()
            raise trap
        return self.end(bound, self._cupy.cuda.get_elapsed_time(self._began, self._ended) / 1e3)

    def begin(self, bound: Bound) -> None:
        """Order everything that a launch needs."""
        self.send(bound)
        self._state.begin()
        self._loaded.clear_probes()

    def launch_once(self) -> Trap | None:
        """One launch, after `begin` or the launch before, and a wait; what ended it, if it was a trap."""
        self._began.record(self._stream)
        self._start(self._stream.ptr)
        self._ended.record(self._stream)
        self.memory.ask()
        self._wait()
        return self.trap()

    def trap(self) -> Trap | None:
        """What ended the run, if it was a trap: `memory.ask` has been ordered, and waited for."""
        report = self.memory.received
        return self._trap(report) if report["claimed"] else None

    def end(self, bound: Bound, elapsed: float) -> Result:
        """What a run without a trap has left."""
        report = self.memory.received
        self._state.done()
        shapes = {tensor: _shape(tensor, report["registers"]) for tensor in self._outputs}
        on_device = any(is_device_array(array) for array in bound.arrays.values())
        outputs = self.memory.outputs(shapes, on_device=on_device)
        return Result(outputs, self._state.now(), self._read_probes(), self._machine.name, elapsed, bound.dims)

    def trace(
        self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None, room: int = tracing.ROOM
    ) -> tuple[Result | Trap, Trace]:
        """`run`, and when each block did what, up to `room` spans of each; a Trap is given back, not raised.

        Raises InputError before the run, also on a machine that is not `traced`.
        """
        if not self._machine.traced:
            raise InputError("this machine notes no times", hint='Machine("gpu", traced=True) does')
        blocks = self._target.blocks
        size = tracing.table_bytes(blocks, room)
        table = self._cupy.cuda.alloc(size)
        self.memory.clear(table.ptr, size)
        self.record["trace"], self.record["trace_room"] = table.ptr, room
        try:
            result: Result | Trap = self.run(inputs, dims)
        except Trap as trap:
            result = trap
        finally:
            self.record["trace"], self.record["trace_room"] = 0, 0
        heads = self.memory.fetch(table.ptr, TRACE_BLOCK.dtype, blocks)
        spans, step = table.ptr + heads.nbytes, room * TRACE_SPAN.dtype.itemsize
        noted = [
            self.memory.fetch(spans + block * step, TRACE_SPAN.dtype, min(room, int(head["works"])))
            for block, head in enumerate(heads)
        ]
        return result, tracing.trace(heads, noted, self.plan.origins)

    def launch(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Launch:
        """Put inputs and dims on the device, for runs without the host; see `Launch`. Raises InputError.

        Runs that were enqueued before are checked first (see `Launch.check`).
        """
        self._finish()
        self.send(bind(self.program, inputs, dims))
        self._stream.synchronize()
        self._bound = Launch(self)
        return self._bound

    def enqueue(self, launch: Launch, stream: Any) -> None:
        """What `Launch.enqueue` does."""
        if launch is not self._bound:
            raise outdated()
        self.settle()
        stream = self._cupy.cuda.get_current_stream() if stream is None else stream
        self._start(stream.ptr if hasattr(stream, "ptr") else stream.cuda_stream)

    def settle(self) -> None:
        """Before a run that does not set the state aside: let snapshots of it keep what they show."""
        if self._state.written:
            self._state.settle()

    def check(self) -> None:
        """What `Launch.check` does."""
        self._cupy.cuda.runtime.deviceSynchronize()
        report = self.memory.fetch(self.memory.report, REPORT.dtype, 1)[0]
        if report["claimed"]:
            trap = self._trap(report)
            self.clear()
            raise trap

    def stop(self) -> None:
        """End a run that is under way: every wait inside the kernel gives up."""
        self.memory.overwrite(self._abort.ptr, np.ones(1, np.uint32), self._side_stream)

    @property
    def abort(self) -> int:
        """Device address of the flag that `stop` sets."""
        return int(self._abort.ptr)

    def _launch_record(self) -> Any:
        launch = np.zeros((), LAUNCH.dtype)
        launch["abort"], launch["report"] = self._abort.ptr, self.memory.report
        launch["initial_registers"] = self.memory.registers
        launch["timeout_ns"] = int(self._machine.timeout * 1e9)
        launch["rank"], launch["world"] = self._target.rank, self._target.world
        launch["code"], launch["code_bytes"] = self._kernel.code, self._kernel.code_bytes
        return launch

    def _use(self, sizes: Sizes) -> None:
        """Let the next launches follow the plan for `sizes`, which is made if it is not there. Raises InputError."""
        if sizes in self._plans:
            self._plans.move_to_end(sizes)
        else:
            self._make_room()
            self._plans[sizes] = self._load(self._specialiser.program(sizes))
        self._loaded.describe(self.record)

    def _make_room(self) -> None:
        """Forget the plans that have not been followed for longest, but not the last one."""
        held = sum(loaded.nbytes for loaded in self._plans.values())
        while len(self._plans) > 1 and (len(self._plans) >= MOST_PLANS or held > MOST_PLAN_BYTES):
            self._stream.synchronize()  # nothing that was enqueued needs it any longer
            held -= self._plans.popitem(last=False)[1].nbytes

    def _load(self, program: Program) -> LoadedPlan:
        """The plan of a specialised program, ready for launches."""
        self._measure(program)
        made = plan.build(program, self.memory.bases, self._target, self._choices, cut=self._cut)
        loaded = LoadedPlan(made, self.memory, self._target.blocks)
        record = self.record.copy()
        loaded.describe(record)
        loaded.prepare(self._kernel, self._target.blocks, record)
        return loaded

    def _quiet(self) -> None:
        """Wait for runs that were enqueued on streams of others."""
        if self._bound is not None:
            self._cupy.cuda.runtime.deviceSynchronize()

    def _finish(self) -> None:
        """Check what was enqueued: a trap's numbers are those of the plan that it followed. Raises that Trap."""
        bound, self._bound = self._bound, None
        if bound is not None:
            self.check()

    def send(self, bound: Bound) -> None:
        """Order inputs and dims to the device."""
        registers = np.zeros(32, np.int64)
        for symbol in self.program.dims:
            registers[symbol.register] = bound.dims[symbol.name]
        self._use(self._specialiser.sizes(bound.dims))
        self.memory.send(registers, {self.program.by_name[name]: array for name, array in bound.arrays.items()})

    def _start(self, stream: int) -> None:
        """The launch itself, on the stream with this handle."""
        self.record["expected_base"] = self.expected_base
        kernel = self._kernel
        given = kernel.parameter([self.record])
        arguments = self._arguments if given is self.record else (ctypes.c_void_p * 1)(given.ctypes.data)
        # The driver's call takes 4 us. CuPy's own, which looks at every field of the record, takes 18.
        self._cupy.cuda.driver.launchKernel(
            kernel.function.kernel.ptr, self._target.blocks, 1, 1, BLOCK_THREADS, 1, 1, kernel.shared_bytes, stream,
            ctypes.addressof(arguments), 0,
        )  # fmt: skip

    def _wait(self) -> None:
        """Wait for the run; an interrupt from the keyboard stops the kernel first."""
        query, stream = self._cupy.cuda.runtime.streamQuery, self._stream
        patience = time.perf_counter() + 0.002
        try:
            # `synchronize` would not let an interrupt through. A fault of the device ends the loop as well.
            while query(stream.ptr) == NOT_READY:
                if time.perf_counter() > patience:
                    time.sleep(0.0005)
        except KeyboardInterrupt:
            self.stop()
            stream.synchronize()
            self.recover()
            raise
        stream.synchronize()

    def recover(self) -> None:
        """After a trap or an interrupt: the next run starts as if this one had never been."""
        self.clear()
        self._state.set_back()

    def clear(self) -> None:
        """Make the next launch start from zeroed counters, and without a trap."""
        self.memory.clear(self._abort.ptr, 4)
        self.memory.clear(self.memory.report, REPORT.dtype.itemsize)
        for loaded in self._plans.values():
            loaded.clear()
        self._stream.synchronize()

    def _trap(self, report: Any) -> Trap:
        category = _CATEGORIES[int(report["category"])]
        detail = [int(d) for d in report["detail"]]
        executed, origins = int(report["instruction"]), self.plan.origins
        index = origins[executed] if executed < len(origins) else None
        location = None if index is None else self.program.location(index)
        if category == "timeout":
            what, counter, value, target = detail[:4]
            waited_for = (
                f"counter {counter}, which is {value} and should reach {target}",
                "the workers of a block",
                "results that come word by word",
                f"rank {counter}",
            )
            text = f"waited {self._machine.timeout:g} s for {waited_for[what]}"
            return TimeoutTrap(category, text, instruction=index, location=location, hint=LONGER)
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
        if not self.plan.probes:
            return {}
        messages = dict(self.program.debug.messages) if self.program.debug else {}
        pairs = zip(self._loaded.probes(), self.plan.probes, strict=True)
        executed = [(r, index) for r, index in pairs if r["order"]]
        reports = {}
        for r, index in sorted(executed, key=lambda pair: int(pair[0]["order"])):
            tag = self.program.instructions[index].attributes.get("tag", 0)
            reports[tag] = Probe(
                tag, int(r["count"]), float(r["minimum"]), float(r["maximum"]), float(r["mean"]), int(r["nans"]),
                int(r["infinities"]), index, messages.get(index),
            )  # fmt: skip
        return reports


def outdated() -> InputError:
    """What to raise where a launch is enqueued after others have taken its place."""
    return InputError("the session has run with other inputs since", hint="make a new launch: session.launch(...)")


def _shape(tensor: Tensor, registers: Array) -> tuple[int, ...]:
    """The shape of an output with the registers as they were at HALT."""
    return tuple(int(registers[d.register]) if isinstance(d, Dynamic) else d for d in tensor.descriptor.dims)
