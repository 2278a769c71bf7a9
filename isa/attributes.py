"""Attributes of instructions: their values, and the bits that hold them in a word or a record.

An attribute says once where its bits are; the encoder, the decoder, the CUDA accessors and the pictures in
docs/isa.md all follow from that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dla.isa.descriptor import MAX_RANK
from dla.isa.errors import ContainerError

UNIT_BITS = 512
"""Size of an instruction word, and of an attribute record."""


@dataclass(frozen=True)
class Attribute:
    """A named group of bits. Subclasses define what value it holds.

    `at` is the first bit, counted from bit 0 of byte 0, in the 512 bits of the word or record.
    `default` is what an absent keyword means. None means that it must be written, unless the attribute is `optional`
    (or a Reg): then None, "absent", encoded as all zeros, is a value of its own, and `doc` says what it means.
    `implicit` values are never written in assembly: the assembler works them out.
    """

    name: str
    at: int
    doc: str
    default: Any = None
    implicit: bool = False
    optional: bool = False

    bits: ClassVar[int] = 0

    @property
    def required(self) -> bool:
        """Whether assembly must write it."""
        return self.default is None and not self.optional and not self.implicit

    def canonical(self, value: Any) -> Any:
        """`value` as a program file gives it back (f32 rounded, axes sorted). Raises ValueError if it does not fit."""
        return self.decode(self.encode(value))

    @property
    def width(self) -> int:
        """Bits taken, in all."""
        return self.bits

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The (first bit, width) pieces that hold the attribute, low bits of its code first."""
        return [(self.at, self.width)]

    def encode(self, value: Any) -> int:
        """The bits for `value`. Raises ValueError with a reason a person can act on."""
        raise NotImplementedError

    def decode(self, raw: int) -> Any:
        """The value in `raw`. Raises ContainerError unless some value encodes to it."""
        raise NotImplementedError

    @property
    def expects(self) -> str:
        """What to write, for messages: "an integer from 0 to 5"."""
        raise NotImplementedError


@dataclass(frozen=True)
class Int(Attribute):
    """An integer of `size` bits, from `low` to `high`."""

    size: int = 32
    low: int = 0
    high: int = 2**31 - 1
    default: Any = 0

    @property
    def width(self) -> int:
        return self.size

    def encode(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return value & ((1 << self.size) - 1)

    def decode(self, raw: int) -> int:
        value = raw - (1 << self.size) if self.low < 0 and raw >> (self.size - 1) else raw
        if not self.low <= value <= self.high:
            raise ContainerError(f"attribute {self.name} is out of range: {value}")
        return value

    @property
    def expects(self) -> str:
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True)
class IntList(Attribute):
    """`length` integers of `size` bits each, one after the other."""

    length: int = 2
    size: int = 32
    low: int = 0
    high: int = 2**31 - 1
    default: Any = (0, 0)

    @property
    def width(self) -> int:
        return self.size * self.length

    def encode(self, value: Any) -> int:
        if not isinstance(value, tuple | list) or len(value) != self.length:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        raw = 0
        for i, item in enumerate(value):
            if isinstance(item, bool) or not isinstance(item, int) or not self.low <= item <= self.high:
                raise ValueError(f"{self.name} must be {self.expects}, not {list(value)}")
            raw |= (item & ((1 << self.size) - 1)) << (i * self.size)
        return raw

    def decode(self, raw: int) -> tuple[int, ...]:
        items = []
        for i in range(self.length):
            item = (raw >> (i * self.size)) & ((1 << self.size) - 1)
            if self.low < 0 and item >> (self.size - 1):
                item -= 1 << self.size
            if not self.low <= item <= self.high:
                raise ContainerError(f"attribute {self.name} is out of range: {item}")
            items.append(item)
        return tuple(items)

    @property
    def expects(self) -> str:
        return f"a list of {self.length} integers from {self.low} to {self.high}"


@dataclass(frozen=True)
class Flag(Attribute):
    """One bit; written as a bare word in assembly."""

    default: Any = False
    bits: ClassVar[int] = 1

    def encode(self, value: Any) -> int:
        if not isinstance(value, bool):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return int(value)

    def decode(self, raw: int) -> bool:
        return bool(raw)

    @property
    def expects(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class F32(Attribute):
    """A finite f32, in IEEE 754 bits. Stored XOR the default's bits, so that the default is all zeros.

    The bits of an absent optional one are those of a NaN (0x7FC00000): a device that undoes the XOR sees NaN.
    """

    default: Any = 0.0
    bits: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if self.default is not None:  # as f32 holds it, so that it equals what a file gives back
            object.__setattr__(self, "default", struct.unpack("<f", struct.pack("<f", self.default))[0])

    def encode(self, value: Any) -> int:
        if value is None and self.optional:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        try:
            raw = struct.pack("<f", value)
        except OverflowError:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}") from None
        if not math.isfinite(value):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return int.from_bytes(raw, "little") ^ self.mask

    def decode(self, raw: int) -> float | None:
        if raw == 0 and self.optional:
            return None
        value: float = struct.unpack("<f", (raw ^ self.mask).to_bytes(4, "little"))[0]
        if not math.isfinite(value):
            raise ContainerError(f"attribute {self.name} is not finite")
        return value

    @property
    def mask(self) -> int:
        """The bits that the stored value is XORed with."""
        return 0x7FC00000 if self.default is None else int.from_bytes(struct.pack("<f", self.default), "little")

    @property
    def expects(self) -> str:
        return "a finite number that f32 can hold"


@dataclass(frozen=True)
class Enum(Attribute):
    """One of `choices` (name -> code), in `size` bits."""

    choices: Mapping[str, int] = field(default_factory=dict)
    size: int = 8

    @property
    def width(self) -> int:
        return self.size

    def encode(self, value: Any) -> int:
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return self.choices[value]

    def decode(self, raw: int) -> str:
        for name, code in self.choices.items():
            if code == raw:
                return name
        raise ContainerError(f"attribute {self.name} has the unknown code {raw}")

    @property
    def expects(self) -> str:
        return "one of " + ", ".join(self.choices)


@dataclass(frozen=True)
class EnumList(Attribute):
    """Up to `length` names out of `choices` (codes from 1; 0 ends the list), in `size` bits each."""

    choices: Mapping[str, int] = field(default_factory=dict)
    length: int = 4
    size: int = 8
    default: Any = ()

    @property
    def width(self) -> int:
        return self.size * self.length

    def encode(self, value: Any) -> int:
        if (
            not isinstance(value, tuple)
            or len(value) > self.length
            or any(not isinstance(v, str) or v not in self.choices for v in value)
        ):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return sum(self.choices[v] << (i * self.size) for i, v in enumerate(value))

    def decode(self, raw: int) -> tuple[str, ...]:
        by_code = {code: name for name, code in self.choices.items()}
        names = []
        while raw:
            code = raw & ((1 << self.size) - 1)
            if code not in by_code:
                raise ContainerError(f"attribute {self.name} has the unknown code {code}")
            names.append(by_code[code])
            raw >>= self.size
        return tuple(names)

    @property
    def expects(self) -> str:
        return f"at most {self.length} of " + ", ".join(self.choices)


@dataclass(frozen=True)
class Axis(Attribute):
    """One axis, 0 to 5, of the operand named `of`.

    Assembly and the compiler may count from the end; `normalised` turns that into what is stored here.
    """

    of: str = ""
    bits: ClassVar[int] = 3

    def normalised(self, value: Any, rank: int) -> int:
        """`value`, which may be negative, as an axis of a tensor of `rank` dims. Raises ValueError."""
        return _axis(self.name, value, rank)

    def encode(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_RANK:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return value

    def decode(self, raw: int) -> int:
        if raw >= MAX_RANK:
            raise ContainerError(f"attribute {self.name} is out of range: {raw}")
        return raw

    @property
    def expects(self) -> str:
        return f"an axis from 0 to {MAX_RANK - 1}"


@dataclass(frozen=True)
class Axes(Attribute):
    """A set of axes of the operand named `of`: bit k stands for axis k. The value is a sorted tuple."""

    of: str = ""
    bits: ClassVar[int] = MAX_RANK

    def normalised(self, value: Any, rank: int) -> tuple[int, ...]:
        """`value` (an axis or several, which may be negative) for a tensor of `rank` dims. Raises ValueError."""
        items = [_axis(self.name, v, rank) for v in (value if isinstance(value, tuple | list) else (value,))]
        if len(set(items)) != len(items):
            raise ValueError(f"{self.name} names an axis twice")
        return tuple(sorted(items))

    def encode(self, value: Any) -> int:
        fits = isinstance(value, tuple) and all(type(v) is int and 0 <= v < MAX_RANK for v in value)
        if not fits or len(set(value)) != len(value):
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return sum(1 << v for v in value)

    def decode(self, raw: int) -> tuple[int, ...]:
        return tuple(k for k in range(MAX_RANK) if raw >> k & 1)

    @property
    def expects(self) -> str:
        return f"a list of different axes from 0 to {MAX_RANK - 1}"


def _axis(name: str, value: Any, rank: int) -> int:
    if type(value) is not int or not -rank <= value < rank:
        raise ValueError(f"{name} must be from {-rank} to {rank - 1} for a tensor of rank {rank}, not {value}")
    return value % rank


@dataclass(frozen=True)
class Target(Attribute):
    """The index of another instruction; a label in assembly."""

    default: Any = 0
    bits: ClassVar[int] = 32

    def encode(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            raise ValueError(f"{self.name} must be {self.expects}, not {value}")
        return value

    def decode(self, raw: int) -> int:
        return raw

    @property
    def expects(self) -> str:
        return "a label"


@dataclass(frozen=True)
class Record:
    """A group of rarely used attributes, interned in the record table and pointed to by an instruction word.

    Bits 0..7 of a record hold `code`; a record whose attributes are all at their defaults is not stored.
    """

    name: str
    code: int
    attributes: tuple[Attribute, ...]


def pack(attributes: tuple[Attribute, ...], values: Mapping[str, Any]) -> int:
    """Put the values (or defaults) of `attributes` into a 512-bit integer. Raises ValueError."""
    bits = 0
    for attribute in attributes:
        if attribute.name not in values:
            if attribute.default is None:
                continue
            code = attribute.encode(attribute.default)
        else:
            code = attribute.encode(values[attribute.name])
        for at, width in attribute.pieces:
            bits |= (code & ((1 << width) - 1)) << at
            code >>= width
    return bits


def unpack(attributes: tuple[Attribute, ...], bits: int) -> dict[str, Any]:
    """The values of `attributes` in `bits`, without those at their defaults. Raises ContainerError."""
    values = {}
    for attribute in attributes:
        code = shift = 0
        for at, width in attribute.pieces:
            code |= ((bits >> at) & ((1 << width) - 1)) << shift
            shift += width
        value = attribute.decode(code)
        # Compared by bits, because 0, 0.0 and -0.0 are equal but differ here.
        if value is not None and (attribute.default is None or code != attribute.encode(attribute.default)):
            values[attribute.name] = value
    return values
