"""Typing of one instruction against its row: operands present, types, shapes, numbered constraints.

This is the verifier's first question about each instruction; the assembler asks it too, to point at the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dla.isa import shapes
from dla.isa.attributes import Target
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import DType
from dla.isa.program import Instruction
from dla.isa.scalar_attributes import Reg
from dla.isa.table import Operand, Row, Site


@dataclass(frozen=True)
class Complaint:
    """One broken rule: "operands", "attributes", "types", "shapes", "static" or a constraint's name ("C2")."""

    rule: str
    message: str
    operand: str | None = None  # the operand or attribute to point at


def check(instruction: Instruction) -> list[Complaint]:
    """Every way in which `instruction` does not fit its row; empty if it fits."""
    return list(_complaints(instruction))


def _complaints(instruction: Instruction) -> Iterator[Complaint]:
    row = instruction.row
    attributes = row.with_defaults(instruction.attributes)
    present = list(_presence(row, instruction, attributes.get("steps", ())))
    # Registers have constraints of their own, and the assembler asks before it knows the targets.
    present += [
        Complaint("attributes", f"attribute {name} is missing", name)
        for name in row.missing(attributes)
        if not isinstance(row.all_attributes[name], Reg | Target)
    ]
    if present:
        yield from present
        return
    types: dict[str, DType] = {}
    bindings = shapes.Bindings({}, {})
    failed = False
    given = [(o, d) for o, d in zip(row.operands, instruction.operands, strict=True) if d is not None]
    for operand, descriptor in given:
        for complaint in _fit(row, operand, descriptor, types, bindings, failed):
            failed = True
            yield complaint
    if failed:
        return
    for name in row.static:
        dims = bindings.prefixes.get(name) or ((bindings.dims[name],) if name in bindings.dims else ())
        for dim in dims:
            if not shapes.is_static(dim):
                failed = True
                yield Complaint("static", f"dim {name} must be a constant, not {dim}")
    if failed:
        return
    operands = {o.name: d for o, d in zip(row.operands, instruction.operands, strict=True)}
    site = Site(instruction.sub, attributes, operands, types, bindings)
    for constraint in row.constraints:
        if not constraint.holds(site):
            yield Complaint(constraint.name, f"must hold: {constraint.text}", constraint.operand)


def _presence(row: Row, instruction: Instruction, steps: tuple[str, ...]) -> Iterator[Complaint]:
    for operand, descriptor in zip(row.operands, instruction.operands, strict=True):
        belongs = not operand.subs or instruction.sub in operand.subs
        if operand.step is not None:
            if (operand.step in steps) != (descriptor is not None):
                yield Complaint("operands", f"operand {operand.name} and epilogue step {operand.step} go together",
                                operand.name)  # fmt: skip
        elif descriptor is None and belongs and not operand.optional:
            yield Complaint("operands", f"operand {operand.name} is missing", operand.name)
        elif descriptor is not None and not belongs:
            yield Complaint("operands", f"{instruction.name} takes no operand {operand.name}", operand.name)


def _fit(
    row: Row, operand: Operand, descriptor: Descriptor, types: dict[str, DType], bindings: shapes.Bindings, failed: bool
) -> Iterator[Complaint]:
    allowed = row.operand_dtypes(operand)
    dtype = descriptor.dtype
    if dtype not in allowed:
        names = ", ".join(d.text for d in allowed)
        yield Complaint("types", f"{operand.name} is {dtype.text}, but must be one of {names}", operand.name)
    elif isinstance(operand.dtypes, str):
        first = types.setdefault(operand.dtypes, dtype)
        if first is not dtype:
            yield Complaint(
                "types", f"{operand.name} is {dtype.text}, but {operand.dtypes} is {first.text} here", operand.name
            )
    pattern = shapes.parse(operand.shape)
    if failed and not all(name in bindings for name in pattern.borrowed):
        return  # the operand that should have bound them did not fit
    try:
        shapes.unify(pattern, descriptor.dims, bindings, operand.name)
    except shapes.ShapeMismatch as mismatch:
        yield Complaint("shapes", str(mismatch), operand.name)
