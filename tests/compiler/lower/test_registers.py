"""Registers of symbolic sizes: the instructions compute what the expression says, and registers are given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.compiler import dims
from dla.compiler.dims import Dim, Expr, Symbol, symbol
from dla.compiler.lower.registers import Registers
from dla.emulator.golden.scalar import Registers as Machine
from dla.emulator.golden.scalar import alu
from dla.isa.errors import ModelError
from dla.isa.program import Instruction
from dla.isa.registers import Register, RegisterClass, s

BATCH, SEQ = symbol("batch", 8), symbol("seq", 100)
SYMBOLS = (Symbol("batch", 8), Symbol("seq", 100))


def run(registers: Registers, code: list[Instruction], sizes: dict[str, int]) -> Machine:
    """The machine's registers after `code`, with the named dims set."""
    machine = Machine.__new__(Machine)
    machine.ints = [0] * RegisterClass.INT.count
    for dim in registers.dims:
        machine.ints[dim.register] = sizes[dim.name]
    for instruction in code:
        alu(machine, sub=instruction.sub, **instruction.row.with_defaults(instruction.attributes))
    return machine


def _combine(children: Any) -> Any:
    pair = st.tuples(children, children)
    return (
        pair.map(lambda p: p[0] + p[1])
        | pair.map(lambda p: p[0] - p[1])
        | pair.map(lambda p: p[0] * p[1])
        | st.tuples(children, st.integers(1, 7)).map(lambda p: p[0] // p[1])
        | pair.map(lambda p: dims.maximum(*p))
    )


EXPRESSIONS = st.recursive(st.sampled_from([BATCH, SEQ]) | st.integers(-9, 9), _combine, max_leaves=5)


@settings(deadline=None, max_examples=200)
@given(EXPRESSIONS, st.integers(0, 8), st.integers(0, 100))
def test_the_instructions_compute_the_expression(dim: Dim, batch: int, seq: int) -> None:
    """Sums, products, floors and extremes, for any sizes."""
    if isinstance(dim, int):
        return
    registers = Registers(SYMBOLS, lambda instruction: None)
    register = registers.holding(dim)
    sizes = {"batch": batch, "seq": seq}
    assert run(registers, registers.prologue, sizes).get(register) == dims.evaluate(dim, sizes)


def test_equal_expressions_share_a_register() -> None:
    """However they were made."""
    registers = Registers(SYMBOLS, lambda instruction: None)
    assert registers.holding(BATCH * SEQ + SEQ) == registers.holding(SEQ * (BATCH + 1))
    assert registers.holding(BATCH) == s(31)


def test_what_depends_on_a_counter_is_computed_in_the_loop_and_forgotten_after_it() -> None:
    """The registers are free again."""
    inside: list[Instruction] = []
    registers = Registers(SYMBOLS, inside.append)
    counter = Symbol("t", 4)
    found: set[Register] = set()
    for _ in range(40):
        found.add(registers.enter(counter))
        t = Expr((((counter,), 1),))
        found.add(registers.holding(t * SEQ + 1))
        registers.leave(counter)
    assert len(inside) == 80
    assert not registers.prologue
    assert len(found) <= 4


def test_too_many_sizes_are_refused() -> None:
    """With advice, before any register is used twice."""
    registers = Registers(SYMBOLS, lambda instruction: None)
    for factor in range(2, 32):  # with the two named ones, all registers
        registers.holding(BATCH * factor)
    with pytest.raises(ModelError, match="different symbolic sizes") as error:
        registers.holding(BATCH * 100)
    assert "--fix" in str(error.value)
