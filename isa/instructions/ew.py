"""EW: a binary function of two tensors, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from dla.isa.bounds import ErrorBound
from dla.isa.dtypes import ALL, Array, DType, ulp
from dla.isa.errors import Trap
from dla.isa.table import Alias, Constraint, Operand, Out, Role, Row, Site, Sub

ARITHMETIC = ("add", "sub", "mul", "div", "min", "max", "pow", "mod")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGIC = ("and", "or", "xor")


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if np.any(b == 0):
        raise Trap("arithmetic", "EW.div: integer division by zero")
    quotient, remainder = np.floor_divide(a, b), np.mod(a, b)
    return np.asarray(quotient + ((remainder != 0) & ((a < 0) != (b < 0))))


def _modulo(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f" and np.any(b == 0):
        raise Trap("arithmetic", "EW.mod: integer modulo by zero")
    return np.asarray(np.mod(a, b))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    if np.any(b < 0):
        raise Trap("arithmetic", "EW.pow: integer power with a negative exponent")
    return np.asarray(np.power(a, b))


FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide,
    "min": np.minimum, "max": np.maximum, "pow": _power, "mod": _modulo,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def semantics(out: Out, a: Array, b: Array, *, sub: str) -> Array:
    """`sub` of a and b, both broadcast to out's shape, in the accumulator type."""
    with np.errstate(all="ignore"):
        # Broadcast first: where there is no element, nothing is divided by zero.
        return np.asarray(np.broadcast_to(FUNCTIONS[sub](*np.broadcast_arrays(a, b)), out.shape))


def _types_fit(site: Site) -> bool:
    inputs, result = site.types["T"], site.types["O"]
    if site.sub in COMPARISONS:
        return result is DType.BOOL
    if site.sub in LOGIC:
        return result is inputs and not inputs.is_float
    return inputs is not DType.BOOL and (result is inputs or (inputs.is_float and result.is_float))


def _slack(reference: Array, operands: dict[str, Any], attributes: dict[str, Any]) -> Array:
    sub = attributes["sub"]
    if sub == "pow":
        return np.asarray(16 * ulp(reference, DType.F32))  # powf: 8 ULP in CUDA, doubled for the flushed tails
    if sub == "mod":
        return np.asarray(np.abs(operands["a"]) * 2.0**-22 + np.abs(operands["b"]) * 2.0**-22)
    return np.asarray((2 if sub == "div" else 1) * ulp(reference, DType.F32))


ROW = Row(
    "EW", 0x21, "pointwise", "binary function, element by element",
    "Computes a function of two tensors, both broadcast to the result's shape. Integer arithmetic wraps; integer "
    "division truncates toward zero and traps on 0. `min` and `max` give NaN if either operand is NaN. `mod` takes "
    "the divisor's sign. A number may stand for b: the assembler makes it a constant.",
    subs=tuple(Sub(name, code, doc) for code, (name, doc) in enumerate([
        ("add", "a + b"), ("sub", "a - b"), ("mul", "a * b"), ("div", "a / b"),
        ("min", "the smaller"), ("max", "the larger"), ("pow", "a to the power b"), ("mod", "a - b * floor(a / b)"),
        ("eq", "a == b"), ("ne", "a != b"), ("lt", "a < b"), ("le", "a <= b"), ("gt", "a > b"), ("ge", "a >= b"),
        ("and", "bitwise and"), ("or", "bitwise or"), ("xor", "bitwise exclusive or"),
    ])),
    types={"T": ALL, "O": ALL},
    operands=(
        Operand("out", Role.OUT, "[B...]", "O", "the result"),
        Operand("a", Role.IN, "~[B...]", "T", "left operand"),
        Operand("b", Role.IN, "~[B...]", "T", "right operand"),
    ),
    constraints=(
        Constraint(1, "comparisons give bool; logic takes and gives one integer type or bool; arithmetic gives the "
                      "operands' type (floats may give another float type)", _types_fit),
    ),
    alias=Alias.SAME,
    semantics=semantics,
    error=ErrorBound("add, sub, mul, min, max 1 ULP; div 2 ULP; pow 16 ULP of f32; mod (|a| + |b|) * 2**-22; "
                     "then one rounding; integers and bools equal", _slack),
    flops=lambda dims, attributes: dims["out"],
    flops_text="elements of out",
    example="""
.program ew
.const a : f32[2, 3] = [[1, 2, 3], [4, 5, 6]]
.const b : f32[3]    = [10, 20, 30]
.output y : f32[2, 3]
.output z : bool[2, 3]
main:
    EW.add y, a, b      ;! y = [[11, 22, 33], [14, 25, 36]]
    EW.gt  z, a, 3      ;! z = [[0, 0, 0], [1, 1, 1]]
    HALT
""",
)  # fmt: skip
