"""The golden scalar unit: registers, and what the instructions that touch only registers do to them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.isa.registers import Register, RegisterClass, Scalar, kind

Value = int | float | bool


def wrap(value: int) -> int:
    """`value` in 64-bit two's complement."""
    return ((value + 2**63) & (2**64 - 1)) - 2**63


@dataclass
class Registers:
    """The registers of one run; all zero at the start but for named dims."""

    ints: list[int] = field(default_factory=lambda: [0] * RegisterClass.INT.count)
    floats: list[float] = field(default_factory=lambda: [0.0] * RegisterClass.FLOAT.count)
    predicates: list[bool] = field(default_factory=lambda: [False] * RegisterClass.PREDICATE.count)
    rank: int = 0
    world: int = 1

    @classmethod
    def at_start(cls, program: Program, dims: Mapping[str, int], rank: int = 0, world: int = 1) -> Registers:
        """Registers before the first instruction: named dims, RANK and WORLD are set, everything else is zero."""
        registers = cls(rank=rank, world=world)
        for symbol in program.dims:
            registers.ints[symbol.register] = dims[symbol.name]
        return registers

    def get(self, value: Scalar) -> Value:
        """What a scalar operand holds: the register's value, or the immediate itself."""
        if not isinstance(value, Register):
            return value
        match value.cls:
            case RegisterClass.INT:
                return self.ints[value.index]
            case RegisterClass.FLOAT:
                return self.floats[value.index]
            case RegisterClass.PREDICATE:
                return self.predicates[value.index]
            case RegisterClass.RANK:
                return self.rank
            case RegisterClass.WORLD:
                return self.world

    def set(self, register: Register, value: Value) -> None:
        """Store `value`, in the register's own type: i64 wraps, anything but 0 is true."""
        match kind(register):
            case "s":
                self.ints[register.index] = wrap(int(value))
            case "f":
                self.floats[register.index] = float(value)
            case _:
                self.predicates[register.index] = bool(value)


def truncated(value: float) -> int:
    """f64 to i64 as `dtypes.convert` does it: toward zero, saturating, NaN gives 0."""
    if math.isnan(value):
        return 0
    return max(-(2**63), min(2**63 - 1, int(value))) if math.isfinite(value) else (2**63 - 1 if value > 0 else -(2**63))


def _divide_int(a: int, b: int) -> int:
    if b == 0:
        raise Trap("arithmetic", "ALU.div: integer division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulo_int(a: int, b: int) -> int:
    if b == 0:
        raise Trap("arithmetic", "ALU.mod: integer modulo by zero")
    return a % b


def _divide_float(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _min_float(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


def _max_float(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


_INT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide_int, "mod": _modulo_int,
    "min": min, "max": max, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": lambda a, b: a << (b % 64), "shr": lambda a, b: a >> (b % 64),
    "neg": lambda a, b: -a, "abs": lambda a, b: abs(a), "not": lambda a, b: ~a,
    "cvt": lambda a, b: truncated(a),
}  # fmt: skip
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide_float,
    "min": _min_float, "max": _max_float, "neg": lambda a, b: -a, "abs": lambda a, b: abs(a),
    "sqrt": lambda a, b: math.sqrt(a) if a >= 0 else math.nan, "cvt": lambda a, b: float(a),
}  # fmt: skip
_PREDICATE: dict[str, Callable[[bool, bool], bool]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": lambda a, b: not a,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def alu(registers: Registers, sub: str, dst: Register, a: Scalar, b: Scalar) -> None:
    """ALU.sub: dst = a sub b, in the arithmetic of dst's kind. Traps ("arithmetic") on integer division by 0."""
    x, y = registers.get(a), registers.get(b)
    match kind(dst):
        case "s":
            # cvt reads a float here; every other operation reads integers.
            registers.set(dst, _INT[sub](x, y))  # type: ignore[arg-type]
        case "f":
            registers.set(dst, _FLOAT[sub](x if sub == "cvt" else float(x), float(y)))
        case _:
            registers.set(dst, _PREDICATE[sub](bool(x), bool(y)))


def compare(registers: Registers, sub: str, dst: Register, a: Scalar, b: Scalar) -> None:
    """CMP.sub: the predicate dst = a sub b; two integers compare exactly, otherwise both are f64."""
    x, y = registers.get(a), registers.get(b)
    if "f" in (kind(a)[0], kind(b)[0]):
        x, y = float(x), float(y)
    registers.set(dst, _COMPARE[sub](x, y))
