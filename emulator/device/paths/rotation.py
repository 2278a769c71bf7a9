"""An ATTENTION of one query that need not wait for the ROPE in front of it, nor for the product in front of that.

A decode step appends a line to its cache, in which a key and, behind it, the queries are still to be rotated: ROPE does
that in place, for whoever comes later, and ATTENTION reads both. If it takes query, key and value as they come from the
product, and rotates them in registers, there are two signals less. It uses nothing of that line in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from dla.emulator.blocks import block_starts, register_accesses
from dla.emulator.device.paths.stream import is_row_major
from dla.emulator.device.paths.tensor_map import ALIGNMENT
from dla.emulator.device.paths.types import Context
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction, Program
from dla.isa.registers import Register, s


@dataclass(frozen=True)
class Rotation:
    """What an ATTENTION has to know for it."""

    bytes: int  # of the product's result
    offset: int  # of the query there
    tables: tuple[Descriptor, Descriptor]  # cosines and sines


def in_front(program: Program, index: int, begin: int) -> tuple[int, int] | None:
    """The last two instructions with operands between `begin` and `index`, if their registers hold the same there."""
    written: set[Register | str] = set()
    last = None
    for at in range(index - 1, begin - 1, -1):
        reads, writes = register_accesses(program.instructions[at])
        if program.instructions[at].row.operands:
            if reads & written:
                return None
            if last is not None:
                return at, last
            last = at
        written |= writes
    return None


def find(program: Program, places: tuple[int, int, int], context: Context) -> Rotation | None:
    """How an ATTENTION does without the ROPE in front of it, and the product in front of that; None if it cannot.

    The product, whose place is the first, is a streamed one, and keys are held in registers.
    """
    index = places[-1]
    product, rope, attention = (program.instructions[at] for at in places)
    if rope.row.mnemonic != "ROPE" or rope.attributes.get("interleaved"):
        return None
    made, x, turned, cos, sin = _operands(product, "out") + _operands(rope, "x", "out", "cos", "sin")
    out, q, k, v = _operands(attention, "out", "q", "k", "v")
    if (
        x != turned
        or x.rank != 4
        or not all(map(is_row_major, (made, x, q)))
        or {x.dtype, q.dtype, k.dtype, v.dtype} != {made.dtype}
    ):
        return None
    (batch, heads, length, depth), of_keys = x.bounds, k.bounds[1]
    if (batch, length) != (1, 1) or q.bounds != (1, heads - of_keys, 1, depth) or (k.bounds[0], v.bounds[0]) != (1, 1):
        return None
    if any(d.bounds[1] != of_keys or d.strides[1] != depth for d in (k, v)) or made.elements != made.bounds[-1]:
        return None
    if any(isinstance(dim, Dynamic) for d in (made, x) for dim in d.dims):
        return None
    width = of_keys * depth * made.dtype.itemsize
    offsets = [
        _offset(line, made, size)
        for line, size in ((x, x.span), (_last(program, index, k), width), (_last(program, index, v), width))
    ]
    query, key, value = _offset(q, made, q.span), offsets[1], offsets[2]
    if (
        query is None
        or key is None
        or value is None
        or key != offsets[0]
        or query != key + width
        or key - width < value < key + x.span
    ):
        return None
    if any(at + width > d.strides[2] * d.dtype.itemsize for at, d in ((key, k), (value, v))):
        return None  # the line before the last one is the product's, too
    others = [d for i in (product, rope) for d in i.operands if d is not None]
    low, high = context.reach.of(out)
    for d in others:
        begin, end = context.reach.of(d)
        if d.segment is out.segment and begin < high and low < end:
            return None
    return (
        Rotation(made.span, query, (cos, sin)) if all(_is_table(t, depth // 2, context) for t in (cos, sin)) else None
    )


def _operands(instruction: Instruction, *names: str) -> tuple[Descriptor, ...]:
    return tuple(d for name in names if (d := instruction.operand(name)) is not None)


def _offset(d: Descriptor | None, made: Descriptor, size: int) -> int | None:
    """Where `size` bytes from the begin of `d` on lie in `made`, by the same registers; None if they do not."""
    if d is None or (d.segment, d.offset_register) != (made.segment, made.offset_register):
        return None
    if made.offset_register is not None and d.offset_scale != made.offset_scale:
        return None
    offset = d.offset - made.offset
    return offset if 0 <= offset <= made.span - size and offset % ALIGNMENT == 0 else None


def _last(program: Program, index: int, d: Descriptor) -> Descriptor | None:
    """A view that begins with the last line of keys or values of ATTENTION `index`."""
    count, pitch = d.dims[2], d.strides[2] * d.dtype.itemsize
    if not isinstance(count, Dynamic):
        return Descriptor(
            d.segment, d.dtype, (1,), (1,), d.offset + (count - 1) * pitch, d.offset_register, d.offset_scale
        )
    if d.offset_register is not None:
        return None
    fewer = _less(program, index, count.register)
    if fewer is None:
        return None
    other, by = fewer
    return Descriptor(d.segment, d.dtype, (1,), (1,), d.offset + (by - 1) * pitch, other, pitch)


def _less(program: Program, index: int, register: int) -> tuple[int, int] | None:
    """A register, and how much less it holds than `register` at instruction `index`, if the code before it says so."""
    starts = block_starts(program)
    written = set()
    for at in range(index - 1, -1, -1):
        instruction = program.instructions[at]
        writes = register_accesses(instruction)[1]
        if s(register) in writes:
            attributes = instruction.attributes
            source = attributes.get("a")
            by = attributes.get("b")
            plain = instruction.row.mnemonic == "ALU" and instruction.sub == "add"
            found = next((r for r in range(32) if plain and source == s(r)), None)
            if found in (None, register) or s(found) in written or not isinstance(by, int):
                return None
            return found, by
        written |= writes
        if at in starts:
            return None
    return None


def _is_table(d: Descriptor, pairs: int, context: Context) -> bool:
    """Whether `d` is one line of f32 that nothing in the program writes."""
    one = d.bounds[-1] == d.elements == pairs and d.strides[-1] == 1 and not any(isinstance(n, Dynamic) for n in d.dims)
    aligned = d.offset % ALIGNMENT == d.offset_scale % ALIGNMENT == 0
    return one and d.dtype is DType.F32 and aligned and context.is_constant(d)
