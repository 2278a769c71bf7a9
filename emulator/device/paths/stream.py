"""GEMM of few rows, which takes as long as its other matrix takes to be read: whether that matrix can be streamed."""

from __future__ import annotations

import math

from dla.emulator.device.layout import PATH_STREAM, STREAM_SCHEDULE
from dla.emulator.device.paths.tensor_map import ALIGNMENT, MAX_STRIDE, TensorMap
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

MOST_ROWS = 16
UNIT = 8
"""Columns of b that a block takes at a time."""
PANEL_DEPTH = 2048
"""Of the depth, in a stage of GRANULES; shallower products have stages of half the size."""
GRANULES = 4
BOX_DEPTH = 64
"""Elements in 128 bytes, the width of a swizzled tile."""


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a GEMM of 16-bit floats with at most 16 rows, b stored column after column; None for others."""
    if instruction.row.mnemonic != "GEMM":
        return None
    out, a, b = (instruction.operand(name) for name in ("out", "a", "b"))
    if out is None or a is None or b is None or a.dtype not in (DType.F16, DType.BF16):
        return None
    if not 1 <= math.prod(out.bounds[:-1]) <= MOST_ROWS or not _has_packed_rows(a):
        return None
    if any(isinstance(d, Dynamic) for d in (a.dims[-1], *b.dims[-2:])) or not _has_packed_columns(b):
        return None
    if any(dim != 1 and stride for dim, stride in zip(b.bounds[:-2], b.strides[:-2], strict=True)):
        return None
    depth, columns = b.bounds[-2:]
    granules = GRANULES if depth * 2 > PANEL_DEPTH else GRANULES // 2
    tensor_map, pitch = _map(b, depth, columns, granules, context)
    values = {
        "map": context.map_index(tensor_map),
        "constant": context.is_constant(b),
        "half_floats": a.dtype is DType.F16,
        "panels": math.ceil(depth / PANEL_DEPTH),
        "granules": granules,
        "boxes": 1 if len(tensor_map.dims) == 3 else granules * PANEL_DEPTH // GRANULES // BOX_DEPTH,
        "pitch": pitch,
    }
    detail = [int(values[name]) for name, *_ in STREAM_SCHEDULE.fields if name != "base"]
    address = tensor_map.address
    detail += [address & 0xFFFFFFFF, address >> 32]
    return Schedule(PATH_STREAM, tuple(detail), f"streamed in units of {UNIT} columns", math.ceil(columns / UNIT))


def _has_packed_rows(a: Descriptor) -> bool:
    """Whether rows of `a` are made of whole, aligned chunks of 16 bytes."""
    depth, stride = a.bounds[-1], a.strides[-1]
    rows = zip(a.bounds[:-1], a.strides[:-1], strict=True)
    return (
        depth > 0
        and depth * 2 % ALIGNMENT == 0
        and stride == 1
        and all(dim == 1 or step * 2 % ALIGNMENT == 0 for dim, step in rows)
        and a.offset % ALIGNMENT == 0
        and a.offset_scale % ALIGNMENT == 0
    )


def _has_packed_columns(b: Descriptor) -> bool:
    """Whether the same holds for the columns of `b`, at one distance from each other, however a register moves them."""
    (depth, columns), (stride, step) = b.bounds[-2:], b.strides[-2:]
    pitch = _pitch(b)
    return (
        columns > 0
        and stride == 1
        and (columns == 1 or step >= depth)
        and pitch % ALIGNMENT == 0
        and 0 < pitch < MAX_STRIDE
        and b.offset % ALIGNMENT == 0
        and (b.offset_register is None or b.offset_scale % pitch == 0)
    )


def _pitch(b: Descriptor) -> int:
    """Bytes between columns; of a single one, its length."""
    return (b.bounds[-2] if b.bounds[-1] == 1 else b.strides[-1]) * b.dtype.itemsize


def _map(b: Descriptor, depth: int, columns: int, granules: int, context: Context) -> tuple[TensorMap, int]:
    """The map of all columns that `b` can be moved to; and their distance, or 0 where nothing moves it."""
    address, pitch = context.address(b), _pitch(b)
    moved = 0
    if b.offset_register is not None:
        low, high = context.limits(b)
        address -= (address - low) // pitch * pitch
        columns = (high - address - depth * 2) // pitch + 1
        moved = pitch
    if depth % BOX_DEPTH:
        return TensorMap(b.dtype, address, (depth, columns), (pitch,), (BOX_DEPTH, UNIT)), moved
    box = (BOX_DEPTH, UNIT, granules * PANEL_DEPTH // GRANULES // BOX_DEPTH)
    return TensorMap(b.dtype, address, (BOX_DEPTH, columns, depth // BOX_DEPTH), (pitch, 128), box), moved
