"""`Program`: the only thing that crosses the walls between assembler, compiler, file and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import Array
from dla.isa.ranks import RankGroup, RankPairs, Shard
from dla.isa.table import Row

ISA_VERSION = (1, 3)
"""(major, minor) of the instruction set. A minor version only adds, so programs of every earlier one run unchanged."""
MAX_INSTRUCTIONS = 2**16
MAX_TENSORS = 2**15
"""With these, the objects that the most hostile file makes stay within 64 MiB; large models have some thousands."""
TENSOR_ALIGNMENT = 256
"""Bytes: the assembler and the compiler place every tensor at a multiple of this, which satisfies TMA and mma loads."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its row, sub-operation, operands in row order (None where absent) and attributes.

    `attributes` holds only values that differ from their defaults; operands and attributes are as the row names them.
    """

    row: Row
    sub: str = ""
    operands: tuple[Descriptor | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sub and self.row.default_sub:
            object.__setattr__(self, "sub", self.row.default_sub)

    @property
    def name(self) -> str:
        """`MNEMONIC` or `MNEMONIC.sub`."""
        return f"{self.row.mnemonic}.{self.sub}" if self.sub else self.row.mnemonic

    def operand(self, name: str) -> Descriptor | None:
        """The descriptor of the operand called `name`."""
        for spec, descriptor in zip(self.row.operands, self.operands, strict=True):
            if spec.name == name:
                return descriptor
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: what `.input x : f32[batch <= 64, 10]` declares. Always contiguous at its bounds."""

    name: str
    descriptor: Descriptor

    @property
    def segment(self) -> Segment:
        return self.descriptor.segment


@dataclass(frozen=True)
class DimSymbol:
    """A named dim: its register is set before the program starts, from `--set` or from the inputs' shapes."""

    name: str
    register: int
    bound: int


@dataclass(frozen=True, eq=False)
class ConstBlock:
    """Bytes of the const segment at `offset`: a flat u8 array, which may be a read-only memory map."""

    offset: int
    data: Array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConstBlock):
            return NotImplemented
        return self.offset == other.offset and np.array_equal(self.data, other.data)


@dataclass(frozen=True)
class ExternalConst:
    """Bytes of the const segment that stay in a `.safetensors` file beside the program.

    `file` is relative to the program file's folder and may not leave it.
    """

    offset: int  # bytes, in the const segment
    nbytes: int
    file: str
    key: str
    sha256: bytes = b""  # of the tensor's bytes; empty until the program is written


@dataclass(frozen=True)
class Debug:
    """What people wrote: never needed to run. Indices are instruction indices."""

    file: str = ""
    lines: tuple[int, ...] = ()  # source line of each instruction
    labels: tuple[tuple[str, int], ...] = ()  # (name, instruction index), sorted by index then name
    comments: tuple[tuple[str, int, str], ...] = ()  # (place, index, text); see assembler.disassembler
    messages: tuple[tuple[int, str], ...] = ()  # (instruction index, text) of ASSERT and PROBE


@dataclass(frozen=True)
class Program:
    """A whole program, immutable. Equal programs encode to equal bytes."""

    name: str
    instructions: tuple[Instruction, ...]
    tensors: tuple[Tensor, ...] = ()
    dims: tuple[DimSymbol, ...] = ()
    segment_bytes: Mapping[Segment, int] = field(default_factory=dict)
    constants: tuple[ConstBlock, ...] = ()  # sorted by offset; bytes not covered are zero
    external: tuple[ExternalConst, ...] = ()  # sorted by offset
    world: int = 0  # ranks that it is written for; 0: any number
    groups: tuple[RankGroup, ...] = ()
    pairs: tuple[RankPairs, ...] = ()
    shards: tuple[Shard, ...] = ()
    debug: Debug | None = None
    isa_version: tuple[int, int] = ISA_VERSION
    folder: Path | None = field(default=None, compare=False)  # where `external` files are looked up

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    def in_segment(self, segment: Segment) -> tuple[Tensor, ...]:
        """The named tensors of one segment, in declaration order."""
        return tuple(t for t in self.tensors if t.segment is segment)

    def location(self, index: int) -> str | None:
        """Where instruction `index` was written, as "file:line"; None where that is not known."""
        if self.debug is None or not 0 <= index < len(self.debug.lines):
            return None
        return f"{self.debug.file}:{self.debug.lines[index]}"
