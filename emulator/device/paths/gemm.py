"""GEMM of floats through the stage ring: whether it fits, its tile shape and splits, its tensor maps.

On wgmma, but for f32 as it is, which is multiplied by multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dla.emulator.device import layout
from dla.emulator.device.layout import PATH_GEMM, PRODUCT_SCHEDULE, WORKER_WARPS
from dla.emulator.device.paths import epilogue
from dla.emulator.device.paths.choices import Decision, Offer
from dla.emulator.device.paths.epilogue import Operand, broadcast
from dla.emulator.device.paths.tensor_map import ALIGNMENT, AnyMap, TensorMap, packed_axis
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

LINE_BYTES = 128
"""The widest swizzle that there is; one row's part of a slice of a stage."""
DEPTH = LINE_BYTES // 2
"""Elements of the depth (K) in one slice, of 16 bits."""
RING_GRANULES, LEAST_STAGES = 24, 3
"""Room for stages, and how many of them there have to be at a time."""
GROUPS = 3
"""Coordinates of a tensor map that count batches."""
LEAST_ROWS = 17
"""Fewer rows are the business of the path that streams the other matrix."""
SCRATCH_PITCH = 8
"""Floats between the rows of a tile in scratch memory, so that they begin in different banks."""
MAX_WORKSPACE = 1 << 28
"""Bytes for the partial sums of one program: beyond that, nothing is split."""


@dataclass(frozen=True)
class Tile:
    """What a block works on at a time. Two warpgroups take 64 rows each, or half of the columns; 64 x 64 is for one."""

    rows: int
    columns: int

    @property
    def granules(self) -> int:
        """Of a slice."""
        return (self.rows + self.columns) // 64

    @property
    def read(self) -> int:
        """Rows of a and columns of b that the warpgroups read from shared memory."""
        return self.warpgroups * (64 + 64 * self.pieces)

    @property
    def warpgroups(self) -> int:
        """That multiply."""
        return 1 if self.rows * self.columns == 64 * 64 else 2

    @property
    def pieces(self) -> int:
        """64 columns each, of a warp."""
        return self.rows * self.columns // (64 * 64 * self.warpgroups)

    @property
    def sums_bytes(self) -> int:
        """Of the partial sums of one split in the workspace: each warp has a place."""
        return WORKER_WARPS * self.pieces * 16 * 64 * 4

    @property
    def shareable(self) -> tuple[str, ...]:
        """The operands that the blocks of a pair may share: 64 rows, or columns, and more for each."""
        return tuple(name for name, size in (("a", self.rows), ("b", self.columns)) if size >= 2 * 64)

    @property
    def most_slices(self) -> int:
        """Of a stage: the more, the fewer copies; a power of two."""
        return 1 << (RING_GRANULES // (LEAST_STAGES * self.granules)).bit_length() - 1

    @property
    def scratch_granules(self) -> int:
        """Of all the tile's sums."""
        return -(-self.rows * (self.columns + SCRATCH_PITCH) * 4 // 8192)


TILES = (Tile(128, 256), Tile(128, 128), Tile(128, 64), Tile(64, 256), Tile(64, 128), Tile(64, 64))
SCRATCH_TILES = tuple(tile for tile in TILES if tile.columns * tile.rows < 128 * 256)
"""Those whose sums leave the ring room, for the portable epilogue."""
TURNED_TILES = tuple(tile for tile in TILES if tile != Tile(64, 64))
"""Those of f32 on tensor cores: all workers turn operands, and have a part in the tile."""
EXACT_TILES = (Tile(128, 256), Tile(128, 128), Tile(64, 256))
"""Those of f32 as it is: a warp has 16 rows of 128 or 256 columns. One stage and the sums fit the ring."""


@dataclass(frozen=True)
class Costs:
    """Clocks of one multiprocessor, fitted to an H200."""

    multiplies: int = 2048  # multiply-adds per clock
    shared_bytes: int = 128  # of shared memory, per clock: copies write a stage, the warpgroups read it
    block_bytes: float = 64.0  # from the L2 cache, per clock and block
    all_bytes: float = 6100.0  # the same, of all blocks together
    start: int = 1500  # until the first stage is there
    piece: int = 350  # to finish 16 rows of 64 columns, per warp
    meet: int = 2500  # until the partial sums of other blocks can be read
    open: int = 1500  # until a pair of blocks has agreed to share: weights come so much later


COSTS = Costs()
EXACT_COSTS = Costs(multiplies=218, piece=500)
"""Of f32 as it is, whose depth counts twice: 85 % of 128 multiply-adds per clock; sums go through scratch memory."""
NARROW = 1.1
"""How much longer it takes in narrower tiles than the first: 8 x 8 sums of a lane share factors less than 8 x 16."""
HANDLER_TILES = ((Tile(32, 32), 29), (Tile(128, 64), 188))
"""The handler's tiles for f32 as it is, and clocks for each of the depth (kernel/tilings.cuh)."""


@dataclass(frozen=True)
class Choice:
    """A tile shape, in how many parts the depth goes, and which operand ("a", "b" or none) a pair of blocks shares.

    Blocks that share a have tiles side by side, blocks that share b one below the other. Each brings half of what they
    share to both.
    """

    tile: Tile
    splits: int
    shared: str = ""

    @property
    def pair(self) -> tuple[int, int]:
        """Rows and columns of what both blocks of a pair work on; of one tile where there are no pairs."""
        return self.tile.rows * (1 + (self.shared == "b")), self.tile.columns * (1 + (self.shared == "a"))

    @property
    def blocks(self) -> int:
        """That work together."""
        return layout.PAIR if self.shared else 1

    def tiles(self, rows: int, columns: int, batches: int) -> int:
        """Tiles of `batches` products of rows x columns: with pairs, an even number."""
        down, across = self.pair
        return math.ceil(rows / down) * math.ceil(columns / across) * batches * self.blocks

    def brought(self, operand: str) -> int:
        """Rows of a, or columns of b, that one block brings for a tile."""
        all_of_it = self.tile.rows if operand == "a" else self.tile.columns
        return all_of_it // layout.PAIR if operand == self.shared else all_of_it


def clocks(
    choice: Choice, rows: int, columns: int, batches: int, blocks: int, depth: int, costs: Costs = COSTS
) -> float:
    """About how long `batches` products of [rows, depth] and [depth, columns] take on `blocks` blocks, in clocks."""
    tile = choice.tile
    items = choice.tiles(rows, columns, batches) * choice.splits
    waves = math.ceil(items / blocks)
    bandwidth = min(costs.block_bytes, costs.all_bytes / min(items, blocks))
    fetched = (choice.brought("a") + choice.brought("b")) * DEPTH * 2
    touched = tile.rows + tile.columns + tile.read
    stage = max(
        tile.rows * tile.columns * DEPTH / costs.multiplies,
        touched * DEPTH * 2 / costs.shared_bytes,
        fetched / bandwidth,
    )
    stages = math.ceil(math.ceil(depth / DEPTH) / choice.splits)
    finish: float = costs.piece * tile.pieces
    if choice.splits > 1:
        finish = costs.meet + finish / min(choice.splits, 2) + 2 * tile.rows * tile.columns * 4 / bandwidth
    return costs.start + costs.open * (choice.blocks - 1) + waves * (stages * stage + finish)


@lru_cache(maxsize=1024)
def offers(
    rows: int, columns: int, batches: int, blocks: int, depth: int,
    *, tiles: tuple[Tile, ...] = TILES, split: bool = True, pairs: bool = False, costs: Costs = COSTS,
) -> tuple[Offer[Choice], ...]:  # fmt: skip
    """All ways with what they cost, the cheapest first; `pairs`: blocks may share operands."""
    most = math.ceil(depth / DEPTH) // 2 if split else 1
    choices = [
        choice
        for tile in tiles
        for shared in (("", *tile.shareable) if pairs and blocks % layout.PAIR == 0 else ("",))
        for splits in (1, 2, 3, 4, 6, layout.MAX_SPLITS)
        for choice in (Choice(tile, splits, shared),)
        if splits == 1 or (splits <= most and choice.tiles(rows, columns, batches) * splits <= blocks)
    ]
    offered = [Offer(choice, clocks(choice, rows, columns, batches, blocks, depth, costs)) for choice in choices]
    return tuple(sorted(offered, key=lambda o: (o.clocks, o.choice.brought("a") + o.choice.brought("b"))))


def is_exact(instruction: Instruction, dtype: DType) -> bool:
    """Whether operands of `dtype` are f32 that has to be multiplied as it is."""
    return dtype is DType.F32 and instruction.attributes.get("math", "exact") == "exact"


def ways(
    instruction: Instruction, dtype: DType, shape: tuple[int, int, int], slices: int, context: Context,
    *, pairs: bool = True,
) -> tuple[tuple[Offer[Choice], ...], bool] | None:  # fmt: skip
    """What is offered for a product of `shape` (rows, columns, batches) and a depth of `slices`.

    Also whether its epilogue is done in registers. None where the handler is quicker. `pairs`: of 16-bit floats, blocks
    may share operands.
    """
    blocks, depth = context.target.blocks, slices * DEPTH  # f32 takes as long as twice the depth
    fast = epilogue.is_fast(instruction)
    if is_exact(instruction, dtype):
        offered = _wide_first(offers(*shape, blocks, depth, tiles=EXACT_TILES, split=False, costs=EXACT_COSTS))
        items = (math.ceil(Choice(tile, 1).tiles(*shape) / blocks) * step for tile, step in HANDLER_TILES)
        return (offered, fast) if offered[0].clocks < EXACT_COSTS.start + min(items) * depth // 2 else None
    split, pairs = fast and context.workspace_bytes < MAX_WORKSPACE, pairs and fast and dtype is not DType.F32
    tiles = tuple(tile for tile in (TILES if fast else SCRATCH_TILES) if dtype is not DType.F32 or tile in TURNED_TILES)
    return offers(*shape, blocks, depth, tiles=tiles, split=split, pairs=pairs), fast


def _wide_first(offered: tuple[Offer[Choice], ...]) -> tuple[Offer[Choice], ...]:
    """What is offered for f32 as it is, with what narrow tiles take."""
    factors = (1.0 if o.choice.tile == EXACT_TILES[0] else NARROW for o in offered)
    priced = [Offer(o.choice, o.clocks * factor) for o, factor in zip(offered, factors, strict=True)]
    return tuple(sorted(priced, key=lambda o: o.clocks))


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


def product_schedule(
    context: Context, path: int, parts: Parts, maps: tuple[AnyMap, AnyMap, TensorMap | None], flags: Mapping[int, bool]
) -> Schedule:
    """The schedule of a product on `path` with the maps of a, b and, where results are stored through one, out."""
    choice = parts.decision.choice
    tile, splits = choice.tile, choice.splits
    a_map, b_map, out_map = maps
    sums = flags_at = 0
    if splits > 1:
        sums = context.workspace(parts.tiles * splits * tile.sums_bytes)
        flags_at = context.workspace(parts.tiles * WORKER_WARPS * layout.MAX_FINISHERS * layout.MAX_SPLITS * 4)
    flags = {
        **flags,
        layout.OUT_MAPPED: out_map is not None,
        layout.A_SHARED: choice.shared == "a",
        layout.B_SHARED: choice.shared == "b",
    }
    exact = flags[layout.EXACT]
    values = {
        "a_map": context.map_index(a_map),
        "b_map": context.map_index(b_map),
        "out_map": 0 if out_map is None else context.map_index(out_map),
        "flags": sum(bit for bit, on in flags.items() if on),
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "slices": parts.slices,
        "stages": parts.stages,
        "splits": splits,
        "band": 1024 // choice.pair[0],
        "axes": parts.axes,
        "held": parts.held,
        "scratch": 0 if parts.fast and not exact else tile.scratch_granules,
        "sums": sums // 1024,
        "flags_at": flags_at // 1024,
    }
    arithmetic, finish = "multiply-add" if exact else "wgmma", "" if parts.fast else ", portable epilogue"
    split = f", depth in {splits}" if splits > 1 else ""
    shared = f", {choice.shared} shared by pairs" if choice.shared else ""
    return Schedule(
        path, tuple(values[name] for name, *_ in PRODUCT_SCHEDULE.fields),
        f"{arithmetic}, tiles of {tile.rows} x {tile.columns}{split}{shared}{finish}",
        parts.tiles * splits, parts.decision, choice.blocks,
    )  # fmt: skip


def slices_of(choice: Choice, total: int, *, b_across: bool) -> int:
    """Slices in a stage where the whole depth has `total`: as many as leave each part of the depth a few stages.

    One only where the halves of a shared b, which lies along the depth, have to be neighbours in each slice.
    """
    if choice.shared == "b" and not b_across:
        return 1
    share = total // choice.splits
    return min(choice.tile.most_slices, 1 << max(0, (share // 4).bit_length() - 1))


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


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a GEMM of floats whose operands tensor maps can describe; None for others."""
    if instruction.row.mnemonic != "GEMM":
        return None
    out, a, b = (instruction.operand(name) for name in ("out", "a", "b"))
    if out is None or a is None or b is None:
        return None
    if not a.dtype.is_float or any(d.offset_register is not None for d in (out, a, b)):
        return None
    if isinstance(a.dims[-1], Dynamic) or 0 in (*out.bounds, *a.bounds):
        return None
    return _Scheduler(instruction, context, out, a, b).schedule()


class _Scheduler:
    """What the parts of one schedule have in common."""

    def __init__(
        self, instruction: Instruction, context: Context, out: Descriptor, a: Descriptor, b: Descriptor
    ) -> None:
        self.instruction, self.context = instruction, context
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
        if rows < LEAST_ROWS or (self.dims[-2] == 1 and (a_axis == -2 or not self._rows_are_aligned())):
            return None
        shape = (rows, self.columns, batches)
        found = ways(self.instruction, self.a.descriptor.dtype, shape, self.slices, self.context)
        if found is None:
            return None
        offered, fast = found
        return self._assemble(
            self.context.decide(self.instruction, offered), rows, batches, a_axis == -2, b_axis == -1, fast
        )

    def _assemble(
        self, decision: Decision[Choice], rows: int, batches: int, a_across: bool, b_across: bool, fast: bool
    ) -> Schedule:
        assert self.grouping is not None
        choice, context = decision.choice, self.context
        floats = self.a.descriptor.dtype is DType.F32
        exact = is_exact(self.instruction, self.a.descriptor.dtype)
        turned = exact or (floats and (a_across or b_across))  # by the workers: kernel/hopper/turn.cuh
        slices = 1 if turned else slices_of(choice, self.slices, b_across=b_across)
        a_map, a_whole = self._map(self.a, rows, (choice.brought("a"), slices), across=a_across)
        b_map, b_whole = self._map(self.b, self.columns, (choice.brought("b"), slices), across=b_across, of_b=True)
        out_map = self._out_map(rows) if fast else None
        flags = {
            layout.A_ACROSS: a_across,
            layout.B_ACROSS: b_across,
            layout.A_WHOLE: a_whole,
            layout.B_WHOLE: b_whole,
            layout.HALF_FLOATS: self.a.descriptor.dtype is DType.F16,
            layout.FLOATS: floats,
            layout.EXACT: exact,
            layout.BY_PIECES: exact and fast,
            layout.BATCHED: bool(self.grouping.groups),
            layout.B_CONSTANT: context.is_constant(self.b.descriptor),
            layout.BIAS_EARLY: fast and not exact and epilogue.bias_is_early(self.instruction),
            layout.OUT_WHOLE: not self.out.descriptor.is_dynamic,
        }
        tiles = choice.tiles(rows, self.columns, batches)
        stages = math.ceil(self.slices / slices)
        parts = Parts(decision, tiles, stages, fast, slices, self._axes(), self._held())
        return product_schedule(context, PATH_GEMM, parts, (a_map, b_map, out_map), flags)

    def _slots(self) -> list[range | None]:
        """The three groups, outermost first; None for those that are not needed."""
        assert self.grouping is not None
        return [*(None,) * (GROUPS - len(self.grouping.groups)), *self.grouping.groups]

    def _axes(self) -> int:
        assert self.grouping is not None
        begins = [0 if g is None else g.start for g in self._slots()] + [self.grouping.rows.start]
        return sum(begin << 4 * k for k, begin in enumerate(begins))

    def _held(self) -> int:
        bits = 0
        for index, operand in enumerate((self.a, self.b, self.out)):
            for k, g in enumerate(self._slots()):
                if g is None or all(operand.strides[axis] == 0 for axis in g):
                    bits |= 1 << (index * GROUPS + k)
        return bits

    def _map(
        self, operand: Operand, rows: int, stage: tuple[int, int], *, across: bool, of_b: bool = False
    ) -> tuple[TensorMap, bool]:
        """The map of a or b: `rows` (M or N) by depth, or the other way round where its rows are neighbours.

        `stage` is (rows, slices) of a stage. Also whether one box brings all of it.
        """
        row_stride, depth_stride = operand.strides[-2], operand.strides[-1]
        if of_b:
            row_stride, depth_stride = depth_stride, row_stride
        elif self.dims[-2] == 1:
            row_stride = self._row_stride(operand)
        dims, stride, box, swizzle = (self.depth, rows), row_stride, stage, LINE_BYTES
        descriptor, item = operand.descriptor, operand.item
        if across:
            dims, stride, box = (rows, self.depth), depth_stride, (self.line * stage[1], stage[0] // self.line)
            swizzle = 0 if item == 4 else LINE_BYTES
        address, batches = self.context.address(descriptor), self._batches(operand)
        return operand_map(descriptor.dtype, address, dims, stride * item, box, batches, swizzle)

    def _row_stride(self, operand: Operand) -> int:
        """Distance of rows where the last axis of rows has one element only."""
        assert self.grouping is not None
        return next(operand.strides[k] for k in reversed(self.grouping.rows) if self.dims[k] != 1)

    def _rows_are_aligned(self) -> bool:
        stride = self._row_stride(self.a)
        return stride != 0 and stride * self.a.item % ALIGNMENT == 0

    def _out_map(self, rows: int) -> TensorMap | None:
        """The map that results are stored through; None where the copy engine cannot."""
        descriptor, item = self.out.descriptor, self.out.item
        stride = self.out.strides[-2] if self.dims[-2] != 1 else self._row_stride(self.out)
        aligned = all(s * item % ALIGNMENT == 0 for s in (*self.out.strides[:-2], stride))
        if item != 2 or self.out.strides[-1] != 1 or descriptor.offset % ALIGNMENT or not aligned or stride == 0:
            return None
        width = 32 if self.glu else 64
        batches, address = self._batches(self.out), self.context.address(descriptor)
        dims, box = (self.dims[-1], rows, *batches.sizes), (width, 8, *(1 for _ in batches.sizes))
        return TensorMap(descriptor.dtype, address, dims, (stride * item, *batches.steps), box, width * 2)

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
