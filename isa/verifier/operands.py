"""V-OPERAND, V-TYPE, V-SHAPE, V-STATIC and the rows' own constraints: each instruction against its row."""

from __future__ import annotations

from collections.abc import Hashable

from dla.isa import typing
from dla.isa.descriptor import Descriptor
from dla.isa.program import Instruction, Program
from dla.isa.verifier.rules import Report

_RULE_OF = {"operands": "V-OPERAND", "types": "V-TYPE", "shapes": "V-SHAPE", "static": "V-STATIC"}
_REMEMBERED = 4096
"""Instructions that differ in more than addresses are few, but for hostile programs, which may not fill the memory."""


def check(program: Program, report: Report) -> None:
    """Report what `isa.typing.check` complains of. Instructions alike but for addresses are asked about once."""
    complaints: dict[Hashable, list[typing.Complaint]] = {}
    shapes: dict[int, Hashable] = {}
    for index, instruction in enumerate(program.instructions):
        key = _key(instruction, shapes)
        found = complaints.get(key)
        if found is None:
            if len(complaints) >= _REMEMBERED:
                complaints.clear()
            found = complaints[key] = typing.check(instruction)
        for complaint in found:
            rule = _RULE_OF.get(complaint.rule, f"{instruction.row.mnemonic}.{complaint.rule}")
            report.reject(rule, f"{instruction.name}: {complaint.message}", index)


def _key(instruction: Instruction, shapes: dict[int, Hashable]) -> Hashable:
    """Everything that typing looks at. Attributes carry their type: 1, 1.0 and True are equal but not alike."""
    views = tuple([None if d is None else shapes.get(id(d)) or _shape(d, shapes) for d in instruction.operands])
    values = instruction.attributes
    attributes = tuple([(n, type(v), tuple(v) if isinstance(v, list) else v) for n, v in values.items()])
    return instruction.row.opcode, instruction.sub, views, attributes


def _shape(descriptor: Descriptor, shapes: dict[int, Hashable]) -> Hashable:
    key = (descriptor.segment, descriptor.dtype, descriptor.dims, descriptor.strides)
    shapes[id(descriptor)] = key
    return key
