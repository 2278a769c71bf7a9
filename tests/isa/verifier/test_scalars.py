"""Intervals of registers contain every value that ALU computes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.isa.descriptor import Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.instructions.control import ALU_KINDS, UNARY
from dla.isa.program import DimSymbol, Instruction, Program
from dla.isa.registers import p, s
from dla.isa.verifier import control, scalars
from dla.isa.verifier.rules import Report

SMALL = st.integers(-9, 9)
EDGES = st.sampled_from([-(2**63), 2**63 - 1, 2**62, -1, 0, 1, 63, 64])
INTERVALS = st.tuples(SMALL | EDGES, SMALL | EDGES).map(lambda ends: (min(ends), max(ends)))


def wrapped(value: int) -> int:
    """`value` as i64 arithmetic has it."""
    return (value + 2**63) % 2**64 - 2**63


def compute(sub: str, a: int, b: int) -> int:
    """What `ALU.sub` computes, after its description in the row."""
    truncated = abs(a) // max(1, abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    results = {
        "add": a + b, "sub": a - b, "mul": a * b, "div": truncated, "mod": a % b if b else 0,
        "min": min(a, b), "max": max(a, b), "and": a & b, "or": a | b, "xor": a ^ b,
        "shl": a << (b % 64), "shr": a >> (b % 64), "neg": -a, "abs": abs(a), "not": ~a,
    }  # fmt: skip
    return wrapped(results[sub])


INTEGER_SUBS = [sub for sub, kinds in ALU_KINDS.items() if "s" in kinds and sub != "cvt"]


@pytest.mark.parametrize("sub", INTEGER_SUBS)
@settings(max_examples=150, deadline=None)
@given(a=INTERVALS, b=INTERVALS, data=st.data())
def test_interval_of_a_result_contains_it(
    sub: str, a: tuple[int, int], b: tuple[int, int], data: st.DataObject
) -> None:
    """Whatever the operands are within their intervals, the result is within its own."""
    x, y = data.draw(st.integers(*a)), data.draw(st.integers(*b))
    if sub in ("div", "mod") and y == 0:
        return  # traps
    operands = {"a": s(1)} if sub in UNARY else {"a": s(1), "b": s(2)}
    state = [(0, 0), a, b] + [(0, 0)] * 29
    scalars.execute(Instruction(BY_MNEMONIC["ALU"], sub, (), {"dst": s(3), **operands}), state)
    low, high = state[3]
    assert low <= compute(sub, x, y) <= high


def intervals_at_the_end(*code: Instruction) -> tuple[tuple[int, int], ...]:
    """What is known of all registers before a last instruction that uses one of them."""
    probe = Instruction(
        BY_MNEMONIC["FILL"],
        "",
        (contiguous(Segment.OUTPUT, DType.F32, (Dynamic(31, 4),)),),
        {"value": 0},
    )
    instructions = (*code, probe, Instruction(BY_MNEMONIC["HALT"]))
    program = Program("t", instructions, (), (DimSymbol("n", 31, 4),), {Segment.OUTPUT: 64})
    report = Report(program)
    flow = control.check(program, report)
    assert flow is not None, report.rejections
    return scalars.analyse(program, flow)[len(code)]


def at(name: str, **attributes: object) -> Instruction:
    """A scalar instruction."""
    mnemonic, _, sub = name.partition(".")
    return Instruction(BY_MNEMONIC[mnemonic], sub, (), attributes)


def test_dims_lie_between_zero_and_their_bound() -> None:
    """The register of a named dim holds 0 to its bound; other registers start at 0."""
    known = intervals_at_the_end()
    assert (known[31], known[0]) == ((0, 4), (0, 0))


def test_counter_holds_the_count_after_the_loop() -> None:
    """After a loop its counter is known, and what the body wrote is not taken for its last value alone."""
    known = intervals_at_the_end(
        at("LOOP", counter=s(0), count=s(31), max=8, end=2), at("MOV", dst=s(1), src=7), at("ENDLOOP", begin=0)
    )
    assert known[0] == (0, 4)
    assert known[1] == (0, 7)


def test_sums_over_trips_are_not_guessed() -> None:
    """A register that grows in every trip can be anything in the body and after it."""
    known = intervals_at_the_end(
        at("LOOP", counter=s(0), count=3, end=2), at("ALU.add", dst=s(1), a=s(1), b=1), at("ENDLOOP", begin=0)
    )
    assert known[1] == scalars.ANY


def test_branches_join() -> None:
    """Where two paths meet, a register holds what either wrote."""
    known = intervals_at_the_end(
        at("MOV", dst=s(1), src=1), at("BR", **{"target": 3, "if": p(0)}), at("MOV", dst=s(1), src=5)
    )
    assert known[1] == (1, 5)
