"""What a native kernel is given: the operands of one instruction as torch tensors, in the program's layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import DType
from dla.isa.program import Instruction
from dla.isa.table import Role

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
"""One tensor per output that the instruction has, in order; a single one alone."""

TORCH = {
    DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.I8: torch.int8,
    DType.U8: torch.uint8, DType.I32: torch.int32, DType.I64: torch.int64, DType.BOOL: torch.bool,
}  # fmt: skip


class NoNativeError(Exception):
    """PyTorch has nothing that does this; the message says what it lacks, in words."""


@dataclass(frozen=True)
class Call:
    """A native kernel with its operands: `run` computes the outputs, anew each time."""

    kernel: str  # "torch.addmm, torch.relu"
    run: Callable[[], Tensors]


@dataclass(frozen=True)
class Given:
    """One instruction without registers, and its operands by name: inputs with values, outputs with the place for them.

    With `exact`, every float is f64, whatever the instruction says: for asking how far roundings move a result.
    """

    instruction: Instruction
    tensors: Mapping[str, torch.Tensor]
    exact: bool = False

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        """The operand called `name`, None where the instruction has none."""
        return self.tensors.get(name)

    @property
    def sub(self) -> str:
        return self.instruction.sub

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """With defaults."""
        return self.instruction.row.with_defaults(self.instruction.attributes)

    @property
    def out(self) -> torch.Tensor:
        """The place of the first output."""
        return self.tensors[self.instruction.row.outputs[0].name]

    def typed(self, result: torch.Tensor, name: str | None = None) -> torch.Tensor:
        """`result` with the type and shape of output `name`, the first one if None; a copy only where these differ."""
        out = self.out if name is None else self.tensors[name]
        if result.shape != out.shape:
            result = result.expand(out.shape).contiguous()
        return result if result.dtype == out.dtype else result.to(out.dtype)

    @property
    def one_type(self) -> bool:
        """Whether all floats of the instruction have one type."""
        return len({t.dtype for t in self.tensors.values() if t.dtype.is_floating_point}) <= 1


def operands(instruction: Instruction) -> list[tuple[str, Role, Descriptor]]:
    """(name, role, descriptor) of the operands that are there."""
    pairs = zip(instruction.row.operands, instruction.operands, strict=True)
    return [(spec.name, spec.role, d) for spec, d in pairs if d is not None]
