"""Declarations: named tensors, named dims, and where each tensor lies in its segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lark import Token

from dla.assembler.constants import inside, scalar, value_of
from dla.assembler.syntax import DeclarationStatement, Sum, integer, name_of, problem, unquote
from dla.assembler.views import SEGMENTS, Scope, dim, dtype_of
from dla.isa.descriptor import MAX_DIM, MAX_OFFSET, MAX_RANK, Descriptor, Dim, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.program import TENSOR_ALIGNMENT, ConstBlock, DimSymbol, ExternalConst, Tensor
from dla.isa.registers import BY_NAME

DIM_REGISTERS = tuple(range(31, -1, -1))
"""Registers that named dims get, in order of first appearance."""
_RESERVED = {*BY_NAME, "None", "true", "false", "inf", "nan"}


@dataclass
class Declared:
    """What the declarations read so far amount to."""

    scope: Scope = field(default_factory=Scope)
    tensors: list[Tensor] = field(default_factory=list)
    segment_bytes: dict[Segment, int] = field(default_factory=dict)
    constants: list[ConstBlock] = field(default_factory=list)
    external: list[ExternalConst] = field(default_factory=list)
    _numbers: dict[tuple[DType, bytes], Descriptor] = field(default_factory=dict)

    def declare(self, statement: DeclarationStatement, folder: Path | None) -> None:
        """Add one declared tensor. Raises SyntaxProblem; the tensor's name is known afterwards wherever it can be."""
        segment = SEGMENTS[statement.directive[1:]]
        name = name_of(statement.name)
        if name in self.scope.tensors:
            raise problem(statement.name, f"{name} is declared twice", "names are unique over all segments")
        if statement.name.type == "NAME" and name in _RESERVED:
            raise problem(statement.name, f"{name} cannot be the name of a tensor: it means something else")
        dtype = dtype_of(statement.dtype)
        dims = tuple(self._dim(d) for d in statement.dims)
        if len(dims) > MAX_RANK:
            raise problem(statement.name, f"{name} has {len(dims)} dims; tensors have at most {MAX_RANK}")
        address = None if statement.address is None else integer(statement.address)
        descriptor = self._place(segment, dtype, dims, address, statement.address or statement.name)
        self._add(name, descriptor)
        self._fill(statement, descriptor, folder)

    def _dim(self, given: Sum) -> Dim:
        plain = given.plain
        if plain is None or plain in BY_NAME or name_of(plain) in self.scope.dims:
            return dim(self.scope, given)
        name = name_of(plain)
        if given.bound is None:
            raise problem(plain, f"dim {name} has no bound yet", f"write `{name} <= 128` where it first appears")
        if not 0 <= given.bound <= MAX_DIM:
            raise problem(plain, f"a bound lies between 0 and {MAX_DIM}, not {given.bound}")
        if name in _RESERVED:
            raise problem(plain, f"{name} cannot be the name of a dim: it means something else")
        if len(self.scope.dims) == len(DIM_REGISTERS):
            raise problem(plain, f"a program has at most {len(DIM_REGISTERS)} named dims")
        register = DIM_REGISTERS[len(self.scope.dims)]
        self.scope.dims[name] = DimSymbol(name, register, given.bound)
        return Dynamic(register, given.bound)

    def _place(
        self, segment: Segment, dtype: DType, dims: tuple[Dim, ...], address: int | None, at: Token | None
    ) -> Descriptor:
        end = self.segment_bytes.get(segment, 0)
        offset = aligned(end) if address is None else address
        descriptor = contiguous(segment, dtype, dims, offset)
        if offset < 0 or offset % dtype.itemsize:
            raise problem(at, f"an address is a multiple of {dtype.itemsize} here, and not negative")
        if max(descriptor.strides, default=0) > MAX_DIM or offset + descriptor.span > MAX_OFFSET:
            raise problem(at, f"this tensor does not fit: a segment has at most {MAX_OFFSET} bytes")
        self.segment_bytes[segment] = max(end, offset + descriptor.span)
        return descriptor

    def _add(self, name: str, descriptor: Descriptor) -> None:
        self.scope.tensors[name] = descriptor
        self.tensors.append(Tensor(name, descriptor))

    def _fill(self, statement: DeclarationStatement, descriptor: Descriptor, folder: Path | None) -> None:
        source = statement.source
        if descriptor.segment is not Segment.CONST:
            if source is not None:
                hint = "state starts at zero or from --state-in; use FILL or COPY for the rest"
                raise problem(source.at, "only a .const has a value", hint)
            return
        if source is None:
            raise problem(statement.name, f"constant {name_of(statement.name)} has no value",
                          'write `= [1, 2]`, `= 0` or `from "weights.safetensors#key"`')  # fmt: skip
        if source.kind == "external":
            self._leave_outside(source.value, descriptor, folder)
        else:
            data = value_of(source, descriptor.dtype, descriptor.bounds, folder)
            if data.size:
                self.constants.append(ConstBlock(descriptor.offset, data))

    def _leave_outside(self, place: Token, descriptor: Descriptor, folder: Path | None) -> None:
        name, _, key = unquote(place).partition("#")
        if not name.endswith(".safetensors") or not key:
            raise problem(place, "an external constant is a tensor of a .safetensors file",
                          'write external "weights.safetensors#key"')  # fmt: skip
        inside(place, name, folder or Path())
        self.external.append(ExternalConst(descriptor.offset, descriptor.span, name, key))

    def number(self, token: Token, dtype: DType) -> Descriptor:
        """The interned rank-0 constant for a number written as an operand. Raises SyntaxProblem."""
        value = np.asarray(scalar(token, dtype))
        key = (dtype, value.tobytes())
        if key not in self._numbers:
            index = len(self._numbers)
            while f"_c{index}" in self.scope.tensors:
                index += 1
            descriptor = self._place(Segment.CONST, dtype, (), None, token)
            self._add(f"_c{index}", descriptor)
            self.constants.append(ConstBlock(descriptor.offset, value.reshape(-1).view(np.uint8)))
            self._numbers[key] = descriptor
        return self._numbers[key]


def aligned(offset: int) -> int:
    """`offset` rounded up to where a tensor may start."""
    return -(-offset // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
