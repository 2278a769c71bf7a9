"""What a native kernel is given: the operands of one instruction as a library's tensors, in the program's layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from dla.isa.descriptor import Descriptor
from dla.isa.program import Instruction
from dla.isa.table import Role

T = TypeVar("T")
"""A library's tensors."""

Action = Callable[[], Any]


class NoNativeError(Exception):
    """The library has nothing that does this; the message says what it lacks, in words."""


@dataclass(frozen=True)
class Call:
    """A native kernel with its operands: `run` gives new outputs, a tuple where there are several."""

    kernel: str  # "torch.addmm, torch.relu"
    run: Action


@dataclass(frozen=True)
class Rounding:
    """What moves each result of a kernel in f64 as a rounding to a type that is stored would: by up to `roundoff`."""

    roundoff: float
    direction: float | None  # 1: all away from zero, -1: all toward it, None: at random
    seed: int


@dataclass(frozen=True)
class Given(Generic[T]):
    """One instruction without registers, and its operands by name: inputs with values, outputs with the place for them.

    With `exact`, every float is f64, whatever the instruction says: for asking how far roundings move a result.
    """

    instruction: Instruction
    tensors: Mapping[str, T]
    exact: bool = False

    def __getitem__(self, name: str) -> T:
        return self.tensors[name]

    def get(self, name: str) -> T | None:
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
    def out(self) -> T:
        """The place of the first output."""
        return self.tensors[self.instruction.row.outputs[0].name]


def operands(instruction: Instruction) -> list[tuple[str, Role, Descriptor]]:
    """(name, role, descriptor) of the operands that are there."""
    pairs = zip(instruction.row.operands, instruction.operands, strict=True)
    return [(spec.name, spec.role, d) for spec, d in pairs if d is not None]


def several(made: Any) -> tuple[Any, ...]:
    """What a call gave, one tensor for each output."""
    return made if isinstance(made, tuple) else (made,)
