"""Profiles of programs: on the golden machine, and on stands that are made up."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dla
from dla.isa.errors import BackendError, InputError
from dla.isa.program import Program
from dla.profiler import run
from dla.profiler.figures import outside
from dla.profiler.measures import measured
from dla.profiler.native.library import require_torch
from dla.profiler.profile import Ceilings, Profile
from dla.profiler.stand import GoldenStand, Timer

TEXT = """
.program p
.input  x : f32[n <= 64, 32]
.const  w : f32[4] = [1, 2, 3, 4]
.state  seen : i64[]
.scratch h : f32[n, 32]
.output y : f32[n, 32]
main:
    EW.add   seen, seen, 1
    LOOP     s9, 3
    EW.mul   h, x, 2
    ENDLOOP
    SOFTMAX  y, h axis=-1
    BR       out
    FILL     y, 0
out:
    LOADS    s8, seen
    CMP.eq   p0, s8, 1
    ASSERT   p0 "state is as at the start"
    HALT
"""


class QuickStand(GoldenStand):
    """The golden machine with ceilings that cost nothing."""

    def ceilings(self) -> Ceilings:
        return Ceilings(1e9, {"f32": 1e10})


def profiled(text: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> Profile:
    """A profile of `text` with few runs."""
    program = dla.assemble(text.replace("BR       out", "BR       out if=p7"), file="p.dla")
    return run.measured(QuickStand(), program, inputs or {}, repeat=3, **options)[0]


def test_a_program_with_loops_and_state_is_profiled() -> None:
    """Calls are executions; state is the same at the start of every run, traced or not."""
    found = profiled(TEXT, {"x": np.ones((5, 32), np.float32)})
    assert found.trap is None
    calls = {f.name: f.calls for f in found.figures}
    assert calls["EW.mul"] == 3
    assert (calls["EW.add"], calls["SOFTMAX.soft"], calls["LOOP"], calls["ENDLOOP"]) == (1, 1, 1, 3)
    assert (found.machine, dict(found.dims)) == ("golden", {"n": 5})
    assert len(found.runs) == 3
    assert found.wall == sorted(found.runs)[1]
    assert found.traced == found.trace.end * 1e-9
    assert 0 < found.overhead < found.wall
    assert sum(f.time for f in found.figures) + outside(found.critical) == pytest.approx(found.traced)
    softmax = next(f for f in found.figures if f.name == "SOFTMAX.soft")
    assert softmax.flops == 5 * 5 * 32
    assert softmax.location == "p.dla:13"
    assert found.roof == pytest.approx(sum(f.roof * f.calls for f in found.figures))
    assert found.roof > softmax.roof > 0
    assert found.segments["input"] == 64 * 32 * 4
    assert {"name", "python", "numpy"} <= found.device.keys()


class SettlingStand(QuickStand):
    """Runs take a millisecond; those that are traced find caches that fill one after the other."""

    def timer(self, program: Program, *given: Any, **options: Any) -> Timer:
        return lambda: 1e-6 if program.name == "empty" else 1e-3

    def traced(self, program: Program) -> Any:
        session: Any = super().traced(program)
        trace, ends = session.trace, iter([9e6, 5e6, 2e6, 7e5, 1.2e6, 1.001e6, 4e6])

        def traced(*given: Any) -> tuple[Any, Any]:
            result, found = trace(*given)
            return result, replace(found, end=int(next(ends))) if program.name != "empty" else found

        session.trace = traced
        return session


def test_the_trace_is_of_a_run_that_takes_what_runs_take() -> None:
    """What is attributed is what a run takes: tracing goes on until it is so."""
    found = run.measured(SettlingStand(), dla.assemble(TRAPPING.replace("p0, 0", "p0, 1")), {"x": np.zeros(4, "f4")})[0]
    assert (found.wall, found.traced) == (1e-3, pytest.approx(1.001e-3))
    assert sum(f.time for f in found.figures) + outside(found.critical) + found.launch == pytest.approx(1e-3, rel=0.03)


def test_one_session_is_gone_before_the_next_one_comes() -> None:
    """Also where it is part of a circle, as on the GPU: the memory of two large networks would not fit."""
    held: list[weakref.ref[Any]] = []

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    class CircularStand(QuickStand):
        def timer(self, *given: Any, **options: Any) -> Timer:
            circle = Circle()
            held.append(weakref.ref(circle))
            return lambda: 1e-3 if circle else 0.0

        def traced(self, program: Program) -> Any:
            if program.name != "empty":
                assert [one() for one in held] == [None, None]
            return super().traced(program)

    gc.disable()
    try:
        run.measured(CircularStand(), dla.assemble(TRAPPING), {"x": np.zeros(4, "f4")})
    finally:
        gc.enable()


def test_what_is_never_executed_has_no_calls() -> None:
    """A branch around an instruction leaves it without time."""
    taken = "    MOV p7, 1\n    BR       out"
    found = profiled(TEXT.replace("    BR       out", taken), {"x": np.ones((1, 32), np.float32)})
    skipped = next(f for f in found.figures if f.name == "FILL")
    assert (skipped.calls, skipped.time, skipped.spent) == (0, 0.0, (0.0, 0.0, 0.0, 0.0))


TRAPPING = """
.program t
.input x : f32[4]
.output y : f32[4]
main:
    ACT.exp y, x
    ACT.exp y, y
    MOV    p0, 0
    ASSERT p0 "on purpose"
    ACT.exp y, y
    HALT
"""


def test_a_trap_midway_leaves_the_profile_of_what_ran() -> None:
    """The trap is told, and everything before it kept; runs that would end in it are not timed."""
    program = dla.assemble(TRAPPING, file="t.dla")
    found, trap = run.measured(QuickStand(), program, {"x": np.zeros(4, np.float32)}, repeat=2)
    assert trap is not None
    assert trap.exit_code == 4
    assert found.trap == "trap[assert] at instruction 3 (t.dla:9): assertion failed, code 0: on purpose"
    assert [f.calls for f in found.figures] == [1, 1, 1, 0, 0, 0]
    assert found.runs == ()
    assert found.wall == found.traced > 0


def test_bad_inputs_are_refused_before_anything_is_measured() -> None:
    """As a run would refuse them."""
    with pytest.raises(InputError, match="missing input 'x'"):
        profiled(TRAPPING)
    with pytest.raises(InputError, match="there is no backend 'tpu'"):
        run.profile(dla.assemble(TRAPPING), {}, backend="tpu")


def test_natives_stand_beside_what_ran() -> None:
    """With a kernel, or with a reason; what did not run is not compared."""
    pytest.importorskip("torch")
    found = run.with_natives(profiled(TRAPPING, {"x": np.zeros(4, np.float32)}))
    first, second, mov, _, never, _ = found.figures
    assert first.native is not None
    assert first.native.kernel == "torch exp, on the CPU"
    assert second.native is first.native
    assert (mov.native, mov.why_no_native, never.native) == (None, "", None)
    one = run.only(run.with_natives(profiled(TRAPPING, {"x": np.zeros(4, np.float32)}), lambda i: i == 1), 1)
    assert [m.figures.index for m in measured(one)] == [1]
    assert one.roof == found.roof > one.figures[1].roof  # of the program


def test_without_pytorch_natives_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile says whose they are."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = run.with_natives(profiled(TRAPPING, {"x": np.zeros(4, np.float32)}))
    assert found.natives == "NumPy"
    native = found.figures[0].native
    assert native is not None
    assert (native.kernel, native.agrees) == ("numpy.exp", True)


def test_modules_beside_a_gpu_need_a_pytorch_that_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a CPU beside those of a GPU would say nothing."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    require_torch("--torch", "golden")
    with pytest.raises(BackendError, match=r"--torch needs PyTorch: this PyTorch \(.*\) does not see the GPU") as error:
        require_torch("--torch", "gpu")
    assert error.value.exit_code == 6
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendError, match="--torch needs PyTorch: PyTorch cannot be imported") as error:
        require_torch("--torch", "golden")
    assert error.value.hint == "pip install 'dla[native]'"


def test_ceilings_are_measured() -> None:
    """A copy and products of the host's, in numbers that a computer can reach."""
    stand = GoldenStand()
    stand.side = 64
    found = stand.ceilings()
    assert 1e7 < found.bytes_per_second < 1e14
    assert found.flops.keys() == {"f32", "f64"}
    assert all(1e6 < flops < 1e16 for flops in found.flops.values())
