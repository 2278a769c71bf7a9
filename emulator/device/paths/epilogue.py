"""Which epilogues of products can be done in registers (kernel/hopper/finish.cuh)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dla.isa.descriptor import Descriptor
from dla.isa.program import Instruction

FAST_ACTIVATIONS = ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""Those that kernel/hopper/finish.cuh has."""


@dataclass(frozen=True)
class Operand:
    """A view broadcast to the rank of the result; strides in elements, 0 where it is broadcast."""

    descriptor: Descriptor
    strides: tuple[int, ...]

    @property
    def item(self) -> int:
        return self.descriptor.dtype.itemsize


def broadcast(descriptor: Descriptor, dims: Sequence[int]) -> Operand:
    """`descriptor` as a view of as many axes as `dims` has."""
    lead = len(dims) - descriptor.rank
    strides = tuple(
        0 if own == 1 and dim != 1 else stride
        for own, dim, stride in zip(descriptor.dims, dims[lead:], descriptor.strides, strict=True)
    )
    return Operand(descriptor, (0,) * lead + strides)


def is_fast(instruction: Instruction) -> bool:
    """Whether registers will do for a GEMM or CONV: activations that they have, operands whose pairs are one access."""
    out = instruction.operand("out")
    assert out is not None
    attributes, dims = instruction.attributes, out.bounds
    if attributes.get("act", "identity") not in FAST_ACTIVATIONS:
        return False
    if instruction.sub == "glu":
        return not attributes.get("steps") and out.dtype.itemsize == 2
    extras = list(_extras(instruction, dims))
    return not extras or (dims[-1] % 2 == 0 and all(_has_pairs(operand) for operand in extras))


def bias_is_early(instruction: Instruction) -> bool:
    """Whether all rows have one bias, of 16-bit floats, which can be fetched before the products."""
    out, bias = instruction.operand("out"), instruction.operand("bias")
    if out is None or bias is None or bias.dtype.itemsize != 2:
        return False
    return not any(broadcast(bias, out.bounds).strides[:-1])


def _extras(instruction: Instruction, dims: Sequence[int]) -> Iterator[Operand]:
    for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
        if descriptor is not None and spec.name in ("c", "bias", "residual", "gate"):
            yield broadcast(descriptor, dims)


def _has_pairs(operand: Operand) -> bool:
    """Whether two neighbours of a row are one aligned access."""
    descriptor, pair = operand.descriptor, 2 * operand.item
    starts = (descriptor.offset, descriptor.offset_scale, *(s * operand.item for s in operand.strides[:-1]))
    return operand.strides[-1] == 1 and all(start % pair == 0 for start in starts)
