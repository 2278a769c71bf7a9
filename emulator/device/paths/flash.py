"""ATTENTION of 16-bit floats: on wgmma, in tiles of 16 rows, or of a few queries, whose keys are split over blocks."""

from __future__ import annotations

import math

from dla.emulator.device.layout import FLASH_F16, FLASH_HALVES, FLASH_WIDE, PATH_FLASH, PATH_GENERIC
from dla.emulator.device.paths.tensor_map import ALIGNMENT, MAX_STRIDE, TensorMap
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

TILE = 128
"""Queries of a tile (half as many, where that still makes one tile for each block), and keys of one of its steps."""
PANEL = 64
"""Columns that one swizzled row of 128 bytes has."""
MOST_COLUMNS = 128
CACHED_BYTES = 32 << 20
"""Of keys and values that blocks may be at work on at a time, and find in the L2 cache of a Hopper GPU."""
FAR = 1 << 30
"""Queries and keys that positions of 32 bits can tell apart."""
FEW_QUERIES, FEW_DEPTH, FEW_ROWS = 16, 512, 16
"""What kernel/attention_few.cuh takes, and the rows of its tiles."""
MOST_ROW_TILES = 0xFFFF
LEAST_KEYS = 64
"""Keys that one block has, at least, where keys are split over blocks."""
ENOUGH_KEYS, FEW_SPLITS, STEP_KEYS = 128, 8, 128
"""More than so many splits have more keys than the least, but not more than enough; keys of 64 columns in a step."""
ROW_COLUMNS, ROW_KEYS = (32, 64, 128), 128
"""What tiles of few rows, one for each block, take of many queries: columns, and keys at most (of up to 64 columns)."""
HELD_COLUMNS = (64, 128)
"""Of keys that warps keep in registers (kernel/attention_held.cuh), and of values."""
FEW_TAKES_AT = 2
"""Place in the numbers of an ATTENTION of few queries; GIVES is in the upper half of the first one."""
PARTIAL_BYTES = 16 * (128 + 2 * 128 // 4) * 4
"""Of a partial result: 16 rows of sums, each with its maximum and denominator behind it, once for each four of them."""


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of an ATTENTION on wgmma: up to 128 columns, no mask tensor, more than a few queries."""
    if instruction.row.mnemonic != "ATTENTION" or instruction.operand("mask") is not None:
        return None
    out, q, k, v = _operands(instruction)
    if q.dtype not in (DType.F16, DType.BF16) or out.dtype is not q.dtype or instruction.attributes.get("scale", 0) < 0:
        return None
    columns = max(q.bounds[3], v.bounds[3])
    if not _worth_it(q, v) or columns > MOST_COLUMNS or not _stores_chunks(out):
        return None
    maps = [_tensor_map(d, context) for d in (q, k, v)]
    if any(m is None for m in maps):
        return None
    flags = (FLASH_WIDE if columns > PANEL else 0) | (FLASH_F16 if q.dtype is DType.F16 else 0)
    paired = _paired_heads(q, v) if instruction.attributes.get("causal") else 0
    samples, heads, queries, _ = q.bounds
    tile = TILE
    if samples * heads * math.ceil(queries / (TILE // 2)) <= context.target.blocks:
        tile, paired, flags = TILE // 2, 0, flags | FLASH_HALVES  # there are blocks enough
    detail = (*(context.map_index(m) for m in maps if m is not None), flags, paired)
    return Schedule(PATH_FLASH, detail, f"{tile} queries x {TILE} keys", samples * heads * math.ceil(queries / tile))


def few_rows(instruction: Instruction, context: Context) -> Schedule | None:
    """Tiles of 16 rows of an ATTENTION of many queries, where there is a block for each, and room for all keys in one.

    The device finds that for itself (`FewQueries::measure` in kernel/attention_few.cuh); here, it is no other path's.
    """
    if instruction.row.mnemonic != "ATTENTION" or instruction.operand("mask") is not None:
        return None
    out, q, k, v = _operands(instruction)
    if q.dtype is DType.F32 or out.dtype is not q.dtype or instruction.attributes.get("softcap"):
        return None
    columns = q.bounds[3]
    if not _worth_it(q, v) or columns not in ROW_COLUMNS or v.bounds[3] != columns:
        return None
    if k.bounds[2] > ROW_KEYS * PANEL // max(PANEL, columns) or groups(instruction) > context.target.blocks:
        return None
    if not all(map(_in_chunks, (out, q, k, v))):
        return None
    return Schedule(PATH_GENERIC, (0, 0, 0), f"{FEW_ROWS} rows of queries, keys in registers", groups(instruction))


def few_queries(instruction: Instruction, context: Context) -> Schedule | None:
    """Room for the partial results of an ATTENTION that may have few queries, whose keys are then split over blocks."""
    if instruction.row.mnemonic != "ATTENTION":
        return None
    _, q, k, _ = _operands(instruction)
    always_many = q.bounds[2] > FEW_QUERIES and not isinstance(q.dims[2], Dynamic)
    if q.dtype is DType.F32 or always_many or q.bounds[3] > FEW_DEPTH or k.bounds[2] <= LEAST_KEYS:
        return None
    partials = context.target.blocks
    at = context.workspace(partials * PARTIAL_BYTES)
    return Schedule(PATH_GENERIC, (partials, at // 1024, 0), "keys split over blocks")


def is_held(instruction: Instruction, chosen: Schedule) -> bool:
    """Whether few queries, and all that they meet, go through registers, whatever the program's registers hold."""
    if instruction.row.mnemonic != "ATTENTION" or chosen.path != PATH_GENERIC or not chosen.detail:
        return False
    if instruction.attributes.get("softcap") or any(instruction.operand(name) is not None for name in ("mask", "lse")):
        return False
    out, q, k, v = _operands(instruction)
    heads, of_keys, columns = q.bounds[1], k.bounds[1], q.bounds[3]
    return (
        not any(
            isinstance(dim, Dynamic) for dim in (*out.dims, *q.dims, *k.dims[:2], k.dims[3], *v.dims[:2], v.dims[3])
        )
        and out.elements > 0
        and q.bounds[2] <= FEW_QUERIES
        and columns in HELD_COLUMNS
        and v.bounds[3] == columns
        and k.bounds[2] < FAR
        and out.dtype is q.dtype
        and math.ceil(heads // of_keys * q.bounds[2] / FEW_ROWS) <= MOST_ROW_TILES
        and all(map(_in_chunks, (q, k, v)))
    )


def groups(instruction: Instruction) -> int:
    """Tiles of 16 rows, of all heads that share keys; where keys are split, blocks that put together what was found."""
    _, q, k, _ = _operands(instruction)
    samples, heads, queries, _ = q.bounds
    return samples * k.bounds[1] * math.ceil(heads // k.bounds[1] * queries / FEW_ROWS)


def least_splits(instruction: Instruction) -> int | None:
    """The fewest splits of as many keys as there may be with which each warp has all its keys at once.

    Of an ATTENTION that is_held. A split has no more than what the warps of a block have in one step then, however many
    keys there are: FewQueries' share, which grows with them. None where it is more with any number of splits.
    """
    _, q, k, _ = _operands(instruction)
    keys, most = k.bounds[2], STEP_KEYS * HELD_COLUMNS[0] // q.bounds[3]
    least = max(LEAST_KEYS, min(ENOUGH_KEYS, math.ceil(keys / FEW_SPLITS)))
    return math.ceil(keys / most) if least <= most else None


def _in_chunks(d: Descriptor) -> bool:
    """Whether all lines are chunks of 16 bytes, whatever registers hold."""
    steps = [s * d.dtype.itemsize for dim, s in zip(d.bounds[:-1], d.strides[:-1], strict=True) if dim != 1]
    return d.strides[-1] == 1 and not any(step % ALIGNMENT for step in (*steps, d.offset, d.offset_scale))


def _paired_heads(q: Descriptor, v: Descriptor) -> int:
    """Heads that blocks are through with before they come to those whose keys and values all fit in the cache."""
    heads = q.bounds[0] * q.bounds[1]
    of_keys = v.bounds[0] * v.bounds[1] * v.bounds[2] * (q.bounds[3] + v.bounds[3]) * q.dtype.itemsize
    return heads - max(1, min(heads, heads * CACHED_BYTES // of_keys))


def _operands(instruction: Instruction) -> tuple[Descriptor, Descriptor, Descriptor, Descriptor]:
    out, q, k, v = (d for name in ("out", "q", "k", "v") if (d := instruction.operand(name)) is not None)
    return out, q, k, v


def _worth_it(q: Descriptor, v: Descriptor) -> bool:
    """Whether there is something to multiply, for more than a few queries, all within 32 bits."""
    (_, _, queries, depth), (_, _, keys, columns) = q.bounds, v.bounds
    return FEW_QUERIES < queries < FAR and 0 < keys < FAR and depth > 0 and columns > 0 and 0 not in q.bounds


def _stores_chunks(out: Descriptor) -> bool:
    """Whether rows of the result can be stored 16 bytes at a time."""
    per_chunk = ALIGNMENT // out.dtype.itemsize
    apart = all(s % per_chunk == 0 or b == 1 for s, b in zip(out.strides[:3], out.bounds[:3], strict=True))
    aligned = out.offset % ALIGNMENT == 0 and out.offset_scale % ALIGNMENT == 0
    return out.strides[3] == 1 and out.bounds[3] % per_chunk == 0 and apart and aligned


def _tensor_map(descriptor: Descriptor, context: Context) -> TensorMap | None:
    """The map of q, k or v: columns, lines, heads, samples, and the places that a register moves the view to.

    None where an address is not a multiple of 16 bytes, or columns are no neighbours.
    """
    item = descriptor.dtype.itemsize
    samples, heads, lines, columns = descriptor.bounds
    steps = [s * item for s in descriptor.strides]
    dims = (columns, lines, heads, samples)
    if descriptor.strides[3] != 1 and columns != 1:
        return None
    address, places, scale = context.address(descriptor), 1, ALIGNMENT
    if descriptor.offset_register is not None:
        low, high = context.limits(descriptor)
        scale = descriptor.offset_scale
        if scale <= 0:
            return None
        address = low + (address - low) % scale
        places = (high - address - descriptor.span) // scale + 1
    strides = tuple(ALIGNMENT if n == 1 else s for n, s in zip(dims[1:], (steps[2], steps[1], steps[0]), strict=True))
    if address % ALIGNMENT or places < 1 or any(s % ALIGNMENT or not 0 < s < MAX_STRIDE for s in (*strides, scale)):
        return None
    return TensorMap(descriptor.dtype, address, (*dims, places), (*strides, scale), (PANEL, TILE, 1, 1, 1))
