"""Tensor descriptors: what an operand is. 128 bytes each in bytecode, interned in one table.

Layout, little-endian (offset: field):

      0 u8 segment   1 u8 dtype   2 u8 rank   3 u8 offset register (0 none, else index + 1)
      4 u8[6] dim register (0 constant, else index + 1)   10 u8[6] reserved, zero
     16 u64 offset, bytes   24 i64 offset scale, bytes per unit of the offset register
     32 i64[6] dims (a constant, or the bound of the dim register)   80 i64[6] strides, elements
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from functools import cached_property

from dla.isa.dtypes import DType
from dla.isa.errors import ContainerError

MAX_RANK = 6
DESCRIPTOR_BYTES = 128
MAX_DIM = 2**40  # elements; keeps every product of a dim and a stride inside i64
MAX_OFFSET = 2**48  # bytes
_LAYOUT = struct.Struct("<4B6s6xQq6q6q")
assert _LAYOUT.size == DESCRIPTOR_BYTES


class Segment(enum.IntEnum):
    """A byte-addressed memory of the machine. The value is its code in a descriptor."""

    CONST = 1
    INPUT = 2
    OUTPUT = 3
    STATE = 4
    SCRATCH = 5

    @property
    def text(self) -> str:
        return self.name.lower()

    @property
    def writable(self) -> bool:
        return self in (Segment.OUTPUT, Segment.STATE, Segment.SCRATCH)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A dimension held in integer register `s<register>`; 0 <= value <= bound when it is used."""

    register: int
    bound: int

    def __str__(self) -> str:
        return f"s{self.register} <= {self.bound}"


Dim = int | Dynamic


def bound_of(dim: Dim) -> int:
    """The largest value that `dim` can take."""
    return dim.bound if isinstance(dim, Dynamic) else dim


@dataclass(frozen=True)
class Descriptor:
    """A strided view of a segment.

    Element (i0, i1, ...) lies at byte `offset + offset_register * offset_scale + sum(i_k * strides[k]) * itemsize`.
    Strides are in elements and never negative; 0 repeats (broadcast). Where a dim is dynamic, the strides are
    those of the tensor at its bounds, so a smaller tensor leaves gaps and nothing moves when the value changes.
    """

    segment: Segment
    dtype: DType
    dims: tuple[Dim, ...]
    strides: tuple[int, ...]
    offset: int = 0
    offset_register: int | None = None
    offset_scale: int = 0

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """The shape at the largest values of all dynamic dims."""
        return tuple(bound_of(d) for d in self.dims)

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether a register takes part in the shape or the address."""
        return self.offset_register is not None or any(isinstance(d, Dynamic) for d in self.dims)

    @cached_property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one, at the bounds; 0 for an empty tensor."""
        if any(b == 0 for b in self.bounds):
            return 0
        last = sum((b - 1) * s for b, s in zip(self.bounds, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize

    @cached_property
    def elements(self) -> int:
        """Number of elements at the bounds."""
        n = 1
        for b in self.bounds:
            n *= b
        return n

    def encode(self) -> bytes:
        """The 128 bytes of this descriptor."""
        pad = MAX_RANK - self.rank
        return _LAYOUT.pack(
            self.segment,
            self.dtype,
            self.rank,
            0 if self.offset_register is None else self.offset_register + 1,
            bytes(d.register + 1 if isinstance(d, Dynamic) else 0 for d in self.dims),
            self.offset,
            self.offset_scale,
            *self.bounds,
            *(0,) * pad,
            *self.strides,
            *(0,) * pad,
        )

    @classmethod
    def decode(cls, data: bytes, index: int = 0) -> Descriptor:
        """The descriptor in `data`. Raises ContainerError unless `encode` would give back exactly `data`."""
        segment, dtype, rank, offset_register, dim_registers, offset, scale, *rest = _LAYOUT.unpack(data)
        try:
            if rank > MAX_RANK or offset_register > 32 or any(r > 32 for r in dim_registers):
                raise ValueError
            dims: list[Dim] = []
            for size, register in zip(rest[:rank], dim_registers[:rank], strict=True):
                if not 0 <= size <= MAX_DIM:
                    raise ValueError
                dims.append(Dynamic(register - 1, size) if register else size)
            strides = tuple(rest[MAX_RANK : MAX_RANK + rank])
            if any(not 0 <= s <= MAX_DIM for s in strides) or offset > MAX_OFFSET or abs(scale) > MAX_OFFSET:
                raise ValueError
            register = offset_register - 1 if offset_register else None
            descriptor = cls(Segment(segment), DType(dtype), tuple(dims), strides, offset, register, scale)
        except ValueError:
            raise ContainerError(f"descriptor {index} is not valid") from None
        if descriptor.encode() != data:
            raise ContainerError(f"descriptor {index} has reserved bits set")
        return descriptor


def contiguous_strides(dims: tuple[Dim, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements, of a tensor of these dims at their bounds."""
    strides: list[int] = []
    step = 1
    for dim in reversed(dims):
        strides.append(step)
        step *= max(1, bound_of(dim))
    return tuple(reversed(strides))


def contiguous(segment: Segment, dtype: DType, dims: tuple[Dim, ...], offset: int = 0) -> Descriptor:
    """A row-major tensor at byte `offset` of `segment`."""
    return Descriptor(segment, dtype, dims, contiguous_strides(dims), offset)
