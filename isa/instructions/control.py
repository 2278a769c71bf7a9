"""Control and scalar instructions: executed by the scalar unit of every block alike."""

from __future__ import annotations

from dla.isa.attributes import Int, Target
from dla.isa.dtypes import ALL, DType
from dla.isa.registers import fits, kind
from dla.isa.scalar_attributes import Reg, ScalarValue
from dla.isa.table import Constraint, Exec, Operand, Role, Row, Site, Sub

MAX_CALL_DEPTH = 16
MAX_LOOP_DEPTH = 8
MAX_TRIPS = 2**31 - 1

NOP = Row(
    "NOP", 0x00, "control", "do nothing",
    "Does nothing. A place to hang a label or a comment on.",
    unit=Exec.SCALAR,
    example="""
.program nop
.output y : i32[]
main:
    NOP
    FILL y, 7       ;! y = 7
    HALT
""",
)  # fmt: skip

HALT = Row(
    "HALT", 0x01, "control", "end the program",
    "Ends the program; its outputs become visible. Every path from the first instruction ends in a HALT or a trap.",
    unit=Exec.SCALAR,
    example="""
.program halt
.output y : i32[]
main:
    FILL y, 1       ;! y = 1
    HALT
""",
)  # fmt: skip

MOV = Row(
    "MOV", 0x02, "control", "copy a scalar",
    "Copies a register or an immediate to a register of the same kind. `MOV p0, 1` sets a predicate.",
    unit=Exec.SCALAR,
    attributes=(
        Reg("dst", 16, "register written", classes="sfp", writable=True),
        ScalarValue("src", 24, "register read, or a number", value_at=384, classes="sfp", default=None),
    ),
    positional=("dst", "src"),
    constraints=(
        Constraint(1, "src is of dst's kind (integers fit f registers, 0 and 1 fit predicates)",
                   lambda site: fits(kind(site.attributes["dst"]), site.attributes["src"])),
    ),
    example="""
.program mov
.output y : i64[]
main:
    MOV  s0, 41
    MOV  s1, s0
    FILL y, s1      ;! y = 41
    HALT
""",
)  # fmt: skip

UNARY = ("neg", "abs", "not", "sqrt", "cvt")
ALU_KINDS = {
    "add": "sf", "sub": "sf", "mul": "sf", "div": "sf", "mod": "s", "min": "sf", "max": "sf",
    "and": "sp", "or": "sp", "xor": "sp", "shl": "s", "shr": "s",
    "neg": "sf", "abs": "sf", "not": "sp", "sqrt": "f", "cvt": "sf",
}  # fmt: skip
"""Kinds of registers that each operation of ALU is defined for."""


def _alu_operands_fit(site: Site) -> bool:
    dst, a, b = (site.attributes[name] for name in ("dst", "a", "b"))
    if site.sub == "cvt":
        return b == 0 and {kind(dst), kind(a)} == {"s", "f"}
    if kind(dst) not in ALU_KINDS[site.sub] or not fits(kind(dst), a):
        return False
    return b == 0 if site.sub in UNARY else fits(kind(dst), b)


ALU = Row(
    "ALU", 0x03, "control", "scalar arithmetic",
    "Computes on registers and immediates: i64 that wraps when dst is an s register, f64 when it is an f register, "
    "logic when it is a predicate.",
    unit=Exec.SCALAR,
    subs=(
        Sub("add", 0, "a + b"),
        Sub("sub", 1, "a - b"),
        Sub("mul", 2, "a * b"),
        Sub("div", 3, "a / b; integers truncate toward zero, and trap if b is 0"),
        Sub("mod", 4, "a - b * floor(a / b); integers only; traps if b is 0"),
        Sub("min", 5, "the smaller"),
        Sub("max", 6, "the larger"),
        Sub("and", 7, "bitwise and; integers or predicates"),
        Sub("or", 8, "bitwise or; integers or predicates"),
        Sub("xor", 9, "bitwise exclusive or; integers or predicates"),
        Sub("shl", 10, "a << (b mod 64); integers"),
        Sub("shr", 11, "a >> (b mod 64), keeping the sign; integers"),
        Sub("neg", 12, "-a"),
        Sub("abs", 13, "|a|"),
        Sub("not", 14, "bitwise not; integers or predicates"),
        Sub("sqrt", 15, "square root; floats"),
        Sub("cvt", 16, "s to f, or f to s (truncates, saturates, NaN becomes 0)"),
    ),
    attributes=(
        Reg("dst", 16, "register written", classes="sfp", writable=True),
        ScalarValue("a", 24, "first operand", value_at=384, classes="sfp", default=None),
        ScalarValue("b", 96, "second operand; not for unary operations", value_at=448, classes="sfp", default=0),
    ),
    positional=("dst", "a", "b"),
    constraints=(
        Constraint(1, "a and b are of dst's kind, the operation is defined for it, and unary operations have no b",
                   _alu_operands_fit),
    ),
    example="""
.program alu
.output y : i64[]
main:
    MOV     s0, 6
    ALU.mul s1, s0, 7
    FILL    y, s1       ;! y = 42
    HALT
""",
)  # fmt: skip


def _comparable(site: Site) -> bool:
    a, b = site.attributes["a"], site.attributes["b"]
    return any(fits(k, a) and fits(k, b) for k in ("s", "f"))


CMP = Row(
    "CMP", 0x04, "control", "compare scalars",
    "Sets a predicate to the result of a comparison of two integers or two floats. Comparisons with NaN are false, "
    "but for ne.",
    unit=Exec.SCALAR,
    subs=tuple(Sub(name, code, doc) for code, (name, doc) in enumerate(
        [("eq", "a == b"), ("ne", "a != b"), ("lt", "a < b"), ("le", "a <= b"), ("gt", "a > b"), ("ge", "a >= b")])),
    attributes=(
        Reg("dst", 16, "predicate written", classes="p", writable=True),
        ScalarValue("a", 24, "first operand", value_at=384, default=None),
        ScalarValue("b", 96, "second operand", value_at=448, default=None),
    ),
    positional=("dst", "a", "b"),
    constraints=(Constraint(1, "a and b are both integers or both floats", _comparable),),
    example="""
.program cmp
.output y : i64[]
main:
    MOV    s0, 3
    CMP.lt p0, s0, 5
    BR     small if=p0
    FILL   y, 0
    HALT
small:
    FILL   y, 1     ;! y = 1
    HALT
""",
)  # fmt: skip


def _load_kind(site: Site) -> bool:
    dtype = site.types["T"]
    return kind(site.attributes["dst"]) == ("f" if dtype.is_float else "p" if dtype is DType.BOOL else "s")


LOADS = Row(
    "LOADS", 0x05, "control", "load a scalar from memory",
    "Waits for a one-element tensor and copies its value to a register, so that data can steer the program.",
    unit=Exec.SCALAR,
    operands=(Operand("x", Role.IN, "[B...]", "T", "one element"),),
    types={"T": ALL},
    attributes=(Reg("dst", 16, "register written", classes="sfp", writable=True),),
    positional=("dst", "x"),
    constraints=(
        Constraint(1, "x has exactly one element, whatever the registers hold",
                   lambda site: all(d == 1 for d in site.dims.prefixes["B"])),
        Constraint(2, "dst is an s register for integers, an f register for floats, a predicate for bool", _load_kind),
    ),
    example="""
.program loads
.const x : i32[3] = [10, 20, 30]
.output y : i64[]
main:
    LOADS   s0, x[1]
    ALU.add s0, s0, 1
    FILL    y, s0       ;! y = 21
    HALT
""",
)  # fmt: skip


def _loop_bounded(site: Site) -> bool:
    count, limit = site.attributes["count"], site.attributes["max"]
    if kind(count) == "int":
        return bool(limit == 0 and 0 <= count <= MAX_TRIPS)
    return kind(count) == "s" and bool(limit >= 1)


LOOP = Row(
    "LOOP", 0x06, "control", "repeat a body a bounded number of times",
    "Runs the instructions up to the matching ENDLOOP `count` times, with the counter at 0, 1, ... The count is read "
    "once. A register count needs `max`, and traps if it is negative or larger. After the loop the counter holds the "
    "count. The body may not write the counter.",
    unit=Exec.SCALAR,
    attributes=(
        Reg("counter", 16, "register that counts from 0", classes="s", writable=True),
        ScalarValue("count", 24, "number of trips", value_at=384, classes="s", default=None),
        Int("max", 96, "largest count a register may hold", size=32, high=MAX_TRIPS),
        Target("end", 448, "index of the matching ENDLOOP", implicit=True),
    ),
    positional=("counter", "count"),
    constraints=(
        Constraint(1, f"the count is a constant from 0 to {MAX_TRIPS}, or a register with max >= 1", _loop_bounded),
    ),
    example="""
.program loop
.output y : i64[]
main:
    MOV     s1, 0
    LOOP    s0, 5
    ALU.add s1, s1, s0
    ENDLOOP
    FILL    y, s1       ;! y = 10
    HALT
""",
)  # fmt: skip

ENDLOOP = Row(
    "ENDLOOP", 0x07, "control", "end of a loop body",
    "Goes back to the matching LOOP until its count is reached.",
    unit=Exec.SCALAR,
    attributes=(Target("begin", 384, "index of the matching LOOP", implicit=True),),
    example=LOOP.example,
)  # fmt: skip

BR = Row(
    "BR", 0x08, "control", "branch forward",
    "Goes to a later instruction: always, or `if` a predicate is set, or `unless` it is. A branch may leave loops but "
    "not enter one, and stays in its function.",
    unit=Exec.SCALAR,
    attributes=(
        Target("target", 384, "label of a later instruction", default=None),
        Reg("if", 16, "predicate that must be set", classes="p", optional=True),
        Reg("unless", 24, "predicate that must be clear", classes="p", optional=True),
        Int("leaves", 96, "number of loops left by the branch", size=8, high=8, implicit=True),
    ),
    positional=("target",),
    constraints=(
        Constraint(1, "at most one of if and unless is given",
                   lambda site: site.attributes["if"] is None or site.attributes["unless"] is None),
    ),
    example=CMP.example,
)  # fmt: skip

CALL = Row(
    "CALL", 0x09, "control", "call a function",
    "Goes to a label and comes back at its RET. Calls may nest but not recurse.",
    unit=Exec.SCALAR,
    attributes=(Target("target", 384, "label of the function", default=None),),
    positional=("target",),
    example="""
.program call
.output y : i64[]
main:
    MOV     s0, 1
    CALL    double
    CALL    double
    FILL    y, s0       ;! y = 4
    HALT
double:
    ALU.add s0, s0, s0
    RET
""",
)  # fmt: skip

RET = Row(
    "RET", 0x0A, "control", "return from a function",
    "Goes back to the instruction after the CALL. Not inside a loop.",
    unit=Exec.SCALAR,
    example=CALL.example,
)  # fmt: skip

ASSERT = Row(
    "ASSERT", 0x0B, "control", "trap unless a predicate is set",
    'Traps with category "assert" if the predicate is clear. `ASSERT p0 code=3 "why"`: the text is kept in the debug '
    "section, the code in the instruction.",
    unit=Exec.SCALAR,
    attributes=(
        Reg("cond", 16, "predicate that must be set", classes="p"),
        Int("code", 96, "number reported with the trap", size=32),
    ),
    positional=("cond",),
    constraints=(Constraint(1, "cond is given", lambda site: site.attributes["cond"] is not None),),
    example="""
.program assert
.output y : i64[]
main:
    MOV    s0, 3
    CMP.lt p0, s0, 2
    FILL   y, s0
    ASSERT p0 code=7 "three is not less than two"   ;! trap assert
    HALT
""",
)  # fmt: skip

PROBE = Row(
    "PROBE", 0x0C, "control", "report statistics of a tensor to the host",
    "Leaves count, minimum, maximum, mean and the numbers of NaN and infinite elements of x in the run's result, under "
    "`tag`; the last execution wins. NaN and infinite elements are left out of minimum, maximum and mean. Changes "
    "nothing else.",
    unit=Exec.SCALAR,
    operands=(Operand("x", Role.IN, "[B...]", "T"),),
    types={"T": ALL},
    attributes=(Int("tag", 96, "name of the report", size=32),),
    example="""
.program probe
.const x : f32[3] = [1, 2, 6]
.output y : f32[3]
main:
    PROBE x, tag=1      ;! probe 1: count=3 minimum=1 maximum=6 mean=3
    COPY  y, x          ;! y = [1, 2, 6]
    HALT
""",
)  # fmt: skip

ROWS = (NOP, HALT, MOV, ALU, CMP, LOADS, LOOP, ENDLOOP, BR, CALL, RET, ASSERT, PROBE)
