"""The plan: what the device machine derives from bytecode when it loads a program. Data for the kernel, never code.

For each instruction: its word with operand slots pointing at resolved tensors (device addresses, broadcast to the
shapes they meet), the completion counters it waits for and the one it signals, and the block its first tile goes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dla.emulator.conflicts import conflicts
from dla.emulator.device.layout import CHUNK_WORDS, COUNTERS, MAX_WAITS, TENSOR, WAIT_FOR_ALL
from dla.isa import shapes
from dla.isa.attributes import pack
from dla.isa.descriptor import MAX_RANK, Descriptor, Dim, Dynamic, Segment, bound_of
from dla.isa.dtypes import Array
from dla.isa.encoding import WORD_BYTES, encode
from dla.isa.errors import InputError
from dla.isa.program import Instruction, Program
from dla.isa.reach import Range, Reach
from dla.isa.table import OPERAND_SLOTS, RECORD_SLOTS, Exec, Row


@dataclass(frozen=True)
class Plan:
    """Tables for the kernel; layout.py's LAUNCH says what each holds."""

    words: Array  # u32 [instructions + padding, 16]
    records: Array  # u32 [n, 16]
    operands: Array  # TENSOR [n]; entry 0 is an absent operand
    waits: Array  # u32 [instructions, 4]: first wait, number of waits, signal counter, first block
    wait_lists: Array  # u32 [n]
    probes: tuple[int, ...]  # index of the PROBE that reports in each slot


@dataclass
class _Tables:
    """Operands and records, interned while the plan is made."""

    operands: dict[tuple[Descriptor, tuple[Dim, ...]], int] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    targets: dict[Any, tuple[tuple[Dim, ...] | None, ...]] = field(default_factory=dict)
    probes: list[int] = field(default_factory=list)


def build(program: Program, bases: Mapping[Segment, int]) -> Plan:
    """The plan of a verified `program` whose segments lie at device addresses `bases`.

    Raises InputError for a tensor with a dim that the device machine cannot count (2**31 and more).
    """
    tables = _Tables()
    code = encode(program.instructions)
    words = np.zeros((len(code.words) + 2 * CHUNK_WORDS, WORD_BYTES // 4), np.uint32)
    words[: len(code.words)] = np.frombuffer(b"".join(code.words), np.uint32).reshape(-1, WORD_BYTES // 4)
    first_operand, first_record = OPERAND_SLOTS[0][0] // 32, RECORD_SLOTS[0][0] // 32
    for index, instruction in enumerate(program.instructions):
        row = instruction.row
        if row.operands:
            slots = _operand_slots(instruction, tables)
            words[index, first_operand : first_operand + len(slots)] = slots
        for k, record in enumerate(row.records):
            bits = pack(record.attributes, instruction.attributes)
            words[index, first_record + k] = tables.records.setdefault(bits, len(tables.records) + 1)
        if row.mnemonic == "PROBE":
            words[index, row.all_attributes["tag"].at // 32] = len(tables.probes)
            tables.probes.append(index)
    waits, wait_lists = _waits(program)
    return Plan(
        words, _records(tables), _operands(tables, Reach(program), bases), waits, wait_lists, tuple(tables.probes)
    )


# ---- operands ----


def _operand_slots(instruction: Instruction, tables: _Tables) -> list[int]:
    """Index of each operand in the plan's table, 0 for an absent one."""
    key = (instruction.row.opcode, tuple(d and d.dims for d in instruction.operands))
    targets = tables.targets.get(key)
    if targets is None:
        targets = tables.targets[key] = _targets(instruction.row, instruction.operands)
    slots = []
    for descriptor, target in zip(instruction.operands, targets, strict=True):
        if descriptor is None or target is None:
            slots.append(0)
        else:
            slots.append(tables.operands.setdefault((descriptor, target), len(tables.operands) + 1))
    return slots


def _targets(row: Row, operands: Sequence[Descriptor | None]) -> tuple[tuple[Dim, ...] | None, ...]:
    """The dims that each operand has, or broadcasts to, in this instruction."""
    bindings = shapes.Bindings({}, {})
    targets: list[tuple[Dim, ...] | None] = []
    for spec, descriptor in zip(row.operands, operands, strict=True):
        if descriptor is None:
            targets.append(None)
            continue
        pattern = shapes.parse(spec.shape)
        shapes.unify(pattern, descriptor.dims, bindings, spec.name)
        if pattern.broadcasts:
            targets.append(shapes.expand(pattern, bindings))
        elif pattern.prefix_broadcasts and pattern.prefix is not None:
            fixed = descriptor.dims[descriptor.rank - len(pattern.fixed) :]
            targets.append(bindings.prefixes[pattern.prefix] + fixed)
        else:
            targets.append(descriptor.dims)
    return tuple(targets)


def _operands(tables: _Tables, reach: Reach, bases: Mapping[Segment, int]) -> Array:
    rows = [(0,) * 2 + ((0,) * MAX_RANK,) * 2 + (0,) * 7 + ((0,) * MAX_RANK, 0, 0, (0,) * 11)]
    for descriptor, target in tables.operands:
        rows.append(_resolve(descriptor, target, bases[descriptor.segment], reach.limits(descriptor)))
    return np.array(rows, TENSOR.dtype)


def _resolve(descriptor: Descriptor, target: tuple[Dim, ...], base: int, limits: Range) -> tuple[Any, ...]:
    """One entry of the operand table: `descriptor` as a view of `target`'s dims, absolute."""
    dims = tuple(bound_of(d) for d in target)
    if any(d >= 2**31 for d in dims):
        raise InputError(f"the GPU machine counts dims up to 2**31 - 1, not {max(dims)}", hint="use --backend golden")
    lead = len(target) - descriptor.rank
    strides = [0] * lead + [
        0 if own == 1 and wanted != 1 else stride
        for own, wanted, stride in zip(descriptor.dims, target[lead:], descriptor.strides, strict=True)
    ]
    registers = [d.register + 1 if isinstance(d, Dynamic) else 0 for d in target]
    offset_register = 0 if descriptor.offset_register is None else descriptor.offset_register + 1
    pad = (0,) * (MAX_RANK - len(target))
    low, high = limits
    return (
        base + descriptor.offset, descriptor.offset_scale, (*strides, *pad), (*dims, *pad), base + low, base + high,
        descriptor.dtype, len(target), _contiguous(dims, strides), bool(offset_register or any(registers)),
        offset_register, (*registers, *pad), 1, descriptor.dtype.itemsize, (0,) * 11,
    )  # fmt: skip


def _contiguous(dims: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim != 1 and stride != step:
            return False
        step *= dim
    return True


def _records(tables: _Tables) -> Array:
    """Entry 0 is unused; absent records of the bytecode stand here in full, defaults written out."""
    data = bytes(WORD_BYTES) + b"".join(bits.to_bytes(WORD_BYTES, "little") for bits in tables.records)
    return np.frombuffer(data, np.uint32).reshape(-1, WORD_BYTES // 4).copy()


# ---- dependencies ----


def _signals(row: Row) -> bool:
    """Whether later instructions may have to wait for this one: it touches memory."""
    return row.unit is Exec.TENSOR or bool(row.operands)


def _waits(program: Program) -> tuple[Array, Array]:
    """Counters to wait for and to signal.

    Signalling instructions share COUNTERS counters round-robin; targets count every arrival that program order puts
    before the waiting instruction. A block that runs ahead must not arrive for a later instruction while another still
    owes an arrival for an earlier one, so an instruction whose counter is shared also waits for that counter itself.
    """
    waits = np.zeros((len(program.instructions), 4), np.uint32)
    lists: list[int] = []
    counter: dict[int, int] = {}
    for index, instruction in enumerate(program.instructions):
        if _signals(instruction.row):
            counter[index] = len(counter) % COUNTERS
    block = 0
    for index, before in enumerate(conflicts(program)):
        if index not in counter:
            continue
        shared = (counter[index],) if len(counter) > COUNTERS else ()
        needed = _counters(counter, before, shared)
        count = WAIT_FOR_ALL if needed is None else len(needed)
        # Work that depends on nothing recent starts on other blocks than the work before it.
        if not before or max(before) < index - 1:
            block += 1
        waits[index] = (len(lists), count, counter[index], block)
        lists += needed or []
    return waits, np.array(lists or [0], np.uint32)


def _counters(counter: Mapping[int, int], before: Sequence[int], shared: tuple[int, ...]) -> list[int] | None:
    """The counters of the instructions `before`, and `shared` ones; None where one warp cannot poll as many.

    Hostile programs name very many instructions: those lists are not even looked at.
    """
    if len(before) > COUNTERS:
        return None
    needed = sorted({*shared, *(counter[j] for j in before)})
    return needed if len(needed) <= MAX_WAITS else None
