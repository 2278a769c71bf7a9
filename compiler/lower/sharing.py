"""Whether an instruction may write where it reads, as the verifier will ask."""

from __future__ import annotations

from collections.abc import Sequence

from dla.compiler import dims
from dla.compiler.lower.drafts import placed
from dla.compiler.lower.registers import Registers
from dla.compiler.lower.storage import View
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.table import Alias, Role, Row
from dla.isa.verifier import strides


def in_the_way(registers: Registers, row: Row, operands: Sequence[View | None]) -> list[int]:
    """Positions of inputs that may share memory with an output, in a way that `row` does not allow.

    Parts of a CONCAT along an axis of symbolic size are such: each has its place, but no descriptor can tell how far
    from the others.
    """
    pairs = [(k, spec, view) for k, (spec, view) in enumerate(zip(row.operands, operands, strict=False))
             if view is not None]  # fmt: skip
    written = [view for _, spec, view in pairs if spec.role is Role.OUT]
    return [
        k
        for k, spec, view in pairs
        if spec.role is Role.IN
        and any(
            view.storage is out.storage
            and not ((row.alias is Alias.SAME or spec.may_be_output) and view.canonical == out.canonical)
            and not _disjoint(registers, view, out)
            for out in written
        )
    ]


def _disjoint(registers: Registers, a: View, b: View) -> bool:
    """Whether two views of one storage have no element in common, as far as descriptors tell."""
    first, second = (_descriptor(registers, view) for view in (a, b))
    if (first.offset_register, first.offset_scale) == (second.offset_register, second.offset_scale):
        return strides.disjoint(first, second)
    size = a.storage.dtype.itemsize
    (low_a, high_a), (low_b, high_b) = (dims.interval(view.offset) for view in (a, b))
    return high_a * size + first.span <= low_b * size or high_b * size + second.span <= low_a * size


def _descriptor(registers: Registers, view: View) -> Descriptor:
    """`view` as if its storage began at 0."""
    place, size = placed(registers, view), view.storage.dtype.itemsize
    return Descriptor(Segment.SCRATCH, view.storage.dtype, place.dims, view.strides, place.number * size,
                      place.register, place.factor * size)  # fmt: skip
