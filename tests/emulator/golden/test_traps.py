"""Traps: each category, with the instruction and its line; nothing is delivered and state stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dla
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction, Program, Tensor

Run = Callable[..., dla.Result]

I64 = np.int64

SLICE = """.input x : i64[]
.scratch pad : f32[8]
.scratch a : f32[4]
.output y : f32[]
main:
FILL pad, 1
FILL a, 1
LOADS s0, x
COPY y, a[s0]
HALT"""

CASES: dict[str, tuple[str, str, int, str, Mapping[str, Any]]] = {
    "index": (
        "index",
        ".input i : i64[2]\n.const t : f32[3] = [1, 2, 3]\n.output y : f32[2]\nmain:\nGATHER y, t, i\nHALT",
        0, "index 3 is not from 0 to 2", {"i": np.array([0, 3], I64)},
    ),
    "index of an update": (
        "index",
        ".input i : i64[2]\n.state t : f32[3]\n.const u : f32[2] = 1\nmain:\nSCATTER.add t, t, i, u\nHALT",
        0, "index -1 is not from 0 to 2", {"i": np.array([0, -1], I64)},
    ),
    "index of a table": (
        "index",
        ".input i : i64[1, 1]\n.const t : f32[3] = 1\n.output y : f32[1]\nmain:\nRESIZE y, t, i, t[:1, None]\nHALT",
        0, "index 3 is not from 0 to 2", {"i": np.array([[3]], I64)},
    ),
    "arithmetic": (
        "arithmetic",
        ".input x : i32[2]\n.output y : i32[2]\nmain:\nNOP\nEW.div y, x, x\nHALT",
        1, "division by zero", {"x": np.array([1, 0], np.int32)},
    ),
    "scalar arithmetic": (
        "arithmetic",
        ".input x : i64[]\n.output y : i64[]\nmain:\nLOADS s0, x\nALU.mod s1, 1, s0\nFILL y, s1\nHALT",
        1, "modulo by zero", {"x": np.array(0, I64)},
    ),
    "loop": (
        "loop",
        ".input x : i64[]\n.output y : i64[]\nmain:\nLOADS s1, x\nLOOP s0, s1 max=4\nNOP\nENDLOOP\nFILL y, s0\nHALT",
        1, "s1 is 5, outside 0..4", {"x": np.array(5, I64)},
    ),
    "negative loop": (
        "loop",
        ".input x : i64[]\n.output y : i64[]\nmain:\nLOADS s1, x\nLOOP s0, s1 max=4\nNOP\nENDLOOP\nFILL y, s0\nHALT",
        1, "s1 is -1, outside 0..4", {"x": np.array(-1, I64)},
    ),
    "assert": (
        "assert",
        '.input x : bool[]\n.output y : i64[]\nmain:\nFILL y, 1\nLOADS p0, x\nASSERT p0 code=9 "x must be set"\nHALT',
        2, "code 9: x must be set", {"x": np.array(False)},
    ),
    "extent (dim)": (
        "extent",
        ".input x : i64[]\n.output y : f32[s0 <= 4]\nmain:\nLOADS s0, x\nFILL y, 1\nHALT",
        1, "dim s0 is 5, outside 0..4", {"x": np.array(5, I64)},
    ),
    "extent (address)": (
        "extent",
        SLICE,
        3, "are outside", {"x": np.array(4, I64)},
    ),
    "extent (below)": (
        "extent",
        SLICE,
        3, "are outside", {"x": np.array(-1, I64)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_trap_names_category_instruction_and_line(run: Run, name: str) -> None:
    """Every trap says what happened, at which instruction, on which source line."""
    category, text, index, message, inputs = CASES[name]
    with pytest.raises(dla.Trap) as caught:
        run(f".program t\n{text}\n", inputs)
    trap = caught.value
    assert (trap.category, trap.instruction) == (category, index)
    assert message in trap.detail
    lines = text.split("main:\n")
    assert trap.location == f"<string>:{lines[0].count(chr(10)) + 3 + index}"


@pytest.mark.parametrize("x", [0, 3])
def test_address_inside_its_tensor_is_fine(run: Run, x: int) -> None:
    """The twin of the cases "extent (address)" and "(below)", which leave the tensor but not the segment."""
    assert run(f".program t\n{SLICE}\n", {"x": np.array(x, I64)})["y"] == 1


@pytest.mark.parametrize("sub", ["div", "mod"])
def test_nothing_divided_by_zero_is_fine(run: Run, sub: str) -> None:
    """Where there is no element, as in the GPU's machine: the divisor is broadcast to none."""
    text = f".input a : i64[n <= 4]\n.input b : i64[1]\n.output y : i64[n]\nmain:\nEW.{sub} y, a, b\nHALT"
    assert run(f".program t\n{text}\n", {"a": np.zeros(0, I64), "b": np.zeros(1, I64)})["y"].size == 0


def test_static_address_outside_its_segment_traps() -> None:
    """Without the verifier, the golden machine's own check ("bounds") still stops a wild access."""
    y = contiguous(Segment.OUTPUT, DType.F32, (4,))
    wild = contiguous(Segment.INPUT, DType.F32, (4,), 4)
    program = Program(
        "wild",
        (Instruction(BY_MNEMONIC["EW"], "add", (y, wild, wild)), Instruction(BY_MNEMONIC["HALT"])),
        (Tensor("y", y),),
        segment_bytes={Segment.OUTPUT: 16, Segment.INPUT: 16},
    )
    with pytest.raises(dla.Trap, match=r"trap\[bounds\] at instruction 0: bytes 4..20 of input are outside 0..16"):
        GoldenMachine().load(program).run({})


def test_time_limit_ends_an_endless_looking_program(run: Run) -> None:
    """`timeout` ends a run that would take years, with the trap that exits 5."""
    text = ".program t\n.output y : i64[]\nmain:\nLOOP s0, 1000000000\nNOP\nENDLOOP\nFILL y, s0\nHALT\n"
    with pytest.raises(dla.TimeoutTrap) as caught:
        run(text, timeout=0.02)
    assert caught.value.exit_code == 5


def test_memory_that_does_not_exist_is_an_input_error() -> None:
    """Segments larger than any memory are refused with a message, not a MemoryError."""
    y = contiguous(Segment.OUTPUT, DType.F32, (2**20,))
    huge = Program(
        "huge", (Instruction(BY_MNEMONIC["HALT"]),), (Tensor("y", y),), segment_bytes={Segment.OUTPUT: 2**60}
    )
    with pytest.raises(dla.InputError, match="not enough memory"):
        GoldenMachine().load(huge).run({})
