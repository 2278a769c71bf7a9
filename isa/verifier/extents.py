"""V-EXTENT, V-ALIGN, V-READONLY: every operand lies in its segment, whatever the registers hold.

Where registers take part, three answers are possible: every value fits (proven), no value fits (rejected), or it
depends; then the machine checks at run time and traps. `unproven` lists the last kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.program import Program
from dla.isa.reach import Reach
from dla.isa.table import Role
from dla.isa.verifier.rules import Report
from dla.isa.verifier.scalars import Interval, States

Operand = tuple[int, str]
"""Instruction index and operand name."""


def check(program: Program, states: States, report: Report) -> frozenset[Operand]:
    """Report operands that cannot lie in their segments; the operands that the machine must check at run time."""
    unproven: set[Operand] = set()
    reach = Reach(program)
    sound: set[int] = set()  # ids of static descriptors that are all right
    for index, instruction in enumerate(program.instructions):
        registers = states.get(index)
        for spec, view in zip(instruction.row.operands, instruction.operands, strict=True):
            if view is None:
                continue
            if spec.role is Role.OUT and not view.segment.writable:
                report.reject("V-READONLY", f"{spec.name} of {instruction.name} is in segment {view.segment.text}, "
                                            "which cannot be written", index)  # fmt: skip
            if id(view) in sound:
                continue
            low, high = reach.limits(view)
            problems = list(_problems(view, low, high, registers))
            for rule, problem in problems:
                report.reject(rule, f"{spec.name} of {instruction.name} {problem}", index)
            if view.is_dynamic:
                if registers is None or not _proven(view, low, high, registers):
                    unproven.add((index, spec.name))
            elif not problems:
                sound.add(id(view))
    return frozenset(unproven)


def address(view: Descriptor, registers: Sequence[Interval]) -> Interval:
    """Smallest and largest byte address of the view's first element."""
    if view.offset_register is None:
        return view.offset, view.offset
    ends = [view.offset + value * view.offset_scale for value in registers[view.offset_register]]
    return min(ends), max(ends)


def _problems(
    view: Descriptor, first: int, end: int, registers: Sequence[Interval] | None
) -> Iterator[tuple[str, str]]:
    """Rules that `view` breaks for certain, if its bytes must lie in first..end (exclusive).

    A view without elements has no bytes: it may begin anywhere. `registers` is None where the instruction is never
    reached.
    """
    itemsize = view.dtype.itemsize
    where = f"bytes {first} to {end} of segment {view.segment.text}"
    if view.offset % itemsize or view.offset_scale % itemsize:
        yield "V-ALIGN", f"is not at a multiple of its element size, {itemsize} bytes"
    if view.offset_register is None:
        if view.span and view.offset + view.span > end:
            yield "V-EXTENT", f"ends at byte {view.offset + view.span}, outside of {where}"
    elif registers is not None:
        low, high = address(view, registers)
        span = _smallest_span(view, registers)
        if span and (high < first or low + span > end):
            yield "V-EXTENT", f"begins at byte {_show(low, high)}, and lies outside of {where}"
    for dim in view.dims:
        if registers is not None and isinstance(dim, Dynamic):
            low, high = registers[dim.register]
            if high < 0 or low > dim.bound:
                yield "V-EXTENT", f"has dim {dim}, but s{dim.register} is always {_show(low, high)} there"


def _show(low: int, high: int) -> str:
    return str(low) if low == high else f"from {low} to {high}"


def _smallest_span(view: Descriptor, registers: Sequence[Interval]) -> int:
    """Bytes from the first element to the end of the last, where dynamic dims are as small as they can be."""
    dims = [max(0, registers[d.register][0]) if isinstance(d, Dynamic) else d for d in view.dims]
    if 0 in dims:
        return 0
    return (sum((d - 1) * s for d, s in zip(dims, view.strides, strict=True)) + 1) * view.dtype.itemsize


def _proven(view: Descriptor, first: int, end: int, registers: Sequence[Interval]) -> bool:
    """Whether every value of the registers gives a view inside first..end, with dims inside their bounds."""
    low, high = address(view, registers)
    dims_fit = all(
        registers[d.register][0] >= 0 and registers[d.register][1] <= d.bound
        for d in view.dims
        if isinstance(d, Dynamic)
    )
    return dims_fit and low >= first and high + view.span <= end
