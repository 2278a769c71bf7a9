"""The plan: what the device machine derives from bytecode when it loads a program. Data for the kernel, never code.

For each instruction an image: its word and records, its operands resolved (device addresses, broadcast to the shapes
they meet), the completion counters it waits for and the one it signals, the block its first tile goes to, and how the
machine executes it: by its row's handler or by a hot path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dla.emulator.device import exchange, last_rows, parts
from dla.emulator.device.exchange import Exchange
from dla.emulator.device.generate import handler_numbers
from dla.emulator.device.layout import (
    CHANNELS_SLOT,
    CONTROLLER_ONLY,
    COUNTERS,
    FIRST_DECODED,
    FIRST_PRODUCT,
    IMAGE_HEADER,
    IMAGES_AHEAD,
    MAX_WAITS,
    NORMALISED_SLOT,
    PATH_CONV,
    PATH_GEMM,
    PATH_HOST,
    TABLES_SLOT,
    TENSOR,
    WAIT_FOR_ALL,
)
from dla.emulator.device.paths import GENERIC, Choices, Context, Schedule, Target, fusion, schedule
from dla.emulator.device.paths.tensor_map import AnyMap
from dla.emulator.device.placement import Share, expected_tiles, first_blocks
from dla.isa import shapes
from dla.isa.attributes import pack
from dla.isa.descriptor import MAX_RANK, Descriptor, Dim, Dynamic, Segment, bound_of
from dla.isa.dtypes import Array
from dla.isa.encoding import WORD_BYTES, encode
from dla.isa.errors import InputError
from dla.isa.program import Instruction, Program
from dla.isa.reach import Range, Reach
from dla.isa.scalar_attributes import ScalarValue
from dla.isa.table import Exec, Role, Row

_HANDLERS = handler_numbers()
_PIECE = 16
"""Bytes that the controller moves at once."""


@dataclass(frozen=True)
class Plan:
    """What the kernel is given; layout.py's LAUNCH and IMAGE_HEADER say what each part means.

    Indices are those of `executed`, but for `probes`, which the program's author knows.
    """

    executed: Program  # what the blocks execute: normalisations that products do are NOPs, some others in parts
    origins: tuple[int, ...]  # for each of these, the instruction that it is, or is a part of
    wholes: tuple[Instruction, ...]  # the same as instructions; of last rows that are apart, those
    before: Sequence[Sequence[int]]  # for each instruction, those that it waits for
    fused: Mapping[int, Sequence[int]]  # the products that do a NORM, by its index
    images: Array  # u8 [n]
    image_places: Array  # u32 [instructions + IMAGES_AHEAD, 2]: begin and length, in 16 bytes
    maps: tuple[AnyMap, ...]
    workspace_bytes: int
    exchange_bytes: int  # of a set: two sets are there
    probes: tuple[int, ...]  # index of the PROBE that reports in each slot
    headers: Array  # IMAGE_HEADER [instructions]
    schedules: tuple[Schedule, ...]  # of each instruction
    operands: Array  # TENSOR [n]; entry 0 is an absent operand
    slots: tuple[tuple[int, ...], ...]  # for each instruction, the entry of each operand
    waits: Array  # u32 [instructions, 4]: first wait, number of waits, signal counter, first block
    wait_lists: Array  # u32 [n]

    @property
    def first_pieces(self) -> Array:
        """Lengths of the first images, u32 [IMAGES_AHEAD] in 16 bytes: a launch needs no table for them."""
        return self.image_places[:IMAGES_AHEAD, 1]

    @property
    def first_work(self) -> int:
        """That of a LAUNCH of the whole program: see kernel/hopper/first.cuh."""
        first = self.headers[0]
        if first["dynamic"] or first["scalar_count"] or first["waits"] or first["path"] == PATH_HOST:
            return 0
        return FIRST_PRODUCT if first["path"] in (PATH_GEMM, PATH_CONV) else FIRST_DECODED

    @property
    def pairs(self) -> bool:
        """Whether the blocks of a pair reach into each other's shared memory anywhere."""
        return any(schedule.together > 1 for schedule in self.schedules)


@dataclass
class _Tables:
    """Operands and records, interned while the plan is made."""

    operands: dict[tuple[Descriptor, tuple[Dim, ...]], int] = field(default_factory=dict)
    targets: dict[Any, tuple[tuple[Dim, ...] | None, ...]] = field(default_factory=dict)
    probes: list[int] = field(default_factory=list)

    def slot(self, descriptor: Descriptor, target: tuple[Dim, ...]) -> int:
        """The entry of an operand that has, or broadcasts to, the dims `target`."""
        return self.operands.setdefault((descriptor, target), len(self.operands) + 1)


def build(
    program: Program, bases: Mapping[Segment, int], target: Target, choices: Choices | None = None, *, cut: bool = True
) -> Plan:
    """The plan of a verified `program` whose segments lie at device addresses `bases`.

    Where a path has several ways to execute an instruction, and `choices` knows the quickest, that one is taken.
    `cut`: large instructions may be executed in parts.
    Raises InputError for a tensor with a dim that the device machine cannot count (2**31 and more).
    """
    tables = _Tables()
    reach = Reach(program)
    context = Context(target, bases, reach, choices, _written(program, reach), program.groups, program.pairs)
    context.first = next(iter(program.instructions), None)
    apart = last_rows.find(program, context) if cut else parts.uncut(program)
    context.first = next(iter(apart.program.instructions), None)
    parted = parts.find(apart.program, replace(context, maps={})) if cut else apart
    origins = tuple(apart.origins[index] for index in parted.origins)
    wholes = tuple(apart.program.instructions[index] for index in parted.origins)
    context.decided = parted.decisions
    fused = fusion.find(parted.program, context)
    program = fused.program
    before = fused.order()
    slots = [_operand_slots(i, tables) if i.row.operands else () for i in program.instructions]
    schedules = [
        fused.schedules.get(index) or (schedule(i, context) if i.row.operands else GENERIC)
        for index, i in enumerate(program.instructions)
    ]
    for index, norm in fused.norms.items():
        slots[index] += (_slot(norm.channels, tables),)
        assert len(slots[index]) == CHANNELS_SLOT + 1, "what a product normalises by is behind the operands of a GEMM"
    for index, stored in fused.stored.items():
        assert not slots[index][NORMALISED_SLOT], "a GEMM that stores what it normalised has no gate"
        slots[index] = (*slots[index][:NORMALISED_SLOT], _slot(stored, tables), *slots[index][NORMALISED_SLOT + 1 :])
    handed = exchange.find(program, before, schedules, context)
    schedules = list(handed.schedules(schedules, target.blocks))
    for index, more in handed.tables.items():
        assert len(slots[index]) <= TABLES_SLOT, "an ATTENTION has no operand in the slots of the tables"
        slots[index] += (0,) * (TABLES_SLOT - len(slots[index])) + tuple(tables.slot(d, d.dims) for d in more)
    operands = _operands(tables, context)
    waits, wait_lists = _waits(program, before, handed)
    shares = [_share(*pair, target.blocks) for pair in zip(program.instructions, schedules, strict=True)]
    waits[:, 3] = first_blocks(before, shares, target.blocks, handed.apart(), handed.leaving())
    headers = _headers(program, tables, schedules, waits, wait_lists)
    for header, entries in zip(headers, slots, strict=True):
        header["present"] = sum(1 << k for k, entry in enumerate(entries) if entry)
    images, places = _images(headers, operands, slots)
    probes = tuple(origins[index] for index in tables.probes)
    return Plan(
        program, origins, wholes, before, fused.into, images, places, tuple(context.maps), context.workspace_bytes,
        handed.set_bytes, probes, headers, tuple(schedules), operands, tuple(slots), waits, wait_lists,
    )  # fmt: skip


def _written(program: Program, reach: Reach) -> dict[Segment, list[Range]]:
    """The bytes of state that instructions may write, by segment: the rest is as constant as inputs are."""
    found: dict[Segment, list[Range]] = {Segment.STATE: []}
    for instruction in program.instructions:
        for spec, descriptor in zip(instruction.row.operands, instruction.operands, strict=True):
            if spec.role is Role.OUT and descriptor is not None and descriptor.segment is Segment.STATE:
                found[Segment.STATE].append(reach.of(descriptor))
    return found


# ---- images ----


def _headers(
    program: Program,
    tables: _Tables,
    schedules: Sequence[Schedule],
    waits: Array,
    wait_lists: Array,
) -> Array:
    """IMAGE_HEADER [instructions], but for what is known of the operands."""
    headers = np.zeros(len(program.instructions), IMAGE_HEADER.dtype)
    code = encode(program.instructions)
    headers["word"] = np.frombuffer(b"".join(code.words), np.uint32).reshape(-1, WORD_BYTES // 4)
    headers["waits"], headers["signal"], headers["first_block"] = waits[:, 1], waits[:, 2], waits[:, 3]
    for index, instruction in enumerate(program.instructions):
        row, header = instruction.row, headers[index]
        for k, record in enumerate(row.records):
            bits = pack(record.attributes, instruction.attributes)
            data = np.frombuffer(bits.to_bytes(WORD_BYTES, "little"), np.uint32)
            header["records"][k * len(data) : (k + 1) * len(data)] = data
        if row.mnemonic == "PROBE":
            header["word"][row.all_attributes["tag"].at // 32] = len(tables.probes)
            tables.probes.append(index)
        scalars = sum(isinstance(attribute, ScalarValue) for attribute in row.attributes)
        header["handler"] = _HANDLERS.get(row.mnemonic, 0)
        header["scalar_count"] = scalars + (0 if row.mnemonic in _HANDLERS else CONTROLLER_ONLY)
        header["path"] = schedules[index].path
        header["detail"][: len(schedules[index].detail)] = schedules[index].detail
        first, count = int(waits[index, 0]), int(waits[index, 1])
        if count != WAIT_FOR_ALL:
            header["wait_counter"][:count] = wait_lists[first : first + count]
    return headers


def _images(headers: Array, operands: Array, slots: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """For each instruction its header and the operands that it has, one behind the other; and where each lies."""
    dynamic = operands["dynamic"].tolist()
    headers["dynamic"] = [any(dynamic[entry] for entry in entries) for entries in slots]
    count = len(headers)
    size, each = IMAGE_HEADER.dtype.itemsize // _PIECE, TENSOR.dtype.itemsize // _PIECE
    places = np.zeros((count + IMAGES_AHEAD, 2), np.uint32)
    places[:count, 1] = [size + each * sum(1 for entry in entries if entry) for entries in slots]
    places[:count, 0] = np.cumsum(places[:count, 1]) - places[:count, 1]
    headers["ahead_begin"], headers["ahead_pieces"] = places[IMAGES_AHEAD:].T
    table = [entry.tobytes() for entry in operands]
    parts = [
        header.tobytes() + b"".join(table[e] for e in entries if e)
        for header, entries in zip(headers, slots, strict=True)
    ]
    return np.frombuffer(b"".join(parts), np.uint8), places


# ---- operands ----


def _operand_slots(instruction: Instruction, tables: _Tables) -> tuple[int, ...]:
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
            slots.append(tables.slot(descriptor, target))
    return tuple(slots)


def _slot(extra: Descriptor | None, tables: _Tables) -> int:
    """The same for what a product that normalises reads or writes besides its operands."""
    return 0 if extra is None else tables.slot(extra, extra.dims)


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


def _operands(tables: _Tables, context: Context) -> Array:
    rows = [(0,) * 2 + ((0,) * MAX_RANK,) * 2 + (0,) * 7 + ((0,) * MAX_RANK, 0, 0, 0, (0,) * 2, 0)]
    rows += [_resolve(descriptor, target, context) for descriptor, target in tables.operands]
    return np.array(rows, TENSOR.dtype)


def _resolve(descriptor: Descriptor, target: tuple[Dim, ...], context: Context) -> tuple[Any, ...]:
    """One entry of the operand table: `descriptor` as a view of `target`'s dims, absolute."""
    base = context.bases[descriptor.segment]
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
    low, high = context.reach.limits(descriptor)
    # Of state, it would take a look at all that write there.
    constant = descriptor.segment is not Segment.STATE and context.is_constant(descriptor)
    return (
        base + descriptor.offset, descriptor.offset_scale, (*strides, *pad), (*dims, *pad), base + low, base + high,
        descriptor.dtype, len(target), _contiguous(dims, strides), bool(offset_register or any(registers)),
        offset_register, (*registers, *pad), 1, descriptor.dtype.itemsize,
        constant, (0,) * 2, math.prod(dims),
    )  # fmt: skip


def _contiguous(dims: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for dim, stride in zip(reversed(dims), reversed(strides), strict=True):
        if dim != 1 and stride != step:
            return False
        step *= dim
    return True


# ---- dependencies ----


def _signals(row: Row) -> bool:
    """Whether later instructions may have to wait for this one: it touches memory."""
    return row.unit is Exec.TENSOR or bool(row.operands)


def _share(instruction: Instruction, schedule: Schedule, blocks: int) -> Share | None:
    """What the blocks have to do for an instruction; None where it is not for workers."""
    if instruction.row.mnemonic not in _HANDLERS:
        return None
    if schedule.tiles:
        return Share(schedule.tiles, ahead=True, together=schedule.together)
    return Share(expected_tiles(instruction, blocks))


def _waits(program: Program, conflicting: Sequence[Sequence[int]], handed: Exchange) -> tuple[Array, Array]:
    """Counters to wait for and to signal; the last column is left open.

    Signalling instructions share COUNTERS counters round-robin; targets count every arrival that program order puts
    before the waiting instruction. A block that runs ahead must not arrive for a later instruction while another still
    owes an arrival for an earlier one, so an instruction whose counter is shared also waits for that counter itself.
    What nobody waits for signals nobody (COUNTERS): the last instructions of a program, in front of its end.
    """
    waits = np.zeros((len(program.instructions), 4), np.uint32)
    lists: list[int] = []
    counter: dict[int, int] = {}
    for index, instruction in enumerate(program.instructions):
        if _signals(instruction.row) or index in handed.loops:
            counter[index] = len(counter) % COUNTERS
    for index in range(len(conflicting)):
        if index not in counter:
            continue
        shared = (counter[index],) if len(counter) > COUNTERS and index else ()  # there is none in front of the first
        needed = _counters(counter, handed.before(index, conflicting), shared)
        count = WAIT_FOR_ALL if needed is None else len(needed)
        waits[index] = (len(lists), count, counter[index], 0)
        lists += needed or []
    if len(counter) <= COUNTERS and not (waits[:, 1] == WAIT_FOR_ALL).any():
        heard = {j for before in conflicting for j in before} | {*handed.loops}
        waits[[j for j in counter if j not in heard], 2] = COUNTERS
    return waits, np.array(lists or [0], np.uint32)


def _counters(counter: Mapping[int, int], before: Sequence[int], shared: tuple[int, ...]) -> list[int] | None:
    """The counters of the instructions `before`, and `shared` ones; None where one warp cannot poll as many.

    Hostile programs name very many instructions: those lists are not even looked at.
    """
    if len(before) > COUNTERS:
        return None
    needed = sorted({*shared, *(counter[j] for j in before)})
    return needed if len(needed) <= MAX_WAITS else None
