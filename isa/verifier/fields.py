"""V-SIZE, V-FIELD, V-SEGMENT, V-DEBUG: whether the program could be written to a file at all.

Programs that were read from a file hold by construction; those built in memory may not. Everything after this module
relies on it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from dla.isa.attributes import pack
from dla.isa.descriptor import MAX_DIM, MAX_OFFSET, MAX_RANK, Descriptor, Dynamic, Segment, bound_of
from dla.isa.instructions import BY_OPCODE
from dla.isa.names import debug_problems
from dla.isa.program import MAX_INSTRUCTIONS, MAX_TENSORS, Instruction, Program
from dla.isa.verifier.rules import Report

MAX_SEGMENT_BYTES = 2**40


def check(program: Program, report: Report) -> None:
    """Report every field that has no encoding."""
    if not 1 <= len(program.instructions) <= MAX_INSTRUCTIONS or len(program.tensors) > MAX_TENSORS:
        report.reject("V-SIZE", f"{len(program.instructions)} instructions and {len(program.tensors)} tensors")
        return
    _check_segments(program, report)
    if program.debug is not None:
        for what in debug_problems(program.debug, len(program.instructions)):
            report.reject("V-DEBUG", what)
    sound: set[int] = set()  # ids of descriptors seen: programs share them, and the program keeps them alive
    for index, instruction in enumerate(program.instructions):
        problem = _field_problem(instruction, sound)
        if problem is not None:
            report.reject("V-FIELD", problem, index)


def _check_segments(program: Program, report: Report) -> None:
    sizes = {segment: program.segment_bytes.get(segment, 0) for segment in Segment}
    for segment, size in sizes.items():
        if not 0 <= size <= MAX_SEGMENT_BYTES:
            report.reject("V-SEGMENT", f"segment {segment.text} has {size} bytes")
    if sum(sizes.values()) > MAX_SEGMENT_BYTES:
        report.reject("V-SEGMENT", f"the segments have {sum(sizes.values())} bytes together")


def _field_problem(instruction: Instruction, sound: set[int]) -> str | None:
    row = instruction.row
    if BY_OPCODE.get(row.opcode) is not row:
        return f"{row.mnemonic} is not in the instruction table"
    if (instruction.sub not in row.sub_codes) if row.subs else bool(instruction.sub):
        return f"{row.mnemonic} has no sub-operation {instruction.sub!r:.80}"
    if len(instruction.operands) != len(row.operands):
        return f"{row.mnemonic} has {len(row.operands)} operands, not {len(instruction.operands)}"
    unknown = instruction.attributes.keys() - row.all_attributes.keys()
    if unknown:
        return f"{row.mnemonic} has no attribute {min(map(str, unknown))!r:.80}"
    for descriptor in instruction.operands:
        if descriptor is not None and id(descriptor) not in sound:
            problem = descriptor_problem(descriptor)
            if problem is not None:
                return problem
            sound.add(id(descriptor))
    return _attribute_problem(instruction)


def _attribute_problem(instruction: Instruction) -> str | None:
    attributes: Mapping[str, Any] = instruction.attributes
    missing = instruction.row.missing(attributes)
    if missing:
        return f"attribute {missing[0]} is missing"
    try:
        for group in (instruction.row.attributes, *(r.attributes for r in instruction.row.records)):
            pack(group, attributes)
    except ValueError as error:
        return str(error)
    return None


def descriptor_problem(descriptor: Descriptor) -> str | None:
    """Why `descriptor` has no encoding, or None."""
    if descriptor.rank > MAX_RANK or len(descriptor.strides) != descriptor.rank:
        return (
            f"a view has {descriptor.rank} dims and {len(descriptor.strides)} strides; at most {MAX_RANK} are possible"
        )
    if any(not 0 <= bound_of(d) <= MAX_DIM for d in descriptor.dims):
        return "a dim is negative or larger than 2**40"
    if any(not 0 <= s <= MAX_DIM for s in descriptor.strides):
        return "a stride is negative or larger than 2**40"
    if not 0 <= descriptor.offset <= MAX_OFFSET or abs(descriptor.offset_scale) > MAX_OFFSET:
        return "an offset or its scale is out of range"
    if descriptor.offset_register is None and descriptor.offset_scale:
        return "a view has an offset scale but no offset register"
    registers = [d.register for d in descriptor.dims if isinstance(d, Dynamic)]
    if any(not 0 <= r < 32 for r in (*registers, descriptor.offset_register or 0)):
        return "a view uses a register beyond s31"
    try:
        descriptor.encode()
    except (struct.error, TypeError) as error:
        return f"a view has no encoding: {error}"
    return None
