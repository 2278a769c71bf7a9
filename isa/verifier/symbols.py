"""V-NAME, V-TENSOR, V-DIM, V-CONST: the names of a program and what they stand for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dla.isa.descriptor import MAX_DIM, Descriptor, Segment, contiguous_strides
from dla.isa.names import is_identifier, shown
from dla.isa.program import Program, Tensor
from dla.isa.verifier.fields import descriptor_problem
from dla.isa.verifier.registers import written
from dla.isa.verifier.rules import Report
from dla.isa.weights import is_inside

Span = tuple[int, int, str]
"""First byte, byte after the last, and what is there."""


def check(program: Program, report: Report) -> None:
    """Report every broken rule about names, tensors, dims and constants."""
    _check_names(program, report)
    for tensor in program.tensors:
        problem = _tensor_problem(tensor, program)
        if problem is not None:
            report.reject("V-TENSOR", f"tensor {shown(tensor.name)} {problem}")
    for segment in (Segment.INPUT, Segment.OUTPUT, Segment.STATE):
        spans = [_span(t) for t in program.in_segment(segment) if t.descriptor.span]
        for first, second in _overlaps(spans):
            report.reject("V-TENSOR", f"{segment.text} tensors {first} and {second} overlap")
    _check_dims(program, report)
    _check_constants(program, report)


def _span(tensor: Tensor) -> Span:
    start = tensor.descriptor.offset
    return start, start + tensor.descriptor.span, shown(tensor.name)


def _check_names(program: Program, report: Report) -> None:
    if not is_identifier(program.name):
        report.reject("V-NAME", f"the program's name, {shown(program.name)!r}, is not an identifier")
    seen: set[str] = set()
    for name in [t.name for t in program.tensors] + [d.name for d in program.dims]:
        if not is_identifier(name):
            report.reject("V-NAME", f"{shown(name)!r} is not an identifier")
        elif name in seen:
            report.reject("V-NAME", f"two tensors or dims are named {name}")
        seen.add(name)


def _tensor_problem(tensor: Tensor, program: Program) -> str | None:
    view: Descriptor = tensor.descriptor
    problem = descriptor_problem(view)
    if problem is not None:
        return f"is not a tensor: {problem}"
    if view.strides != contiguous_strides(view.dims):
        return "is not contiguous"
    if view.offset_register is not None:
        return "has an address in a register"
    if view.offset % view.dtype.itemsize:
        return f"begins at byte {view.offset}, not a multiple of its element size"
    size = program.segment_bytes.get(view.segment, 0)
    if view.offset + view.span > size:
        return f"ends at byte {view.offset + view.span} of segment {view.segment.text}, which has {size}"
    return None


def _check_dims(program: Program, report: Report) -> None:
    owners: dict[int, str] = {}
    for dim in program.dims:
        if not 0 <= dim.register < 32 or not 0 <= dim.bound <= MAX_DIM:
            report.reject("V-DIM", f"dim {shown(dim.name)} is in register {dim.register}, up to {dim.bound}")
        elif dim.register in owners:
            report.reject("V-DIM", f"dims {owners[dim.register]} and {shown(dim.name)} share s{dim.register}")
        owners[dim.register] = shown(dim.name)
    for index, instruction in enumerate(program.instructions):
        for register in written(instruction):
            if register.writable and register.is_int and register.index in owners:
                report.reject("V-DIM", f"{instruction.name} writes {register}, which holds dim "
                                       f"{owners[register.index]}", index, "use another register")  # fmt: skip


def _check_constants(program: Program, report: Report) -> None:
    size = program.segment_bytes.get(Segment.CONST, 0)
    for block in program.constants:
        if block.data.dtype != np.uint8 or block.data.ndim != 1:
            report.reject("V-CONST", f"the block at byte {block.offset} is not an array of bytes")
    for entry in program.external:
        if not is_inside(entry.file):
            report.reject("V-CONST", f"{shown(entry.file)!r} is not a path inside the program's folder")
        if entry.nbytes < 1:
            report.reject("V-CONST", f"external tensor {shown(entry.key)} has {entry.nbytes} bytes")
    inline = [(b.offset, b.offset + b.data.nbytes, f"bytes at {b.offset}") for b in program.constants]
    beside = [(e.offset, e.offset + e.nbytes, f"external tensor {shown(e.key)}") for e in program.external]
    cut = [_span(program.by_name[shard.tensor]) for shard in program.shards if shard.tensor in program.by_name]
    for spans in (inline, beside):
        if any(a > b for (a, *_), (b, *_) in itertools.pairwise(spans)):
            report.reject("V-CONST", "constants are not sorted by offset")
    for start, end, what in inline + beside:
        if start < 0 or end > size:
            report.reject("V-CONST", f"{what} end at byte {end} of the const segment, which has {size}")
    for first, second in _overlaps([s for s in inline + beside + cut if s[0] < s[1]]):
        report.reject("V-CONST", f"{first} and {second} overlap")


def _overlaps(spans: Sequence[Span]) -> list[tuple[str, str]]:
    """Neighbours (by address) that overlap: not all pairs, but some wherever there are any."""
    ordered = sorted(spans)
    return [(a[2], b[2]) for a, b in itertools.pairwise(ordered) if b[0] < a[1]]
