"""What the traced build notes: on the emulated device, on a GPU, and how times are made of it."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import tracing
from dla.emulator.device.layout import TRACE_BLOCK, TRACE_SPAN
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.trace import Trace
from dla.isa.errors import InputError, Trap
from dla.isa.program import Program
from dla.tests.emulator.device.cpu_machine import BLOCKS, CpuSession, needs_compiler

PROGRAM = """
.input x : bf16[64, 128]
.const w : bf16[128, 128] = 0.01
.scratch h : bf16[64, 128]
.output y : bf16[64, 128]
main:
    COPY h, x
    LOOP s0, 3
        GEMM y, h, w
        EW.add h, h, y
    ENDLOOP
    HALT
"""


def program() -> Program:
    """Products and sums that wait for each other, in a loop."""
    return assemble(PROGRAM)


def given() -> dict[str, np.ndarray]:
    """Its input."""
    x = assemble(PROGRAM).by_name["x"].descriptor
    return {"x": np.ones(x.bounds, x.dtype.numpy)}


def check(trace: Trace, blocks: int) -> None:
    """What holds of every trace of `program`."""
    spans = trace.spans
    assert trace.blocks == blocks
    assert trace.lost == 0
    for block in range(blocks):
        own = spans[spans["block"] == block]
        assert (np.diff(own["order"].astype(int)) > 0).all()
        assert (own["began"][1:] >= own["done"][:-1]).all()
    assert (spans["loaded"] >= np.maximum(spans["began"], spans["ready"])).all()
    assert (spans["loaded"] <= spans["done"]).all()
    assert (spans["done"] <= spans["signalled"]).all()
    assert (spans["signalled"] <= trace.end + 1000).all()
    calls = {index: np.unique(spans["order"][spans["instruction"] == index]).tolist() for index in (0, 2, 3)}
    assert calls == {0: [0], 2: [2, 5, 8], 3: [3, 6, 9]}, "every pass through the loop by itself"
    for before, after in ((0, 2), (2, 3), (3, 5), (5, 6), (6, 8), (8, 9)):
        ended = spans["done"][spans["order"] == before].max()
        began = np.maximum(spans["ready"], spans["began"])[spans["order"] == after].min()
        assert began >= ended - 200, "nobody begins before what it waits for is done, but for the clocks' steps"


@needs_compiler
@pytest.mark.parametrize("hopper", [False, True])
def test_spans_of_the_emulated_device(hopper):
    """Results are those of the untraced build; each block notes what it did in program order."""
    plain = CpuSession(program(), hopper=hopper).run(given())
    result, trace = CpuSession(program(), hopper=hopper, traced=True).trace(given())
    assert result.outputs["y"].tobytes() == plain.outputs["y"].tobytes()
    check(trace, BLOCKS)
    assert trace.multiprocessors == tuple(range(10, 10 + BLOCKS))


@needs_compiler
def test_a_trap_leaves_the_spans_before_it():
    """What was executed before the trap is there."""
    text = """
.input i : i32[1]
.const table : f32[3, 5] = 1
.scratch h : f32[3, 5]
.output y : f32[1, 5]
main:
    EW.add h, table, table
    GATHER y, h, i
    HALT
"""
    result, trace = CpuSession(assemble(text), hopper=False, traced=True).trace({"i": np.array([7], np.int32)})
    assert isinstance(result, Trap)
    assert result.category == "index"
    assert 0 in trace.spans["instruction"]


@needs_compiler
def test_spans_without_room_are_counted():
    """The first ones are kept."""
    session = CpuSession(program(), hopper=False, traced=True)
    _, whole = session.trace(given())
    _, trace = session.trace(given(), room=2)
    assert trace.lost == whole.spans.size - trace.spans.size > 0
    assert trace.spans["order"].max() < whole.spans["order"].max()


def test_clocks_become_times():
    """Each block's clock starts anywhere and has its own speed; parts of an instruction are one execution of it."""
    heads, spans = np.zeros(2, TRACE_BLOCK.dtype), np.zeros((2, 2), TRACE_SPAN.dtype)
    heads["began_clock"], heads["ended_clock"] = [1000, 5_000_000], [11_000, 5_020_000]
    heads["began_ns"], heads["ended_ns"] = [70_000, 70_016], [75_000, 75_016]
    heads["multiprocessor"], heads["works"] = [3, 9], [2, 3]
    for block, (start, speed) in enumerate(((1000, 1), (5_000_000, 2))):
        for k in range(2):
            decoded, ready, done, signalled = (
                start + speed * t for t in (100, 200 + 5000 * k, 4000 + 5000 * k, 4400 + 5000 * k)
            )
            spans[block, k] = (decoded, ready, 0, done, signalled, k + 1, k, 7, 0)
    trace = tracing.trace(heads, list(spans), (4, 4))
    assert trace.multiprocessors == (3, 9)
    assert (trace.end, trace.lost) == (5016, 1)
    assert trace.spans["order"].tolist() == [0, 0, 0, 0], "the second is a part of the first"
    assert trace.spans["instruction"].tolist() == [4] * 4
    assert trace.spans["began"].tolist() == [50, 2000, 66, 2016]
    assert trace.spans["ready"].tolist() == [100, 2600, 116, 2616]
    assert trace.spans["loaded"].tolist() == [100, 2600, 116, 2616], "not known: when it could begin"
    assert trace.spans["done"].tolist() == [2000, 4500, 2016, 4516]
    assert trace.spans["signalled"].tolist() == [2200, 4700, 2216, 4716]


@pytest.mark.gpu
def test_spans_of_a_gpu():
    """As on the emulated device."""
    plain = DeviceMachine().load(program()).run(given())
    session = DeviceMachine(traced=True).load(program())
    result, trace = session.trace(given())
    assert result["y"].tobytes() == plain["y"].tobytes()
    check(trace, len(trace.multiprocessors))
    assert session.run(given())["y"].tobytes() == plain["y"].tobytes()
    with pytest.raises(InputError, match="notes no times"):
        DeviceMachine().load(program()).trace(given())
