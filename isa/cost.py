"""What an instruction costs: operations and bytes. The profiler's roofline stands on these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dla.isa import shapes
from dla.isa.descriptor import Descriptor, Dim, Dynamic
from dla.isa.program import Instruction
from dla.isa.table import Role


def sized(instruction: Instruction, sizes: Mapping[int, int]) -> Instruction:
    """`instruction` with the dims that integer registers hold as constants: by `sizes`, else their bounds.

    A size beyond a dim's bound, which machines refuse, counts as the bound.
    """

    def one(dim: Dim) -> Dim:
        return min(sizes.get(dim.register, dim.bound), dim.bound) if isinstance(dim, Dynamic) else dim

    operands = tuple(d and replace(d, dims=tuple(one(dim) for dim in d.dims)) for d in instruction.operands)
    return replace(instruction, operands=operands)


def flops(instruction: Instruction) -> int:
    """Operations of `instruction` by its row's formula, at the bounds of dynamic dims."""
    row = instruction.row
    bindings = shapes.Bindings({}, {})
    sizes: dict[str, int] = {}
    for operand, descriptor in zip(row.operands, instruction.operands, strict=True):
        sizes[operand.name] = 0 if descriptor is None else descriptor.elements
        if descriptor is not None:
            shapes.unify(shapes.parse(operand.shape), descriptor.dims, bindings, operand.name)
    sizes |= {name: bindings.size(name) for name in bindings.dims}
    return row.flops(sizes, row.with_defaults(instruction.attributes))


def bytes_moved(instruction: Instruction) -> int:
    """Bytes that must cross between memory and the machine: each operand once, repeated elements not again.

    Of the operand that the row calls `picked` only as many elements count as are written.
    """
    row = instruction.row
    present = [(o, d) for o, d in zip(row.operands, instruction.operands, strict=True) if d is not None]
    written = sum(_distinct(d) for o, d in present if o.role is Role.OUT)
    total = 0
    for operand, descriptor in present:
        elements = _distinct(descriptor)
        total += (min(elements, written) if operand.name == row.picked else elements) * descriptor.dtype.itemsize
    return total


def _distinct(descriptor: Descriptor) -> int:
    """Elements at different addresses, as far as strides of 0 tell."""
    if descriptor.elements == 0:
        return 0
    return math.prod(n for n, stride in zip(descriptor.bounds, descriptor.strides, strict=True) if stride)
