"""Declarations: named tensors, named dims, and where each tensor lies in its segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lark import Token

from dla.assembler.constants import inside, scalar, value_of
from dla.assembler.syntax import DeclarationStatement, Sum, integer, name_of, problem, unquote
from dla.assembler.views import SEGMENTS, Scope, dim, dtype_of
from dla.assembler.worlds import shard_of
from dla.isa.descriptor import MAX_DIM, MAX_OFFSET, MAX_RANK, Descriptor, Dim, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.names import MAX_NAME_BYTES, is_identifier
from dla.isa.program import TENSOR_ALIGNMENT, ConstBlock, DimSymbol, ExternalConst, Tensor
from dla.isa.ranks import Shard
from dla.isa.registers import BY_NAME, RegisterClass

DIM_REGISTERS = tuple(range(31, -1, -1))
"""Registers that named dims get, in order of first appearance."""
MAX_FILLED_BYTES = 2**28
"""Bytes of constants that a few characters of text may ask for."""
RESERVED = {*BY_NAME, "None", "true", "false", "inf", "nan"}
"""Names that mean something else; in backquotes they may be used all the same."""


@dataclass
class Declared:
    """What the declarations read so far amount to."""

    scope: Scope = field(default_factory=Scope)
    tensors: list[Tensor] = field(default_factory=list)
    segment_bytes: dict[Segment, int] = field(default_factory=dict)
    constants: list[ConstBlock] = field(default_factory=list)
    external: list[ExternalConst] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    _filled: int = 0  # bytes of constants that one number fills
    _numbers: dict[tuple[DType, bytes], Descriptor] = field(default_factory=dict)

    def declare(self, statement: DeclarationStatement, folder: Path | None) -> None:
        """Add one declared tensor. Raises SyntaxProblem; the tensor's name is known afterwards wherever it can be."""
        segment = SEGMENTS[statement.directive[1:]]
        name = name_of(statement.name)
        if name in self.scope.tensors:
            raise problem(statement.name, f"{name} is declared twice", "names are unique over all segments")
        _check_name(statement.name, "tensor")
        dtype = dtype_of(statement.dtype)
        dims = tuple(self._dim(d) for d in statement.dims)
        if len(dims) > MAX_RANK:
            raise problem(statement.name, f"{name} has {len(dims)} dims; tensors have at most {MAX_RANK}")
        address = None if statement.address is None else integer(statement.address)
        descriptor = self._place(segment, dtype, dims, address, statement.address or statement.name)
        self._add(name, descriptor)
        if statement.cut is not None:
            self.shards.append(shard_of(self.scope, statement, descriptor, folder))
        else:
            self._fill(statement, descriptor, folder)

    def declare_dim(self, name: Token, register: Token, bound: Token) -> None:
        """Add a named dim in a register of the program's choice: `.dim batch s31 64`. Raises SyntaxProblem."""
        held = BY_NAME.get(register)
        if held is None or held.cls is not RegisterClass.INT:
            raise problem(register, "a dim is held in a register s0..s31")
        if name_of(name) in self.scope.dims:
            raise problem(name, f"dim {name_of(name)} is declared twice")
        if not 0 <= integer(bound) <= MAX_DIM:
            raise problem(bound, f"a bound lies between 0 and {MAX_DIM}, not {bound}")
        _check_name(name, "dim")
        self.scope.dims[name_of(name)] = DimSymbol(name_of(name), held.index, integer(bound))

    def _dim(self, given: Sum) -> Dim:
        plain = given.plain
        if plain is None or str(plain) in BY_NAME or name_of(plain) in self.scope.dims:
            return dim(self.scope, given)
        name = name_of(plain)
        if given.bound is None:
            raise problem(plain, f"dim {name} has no bound yet", f"write `{name} <= 128` where it first appears")
        if not 0 <= given.bound <= MAX_DIM:
            raise problem(plain, f"a bound lies between 0 and {MAX_DIM}, not {given.bound}")
        _check_name(plain, "dim")
        if len(self.scope.dims) == len(DIM_REGISTERS):
            raise problem(plain, f"a program has at most {len(DIM_REGISTERS)} named dims")
        taken = {d.register for d in self.scope.dims.values()}
        register = next(r for r in DIM_REGISTERS if r not in taken)
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
            place, digest = source.value
            self._leave_outside(place, digest, descriptor, folder)
        else:
            if source.kind == "literal" and isinstance(source.value, Token):
                self._filled += descriptor.span
                if self._filled > MAX_FILLED_BYTES:
                    raise problem(source.at, f"single numbers fill more than {MAX_FILLED_BYTES} bytes of constants",
                                  "FILL a .scratch tensor instead")  # fmt: skip
            data = value_of(source, descriptor.dtype, descriptor.bounds, folder)
            if data.size:
                self.constants.append(ConstBlock(descriptor.offset, data))

    def _leave_outside(self, place: Token, digest: Token | None, descriptor: Descriptor, folder: Path | None) -> None:
        name, _, key = unquote(place).partition("#")
        if not name.endswith(".safetensors") or not key:
            raise problem(place, "an external constant is a tensor of a .safetensors file",
                          'write external "weights.safetensors#key"')  # fmt: skip
        inside(place, name, folder or Path())
        sha256 = b"" if digest is None else _digest(digest)
        self.external.append(ExternalConst(descriptor.offset, descriptor.span, name, key, sha256))

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


def _check_name(token: Token, what: str) -> None:
    if token.type == "NAME" and token in RESERVED:
        raise problem(token, f"{token} cannot be the name of a {what}: it means something else")
    if not is_identifier(name_of(token)):
        raise problem(token, f"the name of a {what} has at most {MAX_NAME_BYTES} characters")


def _digest(token: Token) -> bytes:
    try:
        digest = bytes.fromhex(unquote(token))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise problem(token, "a SHA-256 has 64 hexadecimal digits", "leave it out: the assembler needs none")
    return digest


def aligned(offset: int) -> int:
    """`offset` rounded up to where a tensor may start."""
    return -(-offset // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
