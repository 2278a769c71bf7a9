"""Drafts -> Program: addresses for every storage, descriptors for every view, constants, names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dla.compiler import memory
from dla.compiler.lower.drafts import Draft, Lowered, Place, placed
from dla.compiler.lower.storage import Storage, whole
from dla.isa.attributes import Target
from dla.isa.descriptor import MAX_RANK, Descriptor, Segment, contiguous_strides
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError
from dla.isa.names import identifier, shown
from dla.isa.program import (
    MAX_INSTRUCTIONS,
    MAX_TENSORS,
    TENSOR_ALIGNMENT,
    ConstBlock,
    Debug,
    Instruction,
    Program,
    Tensor,
)
from dla.isa.ranks import Shard
from dla.isa.verifier.fields import MAX_SEGMENT_BYTES


def assemble(name: str, lowered: Lowered, source: str = "") -> tuple[Program, memory.Plan]:
    """The program, and the plan of its scratch memory."""
    plan = _plan_scratch(lowered)
    segments = {Segment.SCRATCH: plan.size}
    for segment in (Segment.CONST, Segment.INPUT, Segment.OUTPUT, Segment.STATE):
        segments[segment] = _in_a_row([s for s in lowered.storages if s.segment is segment])
    _check_sizes(lowered, sum(segments.values()))
    placer = _Placer()
    names = _Names({d.name for d in lowered.registers.dims})
    declared = _declared(lowered)
    tensors = [Tensor(names.unique(s.name or s.segment.text), placer.descriptor(placed(lowered.registers, whole(s))))
               for s in declared]  # fmt: skip
    shards = tuple(Shard(t.name, s.cut, 0, _flat(s.array)) for t, s in zip(tensors, declared, strict=True)
                   if s.cut is not None and s.array is not None)  # fmt: skip
    shift = len(lowered.registers.prologue)
    code = [*lowered.registers.prologue, *(placer.instruction(d, shift) for d in lowered.drafts)]
    comments = tuple(("beside", i + shift, f" {_one_line(d.label)}") for i, d in enumerate(lowered.drafts) if d.label)
    program = Program(
        identifier(name), tuple(code), tuple(tensors), tuple(lowered.registers.dims),
        {s: n for s, n in sorted(segments.items()) if n}, _constants(lowered.storages),
        world=lowered.world, shards=shards, debug=Debug(source, comments=comments),
    )  # fmt: skip
    return program, plan


def _check_sizes(lowered: Lowered, total: int) -> None:
    """Raise ModelError for what is larger than a program can be; `total` is the number of bytes of all segments."""
    if total > MAX_SEGMENT_BYTES:
        raise ModelError(f"its tensors have {total:,} bytes at the largest sizes, and a program's have at most 2**40",
                         hint="lower the bounds of its dims")  # fmt: skip
    for name, storage in lowered.held.items():
        if len(storage.dims) > MAX_RANK:
            raise ModelError(f"{storage.segment.text} '{shown(name)}' has rank {len(storage.dims)}; the machine's "
                             f"tensors have at most {MAX_RANK} axes")  # fmt: skip
    if len(lowered.held) > MAX_TENSORS:
        raise ModelError(f"it has more than {MAX_TENSORS:,} inputs, outputs and states")
    count = len(lowered.registers.prologue) + len(lowered.drafts)
    if count > MAX_INSTRUCTIONS:
        raise ModelError(f"it takes {count:,} instructions, and a program has at most {MAX_INSTRUCTIONS:,}")


def _plan_scratch(lowered: Lowered) -> memory.Plan:
    scratch = [s for s in lowered.storages if s.segment is Segment.SCRATCH and s.first is not None]
    plan = memory.plan([memory.Block(s.nbytes, s.first or 0, s.last) for s in scratch], TENSOR_ALIGNMENT)
    for storage, offset in zip(scratch, plan.offsets, strict=True):
        storage.offset = offset
    return plan


def _in_a_row(storages: Iterable[Storage]) -> int:
    """Give storages of one segment their addresses, one after the other. Returns the segment's size."""
    position = 0
    for storage in storages:
        storage.offset = -(-position // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
        position = storage.offset + storage.nbytes
    return position


def _declared(lowered: Lowered) -> list[Storage]:
    """The storages that get a name: everything that is used, in the order of segments.

    Those beyond the first so many, or of more axes than tensors have, go without: names are for people.
    """
    held = {id(s) for s in (*lowered.held.values(), *(s for s in lowered.storages if s.cut is not None))}
    used = [s for s in lowered.storages if id(s) in held or s.segment is Segment.CONST or s.first is not None]
    named = sorted((s for s in used if len(s.dims) <= MAX_RANK), key=lambda s: id(s) not in held)[:MAX_TENSORS]
    kept = {id(s) for s in named}
    return sorted((s for s in used if id(s) in kept), key=lambda s: (s.segment is Segment.SCRATCH, s.segment))


def _constants(storages: Iterable[Storage]) -> tuple[ConstBlock, ...]:
    blocks = []
    for storage in storages:
        if storage.array is not None and storage.cut is None and storage.nbytes:
            blocks.append(ConstBlock(storage.offset, _flat(storage.array)))
    return tuple(blocks)


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Placer:
    """Descriptors of views, now that storages have addresses. Equal views share one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Descriptor] = {}

    def instruction(self, draft: Draft, shift: int) -> Instruction:
        """The finished instruction; indices of others grow by `shift`."""
        operands = tuple(None if p is None else self.descriptor(p) for p in draft.operands)
        specs = draft.row.all_attributes
        attributes = {k: v + shift if isinstance(specs[k], Target) else v for k, v in draft.attributes.items()}
        return Instruction(draft.row, draft.sub, operands, attributes)

    def descriptor(self, place: Place) -> Descriptor:
        """The descriptor of one operand."""
        storage = place.view.storage
        size = storage.dtype.itemsize
        strides = place.view.strides if place.view != whole(storage) else contiguous_strides(place.dims)
        offset = storage.offset + place.number * size
        key = (storage.segment, storage.dtype, place.dims, strides, offset, place.register, place.factor * size)
        if key not in self._made:
            self._made[key] = Descriptor(*key)
        return self._made[key]


class _Names:
    """Identifiers for tensors, each once."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}  # the last one given to each base: bodies of loops repeat their names

    def unique(self, name: str) -> str:
        """`name` as an identifier that nothing else has."""
        base = identifier(name)
        chosen, number = base, self._numbers.get(base, 1)
        while chosen in self._taken:
            number += 1
            chosen = f"{base}_{number}"
        self._numbers[base] = number
        self._taken.add(chosen)
        return chosen


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
