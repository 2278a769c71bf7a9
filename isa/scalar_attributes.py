"""Attributes that name scalar registers, and those that are a register or a number."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from dla.isa.attributes import Attribute
from dla.isa.errors import ContainerError
from dla.isa.registers import BY_CODE, Register


@dataclass(frozen=True)
class Reg(Attribute):
    """A register out of the classes named in `classes` (prefixes: "s", "f", "p"); None where optional."""

    classes: str = "s"
    writable: bool = False
    bits: ClassVar[int] = 8

    def encode(self, value: Any) -> int:
        if value is None:
            return 0
        if not isinstance(value, Register) or not self.accepts(value):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return value.code

    def decode(self, raw: int) -> Register | None:
        if raw == 0:
            return None
        register = BY_CODE.get(raw)
        if register is None or not self.accepts(register):
            raise ContainerError(f"attribute {self.name} names the unknown register {raw}")
        return register

    def accepts(self, register: Register) -> bool:
        """Whether `register` is of a class (and writability) that this attribute takes."""
        if self.writable and not register.writable:
            return False
        prefix = "s" if register.is_int else register.cls.prefix
        return prefix in self.classes

    @property
    def expects(self) -> str:
        names = {"s": "s0..s31", "f": "f0..f15", "p": "p0..p7"}
        return "a register (" + ", ".join(names[c] for c in self.classes) + ")"


INTEGER_TAG = 0
FLOAT_TAG = 255
PRESENT_INTEGER_TAG = 254
"""Tags of a `ScalarValue` that are no register codes."""


@dataclass(frozen=True)
class ScalarValue(Attribute):
    """A register, an i64 immediate or a finite f64 immediate.

    8 tag bits at `at` (0 i64 immediate, 255 f64 immediate, else a register code), and 64 value bits at
    `value_at`, zero for a register. The bits are handed over as `tag | value << 8`. In an optional one, tag 0 is
    "absent" and tag 254 an i64 immediate.
    """

    value_at: int = 0
    classes: str = "sf"
    default: Any = 0
    bits: ClassVar[int] = 8

    @property
    def pieces(self) -> list[tuple[int, int]]:
        return [(self.at, 8), (self.value_at, 64)]

    def encode(self, value: Any) -> int:
        if value is None and self.optional:
            return 0
        if isinstance(value, Register) and Reg(self.name, 0, "", classes=self.classes).accepts(value):
            return value.code
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{self.name} must be {self.expects}, not {value}")
            return FLOAT_TAG | int.from_bytes(struct.pack("<d", value), "little") << 8
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{self.name} does not fit in 64 bits: {value}")
        return (PRESENT_INTEGER_TAG if self.optional else 0) | (value & (2**64 - 1)) << 8

    def decode(self, raw: int) -> Any:
        tag, bits = raw & 255, raw >> 8
        data = bits.to_bytes(8, "little")
        if raw == 0 and self.optional:
            return None
        if tag == (PRESENT_INTEGER_TAG if self.optional else 0):
            return int.from_bytes(data, "little", signed=True)
        if tag == FLOAT_TAG:
            value: float = struct.unpack("<d", data)[0]
            if not math.isfinite(value):
                raise ContainerError(f"attribute {self.name} is not finite")
            return value
        register = BY_CODE.get(tag)
        if register is None or bits or not Reg(self.name, 0, "", classes=self.classes).accepts(register):
            raise ContainerError(f"attribute {self.name} names the unknown register {tag}")
        return register

    @property
    def expects(self) -> str:
        return "a number or " + Reg(self.name, 0, "", classes=self.classes).expects
