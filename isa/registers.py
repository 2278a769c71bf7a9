"""Scalar registers: s0..s31 (i64), f0..f15 (f64), p0..p7 (bool), and read-only RANK and WORLD."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RegisterClass(enum.Enum):
    """Name prefix, number of registers, and code of the first one in an 8-bit register field."""

    INT = ("s", 32, 1)
    FLOAT = ("f", 16, 33)
    PREDICATE = ("p", 8, 49)
    RANK = ("RANK", 1, 57)
    WORLD = ("WORLD", 1, 58)

    def __init__(self, prefix: str, count: int, first_code: int) -> None:
        self.prefix = prefix
        self.count = count
        self.first_code = first_code


@dataclass(frozen=True, slots=True)
class Register:
    """One register. `code` is its number in an instruction word (0 means "no register")."""

    cls: RegisterClass
    index: int

    @property
    def code(self) -> int:
        return self.cls.first_code + self.index

    @property
    def writable(self) -> bool:
        return self.cls.count > 1

    @property
    def is_int(self) -> bool:
        return self.cls in (RegisterClass.INT, RegisterClass.RANK, RegisterClass.WORLD)

    def __str__(self) -> str:
        return f"{self.cls.prefix}{self.index}" if self.cls.count > 1 else self.cls.prefix


BY_CODE = {r.code: r for c in RegisterClass for r in (Register(c, i) for i in range(c.count))}
BY_NAME = {str(r): r for r in BY_CODE.values()}


RANK = BY_NAME["RANK"]
WORLD = BY_NAME["WORLD"]


def s(index: int) -> Register:
    """Integer register `s<index>`."""
    return BY_NAME[f"s{index}"]


def f(index: int) -> Register:
    """Float register `f<index>`."""
    return BY_NAME[f"f{index}"]


def p(index: int) -> Register:
    """Predicate register `p<index>`."""
    return BY_NAME[f"p{index}"]


Scalar = int | float | Register
"""A scalar operand: an immediate or a register."""


def kind(value: Scalar) -> str:
    """Tell a value's kind: "s", "f" or "p" for a register; "int" or "float" for an immediate."""
    if isinstance(value, Register):
        return "s" if value.is_int else value.cls.prefix
    return "float" if isinstance(value, float) else "int"


def fits(register_kind: str, value: Scalar) -> bool:
    """Whether `value` may be used where a register of kind `register_kind` could be."""
    k = kind(value)
    if k == "int":
        return register_kind in ("s", "f") or value in (0, 1)
    return k == register_kind or (k == "float" and register_kind == "f")
