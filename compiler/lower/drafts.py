"""Instructions before addresses are known: what lowering makes and assembly finishes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Expr
from dla.compiler.lower.registers import Registers
from dla.compiler.lower.storage import Storage, View
from dla.isa import descriptor as isa
from dla.isa.table import Row


@dataclass(frozen=True)
class Place:
    """A view with its sizes in registers: its element 0 is `number + register * factor` after its storage's first."""

    view: View
    dims: tuple[isa.Dim, ...]
    number: int
    register: int | None = None
    factor: int = 0


@dataclass
class Draft:
    """An instruction whose operands have no addresses yet."""

    row: Row
    sub: str = ""
    operands: tuple[Place | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass
class Lowered:
    """A graph as drafts, and everything that they need."""

    drafts: list[Draft]
    registers: Registers
    storages: list[Storage]
    held: dict[str, Storage]  # inputs, outputs and states, by name
    world: int = 0  # ranks that it is for; 0: any number


def placed(registers: Registers, view: View) -> Place:
    """`view` with registers for its symbolic sizes and offset."""
    sizes = tuple(
        isa.Dynamic(registers.holding(d).index, dims.bound(d)) if isinstance(d, Expr) else d for d in view.dims
    )
    if isinstance(view.offset, int):
        return Place(view, sizes, view.offset)
    # Descriptors have no negative numbers, so a difference of sizes is computed as a whole.
    constant = sum(factor for monomial, factor in view.offset.terms if not monomial)
    if any(factor < 0 for _, factor in view.offset.terms):
        constant = 0
    rest = view.offset - constant
    assert isinstance(rest, Expr), "only a constant was taken away"
    factor = math.gcd(*(factor for _, factor in rest.terms))
    base = dims.divide(rest, factor)
    assert isinstance(base, Expr), "the factor divides every term"
    return Place(view, sizes, constant, registers.holding(base).index, factor)
