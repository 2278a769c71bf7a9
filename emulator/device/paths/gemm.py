"""GEMM of floats through the stage ring: whether it fits, its tile shape and splits, its tensor maps.

On wgmma, but for f32 as it is, which is multiplied by multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dla.emulator.device import layout
from dla.emulator.device.layout import PATH_GEMM, PRODUCT_SCHEDULE
from dla.emulator.device.paths import edges, epilogue, stream, tilings
from dla.emulator.device.paths.choices import Decision, preferring
from dla.emulator.device.paths.edges import Edge
from dla.emulator.device.paths.epilogue import Operand, broadcast
from dla.emulator.device.paths.tensor_map import ALIGNMENT, AnyMap, TensorMap, packed_axis
from dla.emulator.device.paths.tilings import LINE_BYTES, Choice, Tile
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

GROUPS = 3
"""Coordinates of a tensor map that count batches."""
LEAST_ROWS = 17
"""Fewer rows are the business of the path that streams the other matrix, unless low tiles are quicker."""
WORTH_LOW = 0.85
"""What low tiles take at most, beside a stream of the other matrix."""
NORMALISING = Tile(32, 64)
"""The tiles that can do a NORM of their rows."""
NORM_WORTH, NORM_START, NORM_STEP = 5500.0, 400.0, 150.0
"""Clocks that a NORM takes where it has an instruction of its own; and in a tile, of which each row has some slices."""


@dataclass(frozen=True)
class Parts:
    """How a product is cut, and how its batches are counted."""

    decision: Decision[Choice]
    tiles: int
    stages: int  # of the whole depth
    fast: bool  # the epilogue is done in registers
    slices: int = 1  # of a stage
    axes: int = 0  # as PRODUCT_SCHEDULE says; here every axis but the last counts rows
    held: int = 0
    pitch: int | None = None  # bytes between rows of a result that is stored in lines
    in_chunks: bool = False  # lines are made of whole chunks
    out_map: TensorMap | None = None  # of a result that the copy engine takes to memory


def product_schedule(
    context: Context, path: int, parts: Parts, maps: tuple[AnyMap, AnyMap], flags: Mapping[int, bool]
) -> Schedule:
    """The schedule of a product on `path` with the maps of a and b."""
    choice = parts.decision.choice
    tile, splits = choice.tile, choice.splits
    a_map, b_map = maps
    sums = 0
    together = choice.shared == "depth"
    if splits > 1 and not together:
        sums = context.workspace(parts.tiles * splits * tile.sums_bytes)
    flags = {
        **flags,
        layout.OUT_IN_LINES: parts.pitch is not None,
        layout.OUT_IN_CHUNKS: parts.in_chunks,
        layout.OUT_IN_BOXES: parts.out_map is not None,
        layout.A_SHARED: choice.shared == "a",
        layout.B_SHARED: choice.shared == "b",
        layout.DEPTH_SHARED: together,
    }
    exact = flags[layout.EXACT]
    values = {
        "a_map": context.map_index(a_map),
        "b_map": context.map_index(b_map),
        "pitch": parts.pitch or 0,
        "flags": sum(bit for bit, on in flags.items() if on),
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "slices": parts.slices,
        "stages": parts.stages,
        "splits": splits,
        "axes": parts.axes | parts.held << 4 * (GROUPS + 1),
        "scratch": 0 if parts.fast and not exact else tile.scratch_granules,
        "sums": sums // 1024,
        "out_map": 0 if parts.out_map is None else context.map_index(parts.out_map),
    }
    arithmetic, finish = "multiply-add" if exact else "wgmma", "" if parts.fast else ", portable epilogue"
    split = f", depth in {splits}" if splits > 1 and not together else ""
    shared = f", {choice.shared} shared by pairs" if choice.shared else ""
    return Schedule(
        path, PRODUCT_SCHEDULE.words(values),
        f"{arithmetic}, tiles of {tile.rows} x {tile.columns}{split}{shared}{finish}",
        parts.tiles * splits, parts.decision, choice.blocks,
    )  # fmt: skip


def result_map(
    instruction: Instruction, context: Context, choice: Choice, rows: int, pitch: int | None
) -> TensorMap | None:  # fmt: skip
    """The map by which the copy engine stores what a warp finishes at a time; None where lanes do that.

    `rows` of the result lie `pitch` bytes apart.
    """
    out = instruction.operand("out")
    assert out is not None
    if pitch is None or not tilings.in_boxes(choice) or not epilogue.is_in_boxes(instruction):
        return None
    lines = epilogue.TALL_BOX_ROWS if choice.tile.tall else epilogue.PIECE_ROWS
    dims, box = (out.bounds[-1], rows), (epilogue.PIECE_COLUMNS, lines)
    return TensorMap(out.dtype, context.address(out), dims, (pitch,), box)


@dataclass(frozen=True)
class Batches:
    """The batches of a map, innermost first: none, or GROUPS of them, of size 1 where the operand has no such group."""

    sizes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()  # bytes


NO_BATCHES = Batches()


def operand_map(
    dtype: DType, address: int, dims: tuple[int, int], step: int, box: tuple[int, int],
    batches: Batches = NO_BATCHES, swizzle: int = LINE_BYTES,
) -> tuple[TensorMap, bool]:  # fmt: skip
    """The map of a matrix of `dims` (inner, outer), rows `step` bytes apart, for boxes of `box` (outer, lines).

    Also whether one box brings all of a stage: some inner elements are a line of a swizzled tile, and for a box to have
    more of them, lines have to be a dim of their own, the last one. That needs an inner dim of whole lines.
    """
    (inner, outer), sizes, steps, line = dims, batches.sizes, batches.steps, LINE_BYTES // dtype.itemsize
    whole = inner % line == 0 and (not sizes or sizes[-1] == 1)
    if whole:
        last, last_step, last_box = inner // line, LINE_BYTES, box[1]
        inner, sizes, steps = line, sizes[:-1], steps[:-1]
    else:
        last, last_step, last_box = (sizes[-1], steps[-1], 1) if sizes else (1, ALIGNMENT, 1)
        sizes, steps = sizes[:-1], steps[:-1]
    ones = (1,) * len(sizes)
    boxes = (line, box[0], *ones, last_box)
    return TensorMap(dtype, address, (inner, outer, *sizes, last), (step, *steps, last_step), boxes, swizzle), whole


# ---- the shape of an instruction ----


@dataclass(frozen=True)
class Grouping:
    """Axes of the result: up to three groups of batches, outermost first, and those that count as rows."""

    groups: tuple[range, ...]
    rows: range


def group(dims: Sequence[int], dynamic: Sequence[bool], a: Operand, b: Operand, out: Operand) -> Grouping | None:
    """How the axes but the last are counted; None where batches need more than three coordinates.

    Neighbouring axes are one where every operand has them at one distance. Batches that share b are rows.
    """
    last = len(dims) - 1

    def joins(axis: int, inner: range, operands: Sequence[Operand]) -> bool:
        if any(dynamic[k] for k in inner):
            return False
        size = math.prod(dims[k] for k in inner)
        steps = [next((o.strides[k] for k in reversed(inner) if dims[k] != 1), None) for o in operands]
        return dims[axis] == 1 or all(
            step is None or o.strides[axis] == size * step for o, step in zip(operands, steps, strict=True)
        )

    rows = range(last - 1, last)
    while rows.start > 0:
        axis = rows.start - 1
        if not (dims[axis] == 1 or b.strides[axis] == 0) or not joins(axis, rows, (a, out)):
            break
        rows = range(axis, last)
    groups: list[range] = []
    for axis in reversed(range(rows.start)):
        if groups and joins(axis, groups[0], (a, b, out)):
            groups[0] = range(axis, groups[0].stop)
        else:
            groups.insert(0, range(axis, axis + 1))
    return Grouping(tuple(groups), rows) if len(groups) <= GROUPS else None


# ---- the schedule ----


@dataclass(frozen=True)
class Side:
    """An operand of the product that is multiplied."""

    operand: Operand
    rows: int  # of the product if it is on the left, else columns
    across: bool  # they are neighbours in memory
    of_b: bool = False  # it is what the program calls b


def schedule(instruction: Instruction, context: Context, *, to_normalise: bool = False) -> Schedule | None:
    """The schedule of a GEMM of floats whose operands tensor maps can describe; None for others.

    `to_normalise`: low tiles are better than others that are a little quicker, since they can do a NORM.
    """
    if instruction.row.mnemonic != "GEMM":
        return None
    out, a, b = (instruction.operand(name) for name in ("out", "a", "b"))
    if out is None or a is None or b is None:
        return None
    if not a.dtype.is_float or any(d.offset_register is not None for d in (out, a, b)):
        return None
    if isinstance(a.dims[-1], Dynamic) or 0 in (*out.bounds, *a.bounds):
        return None
    return _Scheduler(instruction, context, out, a, b, to_normalise=to_normalise).schedule()


def does_norms(instruction: Instruction, schedule: Schedule, blocks: int) -> bool:
    """Whether a product of bf16 can do the NORM of its rows itself, as kernel/hopper/low_norm.cuh does it.

    Its tiles are low ones of 32 rows, one for each block at most, all stages of one fit the ring, wherever the first
    one begins, and all of the depth is there.
    """
    a, numbers = instruction.operand("a"), PRODUCT_SCHEDULE.values(schedule.detail)
    granules = math.ceil(NORMALISING.slice_bytes * numbers["slices"] / tilings.GRANULE_BYTES)
    assert a is not None
    assert schedule.decision is not None
    return (
        schedule.decision.choice == Choice(NORMALISING, 1)
        and schedule.tiles <= blocks
        and a.dtype is DType.BF16
        and numbers["stages"] * numbers["slices"] <= layout.MAX_NORM_SLICES
        and (numbers["stages"] + 1) * granules - 1 <= tilings.RING_GRANULES
        and a.bounds[-1] % tilings.DEPTH == 0
        and instruction.operand("gate") is None
    )


def normalising(schedule: Schedule, norm: int, eps: int) -> Schedule:
    """`schedule` with the flags of a NORM that its tiles do, and the bits of its eps."""
    numbers = PRODUCT_SCHEDULE.values(schedule.detail)
    numbers["flags"] |= norm << layout.PRODUCT_NORM_AT
    numbers["out_map"] = eps
    return replace(schedule, detail=PRODUCT_SCHEDULE.words(numbers))


class _Scheduler:
    """What the parts of one schedule have in common."""

    def __init__(
        self, instruction: Instruction, context: Context, out: Descriptor, a: Descriptor, b: Descriptor,
        *, to_normalise: bool,
    ) -> None:  # fmt: skip
        self.instruction, self.context, self.to_normalise = instruction, context, to_normalise
        self.dims = out.bounds
        self.glu = instruction.sub == "glu"
        batch = self.dims[:-2]
        self.depth, self.columns = a.bounds[-1], b.bounds[-1]
        self.line = LINE_BYTES // a.dtype.itemsize
        self.slices = math.ceil(self.depth / self.line)
        self.out = Operand(out, out.strides)
        self.a = broadcast(a, (*batch, self.dims[-2], self.depth))
        self.b = broadcast(b, (*batch, self.depth, self.columns))

    def schedule(self) -> Schedule | None:
        a_axis = packed_axis(self.a.descriptor, self.a.strides)
        b_axis = packed_axis(self.b.descriptor, self.b.strides)
        dynamic = [isinstance(d, Dynamic) for d in self.out.descriptor.dims]
        self.grouping = group(self.dims, dynamic, self.a, self.b, self.out)
        if a_axis is None or b_axis is None or self.grouping is None:
            return None
        rows = math.prod(self.dims[k] for k in self.grouping.rows)
        batches = math.prod(self.dims[k] for g in self.grouping.groups for k in g)
        few = rows < LEAST_ROWS
        if few and (rows <= stream.FEW_ROWS or self.grouping.groups or not stream.takes(self.instruction)):
            return None
        if self.dims[-2] == 1 and (a_axis == -2 or not self._rows_are_aligned()):
            return None
        a, b = Side(self.a, rows, a_axis == -2), Side(self.b, self.columns, b_axis == -1, of_b=True)
        if self._is_transposed(a, b):
            a, b = b, a
        shape = (a.rows, b.rows, batches)
        self.in_lines = epilogue.is_in_lines(self.instruction) and tilings.has_corners(a.rows, b.rows)
        self.in_chunks = self.in_lines and epilogue.is_in_chunks(self.out.descriptor)
        dtype, context = self.a.descriptor.dtype, self.context
        low = self.in_lines and not a.across and not self.grouping.groups
        tall = (tilings.HIGHER_TILE,) if low and dtype is self.out.descriptor.dtype else ()
        found = tilings.ways(
            self.instruction, dtype, shape, self.slices, context, in_chunks=self.in_chunks, low=low, tall=tall
        )
        if found is None:
            return None
        offered, fast = found
        decision = context.decide(self.instruction, offered)
        if few and not self._is_better_low(decision):
            return None
        if self.to_normalise:
            decision = preferring(decision, lambda choice: self._norm_clocks(choice, shape), NORM_WORTH)
        return self._assemble(decision, a, b, batches, fast)

    def _is_better_low(self, decision: Decision[Choice]) -> bool:
        """Whether a product of few rows, which could be streamed, is clearly quicker in low tiles."""
        best = WORTH_LOW * stream.clocks(self.instruction)
        return decision.choice.tile.low and decision.offer.clocks < best

    def _norm_clocks(self, choice: Choice, shape: tuple[int, int, int]) -> float | None:
        """What a NORM takes in tiles that can do it; None of others."""
        if choice != Choice(NORMALISING, 1) or choice.tiles(*shape) > self.context.target.blocks:
            return None
        return NORM_START + NORM_STEP * self.slices

    def _is_transposed(self, a: Side, b: Side) -> bool:
        """Whether the result's transposed is worked out, b.T times a.T.

        Of f32 on tensor cores, the left operand may lie across (kernel/hopper/tensor_floats.cuh). Pieces of the sums
        then have rows where others have columns, so every operand's rows have to lie at one distance.
        """
        assert self.grouping is not None
        dtypes = {self.a.descriptor.dtype, self.out.descriptor.dtype}
        if dtypes != {DType.F32} or tilings.is_exact(self.instruction, DType.F32):
            return False
        if not b.across or a.across or self.glu or not epilogue.is_fast(self.instruction):
            return False
        rows, size = self.grouping.rows, 1
        operands = (self.out, *epilogue.extras(self.instruction, self.dims))
        for axis in reversed(rows[:-1]):
            size *= self.dims[axis + 1]
            if self.dims[-2] == 1 or any(o.strides[axis] != size * o.strides[-2] for o in operands):
                return False
        return True

    def _assemble(self, decision: Decision[Choice], a: Side, b: Side, batches: int, fast: bool) -> Schedule:
        assert self.grouping is not None
        choice, context = decision.choice, self.context
        floats = self.a.descriptor.dtype is DType.F32
        exact = tilings.is_exact(self.instruction, self.a.descriptor.dtype)
        arranged = exact or (floats and (a.across or b.across))  # by the workers, a slice at a time
        slices = 1 if arranged else tilings.slices_of(choice, self.slices, b_across=b.across)
        at_edges, (a_lines, b_lines) = self._edges(choice, a, b)
        a_map, a_whole = self._map(a, (a_lines, slices), swizzled=a.of_b or not (floats and a.across))
        b_map, b_whole = self._map(b, (b_lines, slices), swizzled=not (floats and b.across))
        flags = {
            layout.A_ACROSS: a.across,
            layout.B_ACROSS: b.across,
            layout.TRANSPOSED: a.of_b,
            layout.A_WHOLE: a_whole,
            layout.B_WHOLE: b_whole,
            layout.HALF_FLOATS: self.a.descriptor.dtype is DType.F16,
            layout.FLOATS: floats,
            layout.EXACT: exact,
            layout.BY_PIECES: exact and fast,
            layout.BATCHED: bool(self.grouping.groups),
            layout.B_CONSTANT: not a.of_b and context.is_constant(self.b.descriptor),
            layout.BIAS_EARLY: fast and not exact and epilogue.bias_is_early(self.instruction),
            **at_edges,
        }
        tiles = choice.tiles(a.rows, b.rows, batches)
        stages = math.ceil(self.slices / slices)
        in_registers = fast and not exact
        in_lines = self.in_lines and in_registers
        pitch = self._row_step(self.out) * self.out.item if in_lines else None
        in_chunks = self.in_chunks and in_lines
        out_map = None
        if in_chunks and slices == 1 and not self.grouping.groups:
            out_map = result_map(self.instruction, context, choice, a.rows, pitch)
        parts = Parts(decision, tiles, stages, fast, slices, self._axes(), self._held(a, b), pitch, in_chunks, out_map)
        return product_schedule(context, PATH_GEMM, parts, (a_map, b_map), flags)

    def _edges(self, choice: Choice, a: Side, b: Side) -> tuple[dict[int, bool], tuple[int, int]]:
        """Flags for the edges of the result, and the lines that a block brings of a and b."""
        brought = choice.brought("a"), choice.brought("b")
        if a.of_b:
            return {}, brought
        dims, half = self.out.descriptor.dims, self.a.descriptor.dtype is not DType.F32
        known = not any(isinstance(dim, Dynamic) for dim in dims[:-1]), not isinstance(dims[-1], Dynamic)
        rows, columns = Edge(a.rows, known[0], half and not a.across), Edge(b.rows, known[1], half and not b.across)
        flags = edges.flags(
            choice, rows, columns, apart=edges.is_apart(self.instruction, self.context),
            in_chunks=self.in_chunks and not self.glu, norms=choice == Choice(NORMALISING, 1),
        )  # fmt: skip
        a_lines = rows.groups if flags.get(layout.A_SHORT) else brought[0]
        return flags, (a_lines, columns.groups if flags.get(layout.B_SHORT) else brought[1])

    def _slots(self) -> list[range | None]:
        """The three groups, outermost first; None for those that are not needed."""
        assert self.grouping is not None
        return [*(None,) * (GROUPS - len(self.grouping.groups)), *self.grouping.groups]

    def _axes(self) -> int:
        assert self.grouping is not None
        begins = [0 if g is None else g.start for g in self._slots()] + [self.grouping.rows.start]
        return sum(begin << 4 * k for k, begin in enumerate(begins))

    def _held(self, a: Side, b: Side) -> int:
        bits = 0
        for index, side in enumerate((a, b)):
            for k, g in enumerate(self._slots()):
                if g is None or all(side.operand.strides[axis] == 0 for axis in g):
                    bits |= 1 << (index * GROUPS + k)
        return bits

    def _map(self, side: Side, stage: tuple[int, int], *, swizzled: bool) -> tuple[TensorMap, bool]:
        """The map of one side: rows (M or N) by depth, or the other way round where it lies across.

        `stage` is (rows, slices) of a stage. Also whether one box brings all of it.
        """
        operand, rows = side.operand, side.rows
        row_stride, depth_stride = operand.strides[-2], operand.strides[-1]
        if side.of_b:
            row_stride, depth_stride = depth_stride, row_stride
        else:
            row_stride = self._row_step(operand)
        dims, stride, box, swizzle = (self.depth, rows), row_stride, stage, LINE_BYTES if swizzled else 0
        descriptor, item = operand.descriptor, operand.item
        if side.across:
            dims, stride, box = (rows, self.depth), depth_stride, (self.line * stage[1], stage[0] // self.line)
        address, batches = self.context.address(descriptor), self._batches(operand)
        return operand_map(descriptor.dtype, address, dims, stride * item, box, batches, swizzle)

    def _row_step(self, operand: Operand) -> int:
        """Distance of rows, in elements."""
        assert self.grouping is not None
        return next(operand.strides[k] for k in reversed(self.grouping.rows) if self.dims[k] != 1)

    def _rows_are_aligned(self) -> bool:
        stride = self._row_step(self.a)
        return stride != 0 and stride * self.a.item % ALIGNMENT == 0

    def _batches(self, operand: Operand) -> Batches:
        """Of a map of `operand`."""
        assert self.grouping is not None
        if not self.grouping.groups:
            return Batches()
        sizes, steps = [], []
        for g in reversed(self._slots()):
            step = 0 if g is None else next((operand.strides[k] for k in reversed(g) if self.dims[k] != 1), 0)
            sizes.append(1 if g is None or step == 0 else math.prod(self.dims[k] for k in g))
            steps.append(step * operand.item or ALIGNMENT)
        return Batches(tuple(sizes), tuple(steps))
