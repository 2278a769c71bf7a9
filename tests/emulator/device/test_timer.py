"""The timing of trials, on a CuPy that is made of host memory and a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import build, gpu, timer, tune, tuned
from dla.emulator.device.gpu import H200
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.emulator.device.session import DeviceSession
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.tests.emulator.device import fake_cupy
from dla.tests.emulator.device.test_parts import FEED_FORWARD

TARGET = Target(132, hopper=True)
EMPTY_MS = 0.004
PRODUCT = """
.input w : bf16[512, 512]
.input x : bf16[256, 512]
.scratch h : bf16[256, 512]
.output y : f32[256, 512]
main:
    ACT.relu h, x
    GEMM y, h, w
    HALT
"""


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A namespace: `timer`, the `sessions` that it made, and `ms(session)`, how long a launch of one takes."""
    monkeypatch.setenv("DLA_CACHE", str(tmp_path))
    cupy = fake_cupy.make()
    found = SimpleNamespace(sessions=[], ms=lambda session: 1.0, launched=None)
    monkeypatch.setattr(build, "import_cupy", lambda: cupy)
    monkeypatch.setattr(timer, "FLUSH_BYTES", 4096)
    # The driver encodes them.
    monkeypatch.setattr("dla.emulator.device.paths.tensor_map.TensorMap.encode", lambda self: b"\0" * 128)
    cupy.cuda.get_elapsed_time = lambda began, ended: found.ms(found.launched)

    def kernel(launched: Callable[..., None]) -> Any:
        return SimpleNamespace(
            function=SimpleNamespace(kernel=SimpleNamespace(ptr=launched)), prepare=lambda *_, **__: None, blocks=132,
            shared_bytes=0, code=0, code_bytes=0, target=TARGET, architecture="sm_90a",
            parameter=lambda records: records[0],
        )  # fmt: skip

    def load(program, choices, memory):
        def launched(*_: object) -> None:
            found.launched = session

        session = DeviceSession(DeviceMachine(), kernel(launched), program, choices, memory)
        found.sessions.append(session)
        return session

    found.kernel = kernel(lambda *_: None)
    found.timer = timer.DeviceTimer(cupy, load)
    return found


def test_a_way_takes_what_its_launches_take_without_an_empty_one(timed):
    """Divided by the repetitions; the quickest one is kept."""

    def ms(session: DeviceSession) -> float:
        place = timed.sessions.index(session)
        return EMPTY_MS + (0 if place == 0 else 0.64 if place != 3 else 0.32)

    timed.ms = ms
    store = tuned.store(H200, pytest.fail)
    tune.measure(assemble(PRODUCT), TARGET, store, timed.timer, lambda message: None)
    _, *sessions = timed.sessions
    repeats = len(sessions[0].program.instructions) - 1
    (known,) = store._known.values()
    assert known.seconds == pytest.approx(0.32e-3 / repeats)
    assert known.fields["splits"] == sessions[2].plan.schedules[0].decision.choice.splits


def test_operands_are_random_numbers_in_memory_that_all_ways_share(timed):
    """Neither zeros nor garbage: on those, a GPU is quicker."""
    tune.measure(assemble(PRODUCT), TARGET, tuned.store(H200, pytest.fail), timed.timer, lambda message: None)
    _, *sessions = timed.sessions
    memory = sessions[0].memory
    assert len(sessions) > 1
    assert all(session.memory is memory for session in sessions)
    first = sessions[0].program.instructions[0]
    for name, segment in (("a", Segment.STATE), ("b", Segment.INPUT)):
        d = first.operand(name)
        assert d.segment is segment
        numbers = memory.view(d, d.bounds).view(d.dtype.numpy).astype(np.float32)
        assert abs(numbers.mean()) < 0.02
        assert abs(numbers.std() - 1) < 0.02


def test_trials_are_executed_as_wholes(timed):
    """Parts of one would begin before the one in front has ended."""
    program = assemble(FEED_FORWARD)
    assert DeviceSession(DeviceMachine(), timed.kernel, program).plan.origins == (0, 0, 1, 1, 2)
    assert DeviceMachine().timer(timed.kernel)._load(program, None, None).plan.origins == (0, 1, 2)


def test_a_way_that_takes_no_time_is_still_a_time(timed):
    """The clock is coarser than a small instruction: nothing is negative, and what is kept can be read again."""
    store = tuned.store(H200, pytest.fail)
    tune.measure(assemble(PRODUCT), TARGET, store, timed.timer, lambda message: None)
    assert all(known.seconds > 0 for known in tuned.store(H200, pytest.fail)._known.values())


def test_a_machine_that_tunes_measures_once_and_all_machines_use_it(timed, monkeypatch):
    """Loading says what it does; without `tune` it only looks; on another GPU nothing is known."""
    program = assemble(PRODUCT)
    monkeypatch.setattr(build, "kernel", lambda **options: timed.kernel)
    monkeypatch.setattr(gpu, "present", lambda device: H200)
    said: list[str] = []

    def seconds(machine: DeviceMachine) -> float | None:
        return machine.load(program).plan.schedules[1].decision.seconds

    assert seconds(DeviceMachine(progress=pytest.fail)) is None
    assert seconds(DeviceMachine(tune=True, progress=said.append)) is not None
    assert [line.split()[0] for line in said] == ["tuning:", "tuned"]
    assert seconds(DeviceMachine(progress=pytest.fail)) is not None
    assert seconds(DeviceMachine(checked=True, progress=pytest.fail)) is None
    monkeypatch.setattr(gpu, "present", lambda device: None)
    assert seconds(DeviceMachine(tune=True, progress=pytest.fail)) is None


def test_a_size_is_measured_when_it_comes(timed, monkeypatch):
    """What has a plan of its own has ways of its own; the same size again is known."""
    text = PRODUCT.replace(".input x : bf16[256,", ".input x : bf16[n <= 256,").replace("[256, 512]", "[n, 512]")
    monkeypatch.setattr(build, "kernel", lambda **options: timed.kernel)
    monkeypatch.setattr(gpu, "present", lambda device: H200)
    said: list[str] = []
    session: Any = DeviceMachine(tune=True, progress=said.append).load(assemble(text))
    for rows, lines in ((256, 2), (64, 4), (64, 4), (40, 6)):
        session.launch({"w": np.zeros((512, 512), DType.BF16.numpy), "x": np.zeros((rows, 512), DType.BF16.numpy)})
        assert session.plan.schedules[1].decision.seconds is not None
        assert len(said) == lines, said
