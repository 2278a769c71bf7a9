"""How products are cut: tile shapes, parts of the depth, pairs of blocks; and what each way costs, by a small model.

For GEMM and CONV alike. `benchmarks/fit_costs.py` fits the table to a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dla.emulator.device import layout
from dla.emulator.device.paths import epilogue
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.types import Context
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

LINE_BYTES = 128
"""The widest swizzle that there is; one row's part of a slice of a stage."""
DEPTH = LINE_BYTES // 2
"""Elements of the depth (K) in one slice, of 16 bits."""
RING_GRANULES, LEAST_STAGES, GRANULE_BYTES = 24, 3, 8192
"""Room for stages, and how many of them there have to be at a time."""
CORNER_ROWS, CORNER_COLUMNS = 1 << 23, 1 << 18
"""Of a result, so that the loader can tell the workers where a tile begins (ProductCorner in kernel/state.cuh)."""
SCRATCH_PITCH = 8
"""Floats between the rows of a tile in scratch memory, so that they begin in different banks."""
SPLITS = (1, 2, 3, 4, layout.MAX_SPLITS)
"""Parts of the depth."""
MAX_WORKSPACE = 1 << 28
"""Bytes for the partial sums of one program: beyond that, nothing is split."""


@dataclass(frozen=True)
class Tile:
    """What a block works on at a time.

    Two warpgroups take 64 rows each, or half of the columns. Those of 64 x 64, and of fewer rows, are for one, or both
    share the depth.
    """

    rows: int
    columns: int

    @cached_property
    def low(self) -> bool:
        """Whether columns are what tensor cores take for rows (kernel/hopper/low.cuh)."""
        return self.rows % 64 != 0 and not self.tall

    @cached_property
    def tall(self) -> bool:
        """Whether columns are what tensor cores take for rows, as of low ones (kernel/hopper/tall.cuh)."""
        return self.rows > 128

    @cached_property
    def granules(self) -> int:
        """Of a slice."""
        return math.ceil(self.slice_bytes / GRANULE_BYTES)

    @cached_property
    def slice_bytes(self) -> int:
        """Of both operands."""
        return (self.rows + self.columns) * LINE_BYTES

    @cached_property
    def read(self) -> int:
        """Rows of a and columns of b that the warpgroups read from shared memory."""
        if self.low:
            return self.rows + self.columns
        return self.warpgroups * 64 + self.rows * self.columns // 64

    @cached_property
    def warpgroups(self) -> int:
        """That multiply."""
        return 1 if self.low or self.rows * self.columns <= 64 * 64 else 2

    @cached_property
    def pieces(self) -> int:
        """64 columns each, of a warp."""
        return self.rows * self.columns // (64 * 64 * self.warpgroups)

    @cached_property
    def sums_bytes(self) -> int:
        """Of the partial sums of one split in the workspace."""
        return self.rows * self.columns * 4

    @cached_property
    def shareable(self) -> tuple[str, ...]:
        """The operands that the blocks of a pair may share: 64 rows, or columns, and more for each."""
        if self.tall:
            return ()
        return tuple(name for name, size in (("a", self.rows), ("b", self.columns)) if size % (2 * 64) == 0)

    @cached_property
    def most_slices(self) -> int:
        """Of a stage: the more, the fewer copies; a power of two."""
        return 1 << (RING_GRANULES * GRANULE_BYTES // (LEAST_STAGES * self.slice_bytes)).bit_length() - 1

    @cached_property
    def scratch_granules(self) -> int:
        """Of all the tile's sums."""
        return -(-self.rows * (self.columns + SCRATCH_PITCH) * 4 // GRANULE_BYTES)


TILES = (Tile(128, 256), Tile(128, 128), Tile(64, 256), Tile(64, 128), Tile(128, 64), Tile(64, 64))
"""Of two that cost the same, the first is taken: side by side, each warpgroup reads only half of b."""
SCRATCH_TILES = tuple(tile for tile in TILES if tile.columns * tile.rows < 128 * 256)
"""Those whose sums leave the ring room, for the portable epilogue."""
TURNED_TILES = tuple(tile for tile in TILES if tile != Tile(64, 64))
"""Those of f32 on tensor cores: all workers turn operands, and have a part in the tile."""
LOW_TILES = (Tile(72, 64), Tile(48, 64), Tile(32, 64), Tile(16, 64))
TOGETHER_TILES = (Tile(128, 64), Tile(64, 64), *LOW_TILES[1:])
"""Those whose depth a pair may share: a warp has one piece at most, and gives the other block half of it."""
LOWER_ROWS = 32
"""That low tiles finish at once."""
FEW_ROWS = 16
"""Of the lowest tiles."""
TALL_TILES = (Tile(256, 128), Tile(256, 64))
"""Of convolutions, whose result the copy engine stores."""
FEW_OUTPUTS_TILE = Tile(192, 128)
"""Likewise, where there are no more outputs than it has."""
HIGHER_TILE = Tile(136, 128)
"""Of products whose a lies along the depth and whose result the copy engine stores: a few rows more than 128."""
LINE_TILE = Tile(128, 192)
"""Of 16-bit floats, where a lies along the depth and lanes store results in lines. Its depth is not split."""
BOX_TILES = (TILES[0], *TALL_TILES, FEW_OUTPUTS_TILE, HIGHER_TILE)
"""Those whose results the copy engine may store."""
EXACT_TILES = (Tile(128, 256), Tile(128, 128), Tile(64, 256))
"""Those of f32 as it is: a warp has 16 rows of 128 or 256 columns. One stage and the sums fit the ring."""


@dataclass(frozen=True)
class Costs:
    """Clocks of one multiprocessor, close to what fits an H200 and an H100 (benchmarks/costs).

    With these, the ways chosen for the products measured there lose 0.5 % on average on the H100, 1.1 on the H200.
    """

    multiplies: int = 2048  # multiply-adds per clock
    shared_bytes: int = 110  # of shared memory, per clock: copies write a stage, the warpgroups read it
    block_bytes: float = 128.0  # from the L2 cache, per clock and block
    all_bytes: float = 5800.0  # the same, of all blocks together
    small_bytes: float = 7900.0  # that, where warpgroups share the depth: stages are filled again sooner
    few_bytes: float = 4850.0  # that, of tiles of 16 rows
    memory_bytes: float = 3200.0  # from memory, where columns come from: once each
    start: int = 2200  # until the first stage is there
    each: int = 31  # until the ends of all blocks have been counted, for each of them
    tile: int = 1560  # to begin and end a tile, whatever its size
    piece: int = 1150  # to finish 16 rows of 64 columns, per warp
    alone: int = 2140  # both of a tile whose depth the warpgroups share,
    low: int = 1430  # and of one of few rows,
    fewer: int = 570  # less where these are 16,
    turn: int = 890  # where they are more than 32, for 32 more,
    higher: int = 50  # and of a slice of one of these
    box: int = 4190  # and of one whose result the copy engine stores
    tall: int = 1150  # of those, of a tall one,
    tall_piece: int = 1110  # and more for each piece
    meet: int = 3850  # to finish a block's share; half as much more for each 16 x 8 of a warp behind the first
    part: int = 510  # more of that, for each part of the depth
    together: int = 1450  # for the blocks of a pair to give each other half of their sums
    gathered: int = 55  # of a slice of a low tile, where its rows are windows
    open: int = 3000  # until a pair of blocks has agreed to share: weights come so much later
    first: int = 4000  # more for what a launch begins with, unless results leave in boxes or tiles are low: less code


COSTS = Costs()
EXACT_COSTS = Costs(multiplies=218, shared_bytes=96, all_bytes=4670.0, start=3900, each=0, tile=0, piece=500)
"""Of f32 as it is, whose depth counts twice: 85 % of 128 multiply-adds per clock; sums go through scratch memory."""
UNEVEN = 1.5
"""Rounds that parts take for a share of one: a block with a tile of both lets those wait that need the second."""
EARLY = 0.5
"""Of what could be there before, what counts as that: all blocks' copies share the way from memory."""
UNSHARED = 1.02
"""How much longer the largest tiles take where pairs could share an operand and do not, of 8192^3 and 4096^3."""
HIGHER = 1.06
"""How much longer HIGHER_TILE takes than the table says, of 900 x 2048 x 2048 and three smaller products."""
NARROW = 1.1
"""How much longer it takes in narrower tiles than the first: 8 x 8 sums of a lane share factors less than 8 x 16."""
HANDLER_TILES = ((Tile(32, 32), 29), (Tile(128, 64), 188))
"""The handler's tiles for f32 as it is, and clocks for each of the depth (kernel/tilings.cuh).

What it has smaller ones for (kernel/gemm_few.cuh), it is quicker with by these already.
"""


@dataclass(frozen=True)
class Choice:
    """A tile shape, in how many parts the depth goes, and what ("a", "b", "depth" or nothing) a pair of blocks shares.

    Blocks that share a have tiles side by side, blocks that share b one below the other. Each brings half of what they
    share to both. Blocks that share the depth have the same tile, and half of the depth each.
    """

    tile: Tile
    splits: int
    shared: str = ""

    @cached_property
    def pair(self) -> tuple[int, int]:
        """Rows and columns of what both blocks of a pair work on; of one tile where there are no pairs."""
        return self.tile.rows * (1 + (self.shared == "b")), self.tile.columns * (1 + (self.shared == "a"))

    @cached_property
    def blocks(self) -> int:
        """That work together."""
        return layout.PAIR if self.shared else 1

    @cached_property
    def shares_operand(self) -> bool:
        """Whether the blocks of a pair have a tile each."""
        return self.shared in ("a", "b")

    def tiles(self, rows: int, columns: int, batches: int) -> int:
        """Tiles of `batches` products of rows x columns: an even number where pairs share an operand."""
        down, across = self.pair
        return math.ceil(rows / down) * math.ceil(columns / across) * batches * (1 + self.shares_operand)

    def brought(self, operand: str) -> int:
        """Rows of a, or columns of b, that one block brings for a tile."""
        all_of_it = self.tile.rows if operand == "a" else self.tile.columns
        return all_of_it // layout.PAIR if operand == self.shared else all_of_it


def clocks(
    choice: Choice, rows: int, columns: int, batches: int, blocks: int, depth: int, costs: Costs = COSTS,
    *, boxes: bool = False, gathered: bool = False, even: bool = False,
) -> float:  # fmt: skip
    """About how long `batches` products of [rows, depth] and [depth, columns] take on `blocks` blocks, in clocks.

    `boxes`: the copy engine may store the result; `gathered`: rows are windows; `even`: in parts, so that few blocks
    wait for those that have a tile more.
    """
    tile = choice.tile
    items = choice.tiles(rows, columns, batches) * choice.splits
    rounds, left = divmod(items, blocks)
    waves = rounds + min(1.0, UNEVEN * left / blocks if even and rounds else left)
    all_bytes = costs.small_bytes if tile.warpgroups == 1 else costs.all_bytes
    if tile.rows <= FEW_ROWS:
        all_bytes = costs.few_bytes
    bandwidth = min(costs.block_bytes, all_bytes / min(items, blocks))
    fetched: float = (choice.brought("a") + choice.brought("b")) * DEPTH * 2
    stages = math.ceil(math.ceil(depth / DEPTH) / choice.splits)
    if tile.low:  # columns of the first tiles come before the rows, as far as the ring has room for them
        room = RING_GRANULES * GRANULE_BYTES / (tile.slice_bytes * stages)
        fetched -= EARLY * min(1.0, room) * tile.columns * DEPTH * 2 / waves
    touched = tile.rows + tile.columns + tile.read
    stage = max(
        tile.rows * tile.columns * DEPTH / costs.multiplies,
        touched * DEPTH * 2 / costs.shared_bytes,
        fetched / bandwidth,
    )
    if tile.low:
        stage += costs.gathered * gathered + costs.higher * (tile.rows > LOWER_ROWS)
    finish: float = costs.tile + costs.piece * tile.pieces
    if tile.warpgroups == 1:
        finish = costs.low + costs.turn * ((tile.rows - 1) // LOWER_ROWS) if tile.low else costs.alone
        finish -= costs.fewer * (tile.rows <= FEW_ROWS)
    if boxes and in_boxes(choice):
        finish = costs.tall + costs.tall_piece * tile.pieces if tile.tall else costs.box
    if choice.shared == "depth":
        finish += costs.together
    elif choice.splits > 1:
        rounds = math.ceil(tile.rows * tile.columns / (16 * 8) / choice.splits / layout.WORKER_WARPS)
        finish = costs.tile + costs.meet * (1 + rounds) / 2 + costs.part * choice.splits
        finish += 2 * tile.rows * tile.columns * 4 / bandwidth
    once = costs.start + costs.each * min(items, blocks) + costs.open * choice.shares_operand
    from_memory = columns * batches * depth * 2 / costs.memory_bytes
    return once + max(waves * stages * stage, from_memory) + waves * finish


@lru_cache(maxsize=1024)
def offers(
    rows: int, columns: int, batches: int, blocks: int, depth: int,
    *, tiles: tuple[Tile, ...] = TILES, split: bool = True, pairs: bool = False, together: bool = False,
    boxes: bool = False, gathered: bool = False, first: bool = False, costs: Costs = COSTS,
) -> tuple[Offer[Choice], ...]:  # fmt: skip
    """All ways with what they cost, the cheapest first.

    `pairs`: the blocks of a pair may share operands; `together`: or a tile's depth; `first`: a launch begins with this;
    the others: see clocks.
    """
    most = math.ceil(depth / DEPTH) // 2 if split else 1
    even_blocks = blocks % layout.PAIR == 0
    choices = [
        choice
        for tile in tiles
        for shared in (("", *tile.shareable) if pairs and even_blocks else ("",))
        for splits in SPLITS
        for choice in (Choice(tile, splits, shared),)
        if splits == 1
        or (
            not tile.low
            and not tile.tall
            and tile != LINE_TILE
            and splits <= most
            and choice.tiles(rows, columns, batches) * splits <= blocks
        )
    ]
    if together and even_blocks and math.ceil(depth / DEPTH) >= layout.PAIR:
        halved = (Choice(tile, layout.PAIR, "depth") for tile in TOGETHER_TILES if tile in tiles)
        choices += [choice for choice in halved if choice.tiles(rows, columns, batches) * layout.PAIR <= blocks]

    def offer(choice: Choice) -> Offer[Choice]:
        factor = HIGHER if choice.tile == HIGHER_TILE else 1.0
        if pairs and choice.tile == TILES[0] and not choice.shared:
            factor = UNSHARED
        found = (
            clocks(
                choice, rows, columns, batches, blocks, depth, costs, boxes=boxes, gathered=gathered, even=even
            )
            for even in (False, True)
        )  # fmt: skip
        later = costs.first if first and not choice.tile.low and not (boxes and in_boxes(choice)) else 0
        return Offer(choice, *(factor * each + later for each in found))

    offered = [offer(choice) for choice in choices]
    return tuple(sorted(offered, key=lambda o: (o.clocks, o.choice.brought("a") + o.choice.brought("b"))))


def is_exact(instruction: Instruction, dtype: DType) -> bool:
    """Whether operands of `dtype` are f32 that has to be multiplied as it is."""
    return dtype is DType.F32 and instruction.attributes.get("math", "exact") == "exact"


def ways(
    instruction: Instruction, dtype: DType, shape: tuple[int, int, int], slices: int, context: Context,
    *, in_chunks: bool, pairs: bool = True, low: bool = False, tall: tuple[Tile, ...] = (), gathered: bool = False,
) -> tuple[tuple[Offer[Choice], ...], bool] | None:  # fmt: skip
    """What is offered for a product of `shape` (rows, columns, batches) and a depth of `slices`.

    Also whether its epilogue is done in registers. None where the handler is quicker. `in_chunks`: results that
    registers finish are stored in lines, of whole chunks. `pairs`: of 16-bit floats, blocks may share operands. `low`:
    operands lie so that low tiles, and LINE_TILE, can be multiplied, and results in lines; `tall`: tall tiles that can
    be multiplied, if the copy engine stores the result; `gathered`: rows are windows.
    """
    blocks, depth = context.target.blocks, slices * DEPTH  # f32 takes as long as twice the depth
    fast = epilogue.is_fast(instruction)
    if is_exact(instruction, dtype):
        offered = _wide_first(offers(*shape, blocks, depth, tiles=EXACT_TILES, split=False, costs=EXACT_COSTS))
        items = (math.ceil(Choice(tile, 1).tiles(*shape) / blocks) * step for tile, step in HANDLER_TILES)
        return (offered, fast) if offered[0].clocks < EXACT_COSTS.start + min(items) * depth // 2 else None
    split = fast and in_chunks and context.workspace_bytes < MAX_WORKSPACE
    together = fast and in_chunks and dtype is not DType.F32 and epilogue.is_together(instruction)
    pairs = pairs and fast and dtype is not DType.F32
    tiles = tuple(tile for tile in (TILES if fast else SCRATCH_TILES) if dtype is not DType.F32 or tile in TURNED_TILES)
    if low and fast and dtype is not DType.F32:
        tiles += (LINE_TILE,)
        if epilogue.is_low(instruction):
            tiles += LOW_TILES
    boxes = in_chunks and shape[2] == 1 and fast and dtype is not DType.F32 and epilogue.is_in_boxes(instruction)
    if boxes:
        tiles += tall
    offered = offers(
        *shape, blocks, depth, tiles=tiles, split=split, pairs=pairs, together=together, boxes=boxes, gathered=gathered,
        first=context.first is instruction,
    )  # fmt: skip
    return offered, fast


def has_corners(rows: int, columns: int) -> bool:
    """Whether the loader can tell where any tile of such a result begins."""
    return rows <= CORNER_ROWS and columns <= CORNER_COLUMNS


def in_boxes(choice: Choice) -> bool:
    """Whether the copy engine stores the result (kernel/hopper/boxes.cuh, tall.cuh)."""
    return choice.splits == 1 and choice.tile in BOX_TILES


def _wide_first(offered: tuple[Offer[Choice], ...]) -> tuple[Offer[Choice], ...]:
    """What is offered for f32 as it is, with what narrow tiles take."""
    factors = (1.0 if o.choice.tile == EXACT_TILES[0] else NARROW for o in offered)
    priced = [Offer(o.choice, o.clocks * factor) for o, factor in zip(offered, factors, strict=True)]
    return tuple(sorted(priced, key=lambda o: o.clocks))


def slices_of(choice: Choice, total: int, *, b_across: bool) -> int:
    """Slices in a stage where the whole depth has `total`: as many as leave each part of the depth two stages.

    The loader takes some 500 clocks for a stage, whatever is in it.

    One only where the halves of a shared b, which lies along the depth, have to be neighbours in each slice.
    """
    if choice.shared == "b" and not b_across:
        return 1
    share = total // choice.splits
    return min(choice.tile.most_slices, 1 << max(0, (share // 2).bit_length() - 1))
