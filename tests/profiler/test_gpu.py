"""The device machine's stand, with a GPU that is made up: what is enqueued between which events, and what is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dla
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.errors import Trap
from dla.profiler import gpu, run
from dla.profiler.profile import Ceilings
from dla.report_plan import planned

COUNTING = (
    ".program counting\n.state n : i64[]\n.output y : i64[]\nmain:\n    EW.add n, n, 1\n    COPY y, n\n    HALT\n"
)


class FakeGpu:
    """What DeviceStand asks of CuPy. `log` has everything that was enqueued; each event is 1 ms after the last one."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._clock = 0.0
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: SimpleNamespace(ptr=7),
            Event=self._event,
            get_elapsed_time=lambda began, ended: ended.at - began.at,
            runtime=SimpleNamespace(
                memsetAsync=lambda ptr, value, nbytes, stream: self.log.append(f"flush {nbytes} on {stream}"),
                getDeviceProperties=lambda index: {"name": b"Made Up 9000"},
            ),
            Device=lambda: SimpleNamespace(id=0),
        )
        self.random = np.random
        self.ones, self.empty_like, self.matmul = np.ones, np.empty_like, np.matmul

    def empty(self, count: int, dtype: str) -> Any:
        """Memory that is only flushed."""
        return SimpleNamespace(data=SimpleNamespace(ptr=1), nbytes=count)

    def copyto(self, target: Any, source: Any) -> None:
        """NumPy's."""
        target[...] = source

    def _event(self) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)

        def record(stream: Any = None) -> None:
            self._clock += 1.0
            event.at = self._clock
            self.log.append("event")

        event.record = record
        return event


class FakeSession:
    """The golden machine behind the device machine's interface."""

    def __init__(self, gpu: FakeGpu, program: dla.Program, options: dict[str, Any]) -> None:
        self._session = GoldenMachine().load(program)
        self._gpu = gpu
        self.options = options
        self.plan = SimpleNamespace(
            origins=(0, 0, 1, 2), fused={2: (0,)}, executed=program_of_parts(program),
            schedules=[
                SimpleNamespace(path=p, summary=s) for p, s in ((1, "128x256"), (1, "64x256"), (0, ""), (0, ""))
            ],
        )  # fmt: skip
        self._trap: Trap | None = None
        self.given: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def launch(self, inputs: Any, dims: Any) -> FakeSession:
        """As `Launch`."""
        self.given = inputs, dims
        return self

    def enqueue(self, stream: Any) -> None:
        """Runs at once; a trap is told by `check`."""
        self._gpu.log.append(f"run on {stream.ptr}")
        try:
            self._session.run(*self.given)
        except Trap as trap:
            self._trap = trap

    def check(self) -> None:
        """Raises the trap of a run."""
        self._gpu.log.append("check")
        if self._trap is not None:
            raise self._trap


def program_of_parts(program: dla.Program) -> Any:
    """What a plan executes where instruction 0 is in two parts."""
    return SimpleNamespace(instructions=(program.instructions[0], *program.instructions))


@pytest.fixture
def made_up() -> FakeGpu:
    """A GPU."""
    return FakeGpu()


@pytest.fixture
def stand(made_up: FakeGpu) -> gpu.DeviceStand:
    """Its stand."""
    return gpu.DeviceStand(
        lambda step: None, made_up, lambda program, **options: FakeSession(made_up, program, options)
    )  # fmt: skip


def test_a_run_is_timed_between_two_events_with_a_cold_cache(made_up: FakeGpu, stand: gpu.DeviceStand) -> None:
    """The flush lies before the first event; state is as at the start each time."""
    timer = stand.timer(dla.assemble(COUNTING), {}, {}, {"n": np.array(4)}, cold=True)
    assert timer() == pytest.approx(1e-3)
    assert made_up.log == [f"flush {gpu.FLUSH_BYTES} on 7", "event", "run on 7", "event", "check"]
    assert timer() == pytest.approx(1e-3)
    warm = stand.timer(dla.assemble(COUNTING), {}, {}, {}, cold=False)
    made_up.log.clear()
    warm()
    assert made_up.log == ["event", "run on 7", "event", "check"]


def test_state_does_not_run_on(made_up: FakeGpu, stand: gpu.DeviceStand) -> None:
    """A program that counts its runs, and traps in its second one, can be timed."""
    once = COUNTING.replace("    HALT", "    LOADS s8, n\n    CMP.eq p0, s8, 1\n    ASSERT p0\n    HALT")
    timer = stand.timer(dla.assemble(once), {}, {}, {}, cold=True)
    assert [timer() for _ in range(3)] == pytest.approx([1e-3] * 3)
    trapping = stand.timer(dla.assemble(once), {}, {}, {"n": np.array(1)}, cold=True)
    with pytest.raises(Trap, match="assertion failed"):
        trapping()


def test_ways_are_the_plans_words(stand: gpu.DeviceStand) -> None:
    """Parts of an instruction are told together, and what another one does along says so; HALT has no way."""
    session = stand.traced(dla.assemble(COUNTING))
    assert stand.ways(session) == {0: "gemm 128x256; gemm 64x256", 1: "fused: done by 0"}


def test_only_the_traced_machine_records(stand: gpu.DeviceStand) -> None:
    """It is another build of the kernel."""
    assert stand.traced(dla.assemble(COUNTING)).options["traced"] is True  # type: ignore[attr-defined]  # the fake's
    assert "traced" not in stand._load(dla.assemble(COUNTING)).options


def test_a_profile_comes_from_the_stand(stand: gpu.DeviceStand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced runs for the figures, others for the times."""
    monkeypatch.setattr(stand, "ceilings", lambda: Ceilings(1e12, {"f32": 1e13}))
    found, trap = run.measured(stand, dla.assemble(COUNTING), {}, repeat=3)
    assert trap is None
    assert (found.machine, found.device["name"]) == ("gpu", "Made Up 9000")
    assert found.runs == pytest.approx((1e-3,) * 3)
    assert found.overhead == pytest.approx(1e-3)
    assert found.figures[0].way == "gemm 128x256; gemm 64x256"


def test_ceilings_are_those_of_cublas_without_pytorch(stand: gpu.DeviceStand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the work over the time between events."""
    monkeypatch.setattr(gpu, "SIDE", 16)
    monkeypatch.setattr(gpu, "COPIED_BYTES", 1000)
    monkeypatch.setattr(gpu, "_torch_products", lambda fastest: {})
    found = stand.ceilings()
    assert found.bytes_per_second == pytest.approx(2000 / 1e-3)
    assert found.flops == pytest.approx({"f16": 2 * 16**3 / 1e-3, "f32": 2 * 16**3 / 1e-3})


def test_ways_of_a_real_plan_name_paths_and_tiles(stand: gpu.DeviceStand) -> None:
    """Every instruction that touches memory has one, as `dla inspect --plan` has it."""
    text = ".program p\n.input a : bf16[512, 256]\n.scratch h : bf16[512, 256]\n.output y : bf16[512, 256]\nmain:\n"
    program = dla.assemble(text + "    ACT.relu h, a\n    GEMM y, h, a[:256]\n    HALT\n")
    made, steps = planned(program, 132, hopper=True)
    found = stand.ways(SimpleNamespace(plan=made))  # type: ignore[arg-type]  # of a session only its plan is asked for
    assert found.keys() == {0, 1}
    assert found[0].startswith("generic")
    assert found[1].startswith("gemm ")
    assert all(step.how in found[step.part_of or step.instruction] for step in steps if step.path != "fused")
