"""Which epilogues of products can be done in registers (kernel/hopper/finish.cuh)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.program import Instruction

FAST_ACTIVATIONS = ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""Those that kernel/hopper/finish.cuh has."""
BOX_ACTIVATIONS = FAST_ACTIVATIONS[:4]
"""Those that leave by the copy engine: what follows the products has code of its own, without a call."""
PIECE_ROWS, PIECE_COLUMNS = 16, 64
"""What a warp finishes at a time."""
TALL_BOX_ROWS = 64
"""What a warpgroup finishes at a time of a tall tile, as wide."""
CHUNK = 8
"""Elements of 16 bits that one lane stores at a time: 16 bytes."""


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
    found = list(extras(instruction, dims))
    return not found or (dims[-1] % 2 == 0 and all(_has_pairs(operand) for operand in found))


def is_in_lines(instruction: Instruction) -> bool:
    """Whether results that registers finish can be stored in whole lines, as kernel/hopper/finish_lines.cuh does it.

    Of 16-bit floats that are neighbours in rows; a bias is early, and of their type. A residual lies as the result
    does, and in chunks; so does the result of a gated linear unit.
    """
    out, bias, residual = (instruction.operand(name) for name in ("out", "bias", "residual"))
    steps: tuple[str, ...] = instruction.attributes.get("steps", ())
    assert out is not None
    if out.dtype.itemsize != 2 or not _has_rows(out):
        return False
    if "c" in _present(instruction) or not set(steps) <= {"bias", "act", "residual"}:
        return False
    if bias is not None and bias.dtype is not out.dtype:
        return False
    if "bias" in steps and not (
        steps[0] == "bias" and instruction.attributes.get("alpha", 1.0) == 1.0 and bias_is_early(instruction)
    ):
        return False
    if residual is not None:
        return is_in_chunks(out) and _lies_as(residual, out)
    return instruction.sub != "glu" or is_in_chunks(out)


def is_in_boxes(instruction: Instruction) -> bool:
    """Whether the copy engine can store what is_in_lines and is_in_chunks hold for: all of it, or nothing of a line."""
    out, attributes = instruction.operand("out"), instruction.attributes
    assert out is not None
    return (
        instruction.sub != "glu"
        and set(attributes.get("steps", ())) <= {"bias", "act"}
        and attributes.get("act", "identity") in BOX_ACTIVATIONS
        and attributes.get("alpha", 1.0) == 1.0
        and not any(isinstance(dim, Dynamic) for dim in out.dims)
    )


def is_low(instruction: Instruction) -> bool:
    """Whether kernel/hopper/low.cuh can finish what is_in_lines holds for."""
    return instruction.sub != "glu" and instruction.attributes.get("alpha", 1.0) == 1.0


def is_together(instruction: Instruction) -> bool:
    """Whether kernel/hopper/together.cuh can finish what is_in_lines and is_in_chunks hold for."""
    steps: tuple[str, ...] = instruction.attributes.get("steps", ())
    return is_low(instruction) and not ("act" in steps and "residual" in steps[steps.index("act") :])


def is_in_chunks(out: Descriptor) -> bool:
    """Whether rows of 16-bit elements are made of whole, aligned chunks of 16 bytes, at distances of 32 bits."""
    return not isinstance(out.dims[-1], Dynamic) and out.dims[-1] % CHUNK == 0 and _has_chunks(out)


def bias_is_early(instruction: Instruction) -> bool:
    """Whether all rows have one bias, of 16-bit floats, which can be fetched before the products."""
    out, bias = instruction.operand("out"), instruction.operand("bias")
    if out is None or bias is None or bias.dtype.itemsize != 2:
        return False
    return not any(broadcast(bias, out.bounds).strides[:-1])


def _has_rows(d: Descriptor) -> bool:
    """Whether 16-bit elements are neighbours in rows, at distances of 32 bits."""
    return d.strides[-1] == 1 and all(0 <= 2 * step < 2**32 for step in d.strides[:-1])


def _has_chunks(d: Descriptor) -> bool:
    """Whether rows of 16-bit elements begin at aligned chunks of 16 bytes, at distances of 32 bits."""
    starts = (*(2 * step for step in d.strides[:-1]), d.offset, d.offset_scale)
    return _has_rows(d) and all(start % (2 * CHUNK) == 0 for start in starts)


def _lies_as(operand: Descriptor, out: Descriptor) -> bool:
    """Whether each element of `operand` is as far from its first as that of `out` is from its first."""
    strides = broadcast(operand, out.bounds).strides
    alike = all(dim == 1 or a == b for dim, a, b in zip(out.bounds, strides, out.strides, strict=True))
    return operand.dtype is out.dtype and alike and _has_chunks(operand)


def _present(instruction: Instruction) -> dict[str, Descriptor]:
    """The operands that the instruction has, by name."""
    pairs = zip(instruction.row.operands, instruction.operands, strict=True)
    return {spec.name: descriptor for spec, descriptor in pairs if descriptor is not None}


def extras(instruction: Instruction, dims: Sequence[int]) -> Iterator[Operand]:
    """The operands that meet the sums, broadcast to the result."""
    for name, descriptor in _present(instruction).items():
        if name in ("c", "bias", "residual", "gate"):
            yield broadcast(descriptor, dims)


def _has_pairs(operand: Operand) -> bool:
    """Whether two neighbours of a row are one aligned access."""
    descriptor, pair = operand.descriptor, 2 * operand.item
    starts = (descriptor.offset, descriptor.offset_scale, *(s * operand.item for s in operand.strides[:-1]))
    return operand.strides[-1] == 1 and all(start % pair == 0 for start in starts)
