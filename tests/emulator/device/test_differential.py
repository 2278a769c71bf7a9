"""The device machine against the rows' semantics in f64: random instructions of every row, sub-operation and type."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from dla.emulator.device.machine import DeviceMachine
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.tolerance import check_instruction
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType
from dla.isa.instructions import ROWS
from dla.isa.program import Instruction
from dla.isa.table import Exec, Role, Row
from dla.tests.emulator.device.random_batch import Batch
from dla.tests.emulator.device.random_instructions import COVERED, draft, takes

TENSOR_ROWS = [row for row in ROWS if row.unit is Exec.TENSOR]
INSTRUCTIONS = 60
"""Instructions in the program of each row, sub-operation and type."""


def _cases() -> list[Any]:
    """Every (row, sub-operation, type of the first input or of the output) that the row takes."""
    cases = []
    for row in TENSOR_ROWS:
        main = (row.inputs or row.outputs)[0]
        for sub in [s.name for s in row.subs] or [""]:
            for dtype in row.operand_dtypes(main):
                if takes(row.mnemonic, sub, dtype):
                    name = f"{row.mnemonic}.{sub}" if sub else row.mnemonic
                    cases.append(pytest.param(row, sub, dtype, id=f"{name}-{dtype.text}"))
    return cases


def batch(row: Row, sub: str, dtype: DType, count: int) -> Batch:
    """`count` random instructions; the same every time."""
    rng = np.random.default_rng(zlib.crc32(f"{row.mnemonic}.{sub}-{dtype.text}".encode()))
    made = Batch(rng)
    for _ in range(count):
        drawn = draft(rng, row, sub, dtype)
        assert drawn is not None
        made.add(drawn)
    return made


def run(session: Any, made: Batch) -> dict[str, Array]:
    """All tensors after one run: inputs as given, outputs and state as left."""
    session.set_state(made.state())
    result = session.run(made.inputs(), made.dims())
    return made.inputs() | dict(result.outputs) | dict(result.state)


def describe(instruction: Instruction) -> str:
    """The instruction with types, shapes, strides and attributes, for people who look for a defect."""
    parts = [
        f"{spec.name}: {d.dtype.text}{[str(n) for n in d.dims]}/{list(d.strides)}@{d.segment.text}"
        for spec, d in zip(instruction.row.operands, instruction.operands, strict=True)
        if d is not None
    ]
    return f"{instruction.name} {', '.join(parts)} {dict(instruction.attributes)}"


def violations(made: Batch, after: dict[str, Array]) -> list[str]:
    """One text for each output that is outside its row's bound."""
    before = made.inputs() | made.state()
    found = []
    for index, instruction in enumerate(made.instructions):
        operands = {
            spec.name: (spec.role, made.seen(d, after if spec.role is Role.OUT else before))
            for spec, d in zip(instruction.row.operands, instruction.operands, strict=True)
            if d is not None
        }
        read = {name: array for name, (role, array) in operands.items() if role is Role.IN}
        wrote = {name: array for name, (role, array) in operands.items() if role is Role.OUT}
        with np.errstate(all="ignore"):  # NaN and infinities are among the values on purpose
            checks = check_instruction(instruction, read, wrote)
        found += [f"{index}: {describe(instruction)}\n    {c}" for c in checks if c.violations]
    return found


def report(found: list[str]) -> str:
    """The first few violations, and how many there are."""
    return f"{len(found)} outputs outside their bounds\n" + "\n".join(found[:5])


def test_every_tensor_row_has_random_instructions():
    """A new row without a generator fails here."""
    assert {row.mnemonic for row in TENSOR_ROWS} == COVERED


@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.mnemonic)
def test_the_golden_machine_in_f32_agrees_with_the_semantics_in_f64(row):
    """The comparison itself works where there is no GPU: f32 arithmetic stays within every row's bound."""
    sub = row.subs[0].name if row.subs else ""
    made = batch(row, sub, DType.F32, 12)
    assert violations(made, run(GoldenMachine(accumulate="f32", watch=False).load(made.program()), made)) == []


def test_a_wrong_element_is_noticed():
    """One changed element of one output is one violation, which names the instruction."""
    made = batch(next(r for r in TENSOR_ROWS if r.mnemonic == "COPY"), "", DType.I32, 12)
    after = run(GoldenMachine(watch=False).load(made.program()), made)
    assert violations(made, after) == []
    name = next(t.name for t in made.tensors if t.segment is Segment.OUTPUT and t.descriptor.elements)
    after[name] = after[name].copy()
    after[name][...] = ~after[name] if after[name].dtype.kind in "iu" else 77
    found = violations(made, after)
    assert len(found) == 1
    assert "COPY" in found[0]


@pytest.mark.gpu
@pytest.mark.parametrize(("row", "sub", "dtype"), _cases())
def test_the_device_stays_within_the_bound_of_every_row(row, sub, dtype):
    """Every result lies within its row's bound (moves and integers are equal), and a second run gives the same bits."""
    made = batch(row, sub, dtype, INSTRUCTIONS)
    session = DeviceMachine().load(made.program())
    first = run(session, made)
    found = violations(made, first)
    assert not found, report(found)
    second = run(session, made)
    for instruction in made.instructions:
        for spec, d in zip(instruction.row.operands, instruction.operands, strict=True):
            if d is not None and spec.role is Role.OUT:
                again = made.seen(d, second).tobytes()
                assert made.seen(d, first).tobytes() == again, f"two runs differ: {describe(instruction)}"


@pytest.mark.gpu
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.mnemonic)
def test_the_checked_build_finds_no_access_out_of_bounds(row):
    """The build that looks at every address gives results within the bounds, too, for all sub-operations at once."""
    for sub in [s.name for s in row.subs] or [""]:
        for dtype in row.operand_dtypes((row.inputs or row.outputs)[0]):
            if takes(row.mnemonic, sub, dtype):
                made = batch(row, sub, dtype, 8)
                found = violations(made, run(DeviceMachine(checked=True).load(made.program()), made))
                assert not found, report(found)
