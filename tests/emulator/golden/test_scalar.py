"""The golden scalar unit: 64-bit arithmetic, comparisons, conversions."""

from __future__ import annotations

import math

import pytest

from dla.emulator.golden.scalar import Registers, alu, compare, truncated
from dla.isa.errors import Trap
from dla.isa.registers import f, p, s

HIGH, LOW = 2**63 - 1, -(2**63)


def int_result(sub: str, a: int, b: int = 0) -> int:
    """ALU.sub s0, a, b."""
    registers = Registers()
    alu(registers, sub, s(0), a, b)
    return registers.ints[0]


@pytest.mark.parametrize(
    ("sub", "a", "b", "expected"),
    [
        ("add", HIGH, 1, LOW), ("sub", LOW, 1, HIGH), ("mul", 2**62, 4, 0), ("mul", HIGH, HIGH, 1),
        ("div", -7, 2, -3), ("div", 7, -2, -3), ("div", LOW, -1, LOW), ("mod", -7, 2, 1), ("mod", 7, -2, -1),
        ("min", -1, 1, -1), ("max", -1, 1, 1), ("and", 6, 3, 2), ("or", 6, 3, 7), ("xor", 6, 3, 5),
        ("shl", 1, 63, LOW), ("shl", 1, 64, 1), ("shl", 1, -1, LOW), ("shr", -8, 1, -4), ("shr", -8, 65, -4),
        ("neg", LOW, 0, LOW), ("abs", -5, 0, 5), ("abs", LOW, 0, LOW), ("not", 0, 0, -1),
    ],
)  # fmt: skip
def test_integers_wrap_at_64_bits(sub: str, a: int, b: int, expected: int) -> None:
    """i64 arithmetic keeps the low 64 bits; division truncates, modulo takes the divisor's sign."""
    assert int_result(sub, a, b) == expected


@pytest.mark.parametrize("sub", ["div", "mod"])
def test_integer_division_by_zero_traps(sub: str) -> None:
    """Nothing sensible can be stored."""
    with pytest.raises(Trap) as caught:
        int_result(sub, 1, 0)
    assert caught.value.category == "arithmetic"


@pytest.mark.parametrize(
    ("sub", "a", "b", "expected"),
    [
        ("add", 0.5, 0.25, 0.75), ("div", 1.0, 0.0, math.inf), ("div", 1.0, -0.0, -math.inf),
        ("div", 0.0, 0.0, math.nan), ("div", math.nan, 0.0, math.nan), ("min", math.nan, 1.0, math.nan),
        ("max", 1.0, math.nan, math.nan), ("sqrt", 9.0, 0.0, 3.0), ("sqrt", -1.0, 0.0, math.nan),
        ("mul", 1e300, 1e300, math.inf), ("neg", 1.0, 0.0, -1.0),
    ],
)  # fmt: skip
def test_floats_follow_ieee_754(sub: str, a: float, b: float, expected: float) -> None:
    """f64 arithmetic never traps: it gives infinities and NaN."""
    registers = Registers()
    alu(registers, sub, f(0), a, b)
    got = registers.floats[0]
    assert got == expected or (math.isnan(got) and math.isnan(expected))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.9, 2), (-2.9, -2), (math.nan, 0), (math.inf, HIGH), (-math.inf, LOW), (1e300, HIGH), (-1e300, LOW)],
)  # fmt: skip
def test_floats_become_integers_by_the_rules_of_convert(value: float, expected: int) -> None:
    """Toward zero, saturating, NaN gives 0."""
    assert truncated(value) == expected
    registers = Registers()
    registers.floats[1] = value
    alu(registers, "cvt", s(0), f(1), 0)
    assert registers.ints[0] == expected


def test_integers_become_floats() -> None:
    """An i64 becomes the nearest f64."""
    registers = Registers()
    registers.ints[3] = 2**53 + 1
    alu(registers, "cvt", f(0), s(3), 0)
    assert registers.floats[0] == 2.0**53


def test_predicates_take_logic() -> None:
    """and, or, xor and not on predicates give predicates."""
    registers = Registers()
    registers.predicates[1] = True
    for sub, expected in (("and", False), ("or", True), ("xor", True)):
        alu(registers, sub, p(0), p(1), p(2))
        assert registers.predicates[0] is expected
    alu(registers, "not", p(0), p(1), 0)
    assert registers.predicates[0] is False


def test_comparisons_with_nan_are_false_but_for_ne() -> None:
    """As IEEE 754 and the row say."""
    registers = Registers()
    registers.floats[0] = math.nan
    results = {}
    for sub in ("eq", "ne", "lt", "le", "gt", "ge"):
        compare(registers, sub, p(0), f(0), 1.0)
        results[sub] = registers.predicates[0]
    assert results == {"eq": False, "ne": True, "lt": False, "le": False, "gt": False, "ge": False}


def test_large_integers_compare_exactly() -> None:
    """Integers are not taken through f64."""
    registers = Registers()
    registers.ints[0] = 2**53 + 1
    compare(registers, "eq", p(0), s(0), 2**53)
    assert registers.predicates[0] is False
