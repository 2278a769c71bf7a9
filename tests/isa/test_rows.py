"""Each row of the table: consistent with itself and the others, and its example does what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.golden.machine import GoldenMachine
from dla.emulator.result import Result
from dla.isa import encoding, instructions
from dla.isa.attributes import Flag, Int
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import Program
from dla.isa.table import RECORD_SLOTS, Constraint, Exec, Operand, Role, Row, Sub

EXPECTATION = re.compile(r";! *(.*)")
NAMED = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)


def expectations(text: str) -> list[str]:
    """What follows each `;!` in a program."""
    return [match[1].strip() for match in EXPECTATION.finditer(text)]


def check_expectation(expected: str, result: Result, program: Program) -> None:
    """Assert one `name = literal` or `probe tag: field=value ...`."""
    if expected.startswith("probe "):
        tag, fields = expected.removeprefix("probe ").split(":")
        probe = result.probes[int(tag)]
        for field in fields.split():
            name, value = field.split("=")
            assert getattr(probe, name) == float(value)
        return
    name, _, literal = expected.partition("=")
    got = result.outputs[name.strip()]
    want = np.asarray(ast.literal_eval(literal.strip()))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6, atol=0)


def run_example(row: Row) -> None:
    """Assemble and run a row's example, and check what it expects."""
    program = assemble(row.example, file=f"{row.mnemonic.lower()}.dla")
    wanted = expectations(row.example)
    trap = next((e.removeprefix("trap ").strip() for e in wanted if e.startswith("trap ")), None)
    session = GoldenMachine().load(program)
    if trap is not None:
        with pytest.raises(Trap) as raised:
            session.run({})
        assert raised.value.category == trap
        return
    result = session.run({})
    for expected in wanted:
        check_expectation(expected, result, program)


@NAMED
def test_the_example_gives_what_it_says(row: Row) -> None:
    """Every `;!` line of a row's example is true on the golden machine."""
    run_example(row)


@NAMED
def test_the_example_uses_the_instruction_and_checks_every_output(row: Row) -> None:
    """An example executes its own row, and each of its outputs has an expectation (unless it traps)."""
    program = assemble(row.example, file="example.dla")
    assert row.mnemonic in {i.row.mnemonic for i in program.instructions}
    wanted = expectations(row.example)
    if not any(e.startswith("trap") for e in wanted):
        outputs = {t.name for t in program.in_segment(Segment.OUTPUT)}
        assert {e.split("=")[0].strip() for e in wanted if not e.startswith("probe")} == outputs


@NAMED
def test_the_example_survives_encoding(row: Row) -> None:
    """Decoding the encoded instructions of an example gives them back, and encoding those the same bytes."""
    program = assemble(row.example, file="example.dla")
    code = encoding.encode(program.instructions)
    decoded = encoding.decode(code)
    assert decoded == program.instructions
    assert encoding.encode(decoded) == code


@NAMED
def test_every_tensor_row_says_how_far_results_may_be_off_and_what_they_cost(row: Row) -> None:
    """A tensor row has a bound, text for it, and flops text that goes with a function."""
    assert row.error.text
    assert row.description.endswith(".")
    if row.unit is Exec.SCALAR:
        return
    assert row.semantics is not None
    assert row.outputs
    assert row.operands[0].role is Role.OUT
    assert row.semantics.__doc__


def test_every_module_of_the_folder_is_in_the_list() -> None:
    """A row that is written but not named in isa/instructions/__init__.py would be forgotten silently."""
    modules = {path.stem for path in Path(instructions.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == {"control"} | {row.mnemonic.lower() for row in ROWS if row.family != "control"}


def test_opcodes_ascend_and_are_unique() -> None:
    """The table is in order of opcode, without repetition."""
    opcodes = [row.opcode for row in ROWS]
    assert opcodes == sorted(set(opcodes))


def test_the_documented_opcodes_have_not_moved() -> None:
    """Opcodes are add-only: those of ISA 1.0 stay what they were."""
    assert {m: r.opcode for m, r in BY_MNEMONIC.items()}.items() >= {
        "NOP": 0x00, "HALT": 0x01, "MOV": 0x02, "ALU": 0x03, "CMP": 0x04, "LOADS": 0x05, "LOOP": 0x06, "ENDLOOP": 0x07,
        "BR": 0x08, "CALL": 0x09, "RET": 0x0A, "ASSERT": 0x0B, "PROBE": 0x0C, "COPY": 0x10, "FILL": 0x11, "IOTA": 0x12,
        "PAD": 0x13, "GATHER": 0x14, "ACT": 0x20, "EW": 0x21, "SELECT": 0x22, "REDUCE": 0x23, "SCAN": 0x24,
        "GEMM": 0x30, "CONV": 0x38, "POOL": 0x3B, "NORM": 0x40, "SOFTMAX": 0x42, "ATTENTION": 0x48, "ROPE": 0x4A,
        "TOPK": 0x58,
    }.items()  # fmt: skip


@NAMED
def test_sub_operations_have_distinct_codes_that_fit_a_byte(row: Row) -> None:
    """No two sub-operations of a row share a name or a code."""
    assert len({s.name for s in row.subs}) == len({s.code for s in row.subs}) == len(row.subs)
    assert all(0 <= s.code < 256 and s.doc for s in row.subs)
    assert not row.default_sub or row.default_sub in {s.name for s in row.subs}


@NAMED
def test_records_of_a_row_share_no_attribute_bits(row: Row) -> None:
    """Attributes of one record lie beside each other, beyond the record's code, within 512 bits."""
    assert len(row.records) <= len(RECORD_SLOTS)
    for record in row.records:
        taken: set[int] = set(range(8))
        for attribute in record.attributes:
            for at, width in attribute.pieces:
                bits = set(range(at, at + width))
                assert not bits & taken
                assert max(bits) < 512
                taken |= bits


def _row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "mnemonic": "TEST", "opcode": 0xEE, "family": "test", "summary": "s", "description": "d.", "example": "",
        "operands": (Operand("out", Role.OUT, "[N]", (DType.F32,)),), "semantics": lambda out: None,
    }  # fmt: skip
    return Row(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"semantics": None}, "tensor rows have semantics"),
        ({"constraints": (Constraint(2, "late", lambda site: True),)}, "numbered 1, 2"),
        ({"operands": (Operand("out", Role.OUT, "N", (DType.F32,)),)}, "not a shape pattern"),
        ({"operands": (Operand("out", Role.OUT, "[n]", (DType.F32,)),)}, "bad dim"),
        ({"operands": (Operand("out", Role.OUT, "[N]", (DType.F32,), subs=("nope",)),)}, "unknown sub-operation"),
        ({"operands": (Operand("out", Role.OUT, "[N]", (DType.F32,)),) * 2}, "a name is used twice"),
        ({"default_sub": "nope", "subs": (Sub("yes", 0, ""),)}, "default_sub"),
    ],
)
def test_a_row_that_contradicts_itself_cannot_be_made(changes: dict[str, Any], reason: str) -> None:
    """A defective row fails where it is declared, with the reason."""
    with pytest.raises(ValueError, match=reason):
        _row(**changes)


def test_attributes_that_share_a_bit_are_refused() -> None:
    """Two attributes on one bit, or one on a bit that is not for attributes, fail the row."""
    with pytest.raises(ValueError, match="share bit 20"):
        _row(attributes=(Int("a", 16, "", size=8), Flag("b", 20, "")))
    with pytest.raises(ValueError, match="bit 40 is not for attributes"):
        _row(attributes=(Flag("a", 40, ""),))
