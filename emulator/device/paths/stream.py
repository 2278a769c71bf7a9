"""GEMM of few rows, which takes as long as its other matrix takes to be read: whether that matrix can be streamed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dla.emulator.device.layout import PATH_STREAM, PLAIN_FEW, PLAIN_UNITS, STREAM_SCHEDULE, WARP
from dla.emulator.device.paths.tensor_map import ALIGNMENT, MAX_STRIDE, TensorMap
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

MOST_ROWS = 16
PACKED_UNIT = 8
"""Columns of b that a block takes at a time, if they are packed along the depth."""
PACKED_DEPTH = 2048
"""Of the depth, in a stage of GRANULES; shallower products have stages of half the size."""
NARROW_UNIT, WIDE_UNIT = 16, 32
"""The same of columns that lie across. Narrow ones load more blocks evenly, wide ones more of each line of memory."""
MOST_WIDE_ROWS = 8
"""More of them have more sums in a wide unit than a block has threads to finish them."""
KEPT_DEPTH = {PACKED_UNIT: 8192, NARROW_UNIT: 2048, WIDE_UNIT: 2048}
"""Of a, what warps keep in registers if it has few rows, by the unit."""
SUMS = 256
"""That a block finishes at a time: one for each of its workers."""
PLAIN_STEPS = 3
_FIELDS = [name for name, _, count, *_ in STREAM_SCHEDULE.fields for _ in range(count)]
NORM_AT, GIVES_AT, TAKES_AT, PLAIN_AT, SPARED_AT = (
    _FIELDS.index(name) for name in ("norm", "gives", "takes", "plain", "spared")
)
"""Places in the numbers of a schedule."""
GRANULES = 4
GRANULE_BYTES = 8192
LINE_DEPTH = 64
"""Elements in 128 bytes, the width of a swizzled tile of packed columns."""
FEW_ROWS = 8
"""Those of one product of a tensor core."""
START = 4700.0
"""Clocks until all blocks are at work, about."""
FEW, MANY_ACROSS, MANY_PACKED = 1960.0, 1080.0, 1425.0
"""Bytes that these read in one, of few rows and of more."""


@dataclass(frozen=True)
class _Stages:
    """How b goes through the ring: the numbers of STREAM_SCHEDULE that say so, and the tensor map."""

    unit: int
    panels: int
    granules: int
    boxes: int
    pitch: int
    tensor_map: TensorMap


def takes(instruction: Instruction) -> bool:
    """Whether it is a GEMM of 16-bit floats with at most 16 rows, b all of lines of 16 bytes."""
    if instruction.row.mnemonic != "GEMM":
        return False
    out, a, b = (instruction.operand(name) for name in ("out", "a", "b"))
    if out is None or a is None or b is None or a.dtype not in (DType.F16, DType.BF16):
        return False
    if not 1 <= math.prod(out.bounds[:-1]) <= MOST_ROWS or not _has_packed_rows(a):
        return False
    if any(isinstance(d, Dynamic) for d in (a.dims[-1], *b.dims[-2:])) or b.bounds[-1] == 0 or b.offset % ALIGNMENT:
        return False
    if any(dim != 1 and stride for dim, stride in zip(b.bounds[:-2], b.strides[:-2], strict=True)):
        return False
    return _has_packed_columns(b) or _lies_across(b)


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a product that this path takes; None for others."""
    if not takes(instruction):
        return None
    out, a, b = (instruction.operand(name) for name in ("out", "a", "b"))
    assert out is not None
    assert a is not None
    assert b is not None
    rows = math.prod(out.bounds[:-1])
    stages = _packed(b, context) if _has_packed_columns(b) else _across(b, rows, context)
    tensor_map = stages.tensor_map
    units = math.ceil(b.bounds[-1] / stages.unit)
    values = {
        **vars(stages),
        "map": context.map_index(tensor_map),
        "constant": context.is_constant(b),
        "half_floats": a.dtype is DType.F16,
    }
    detail = [int(values[name]) for name, *_ in STREAM_SCHEDULE.fields if name in values]
    address = tensor_map.address
    plain = _plain(instruction, stages.unit, units, context.target.blocks)
    detail += [address & 0xFFFFFFFF, address >> 32, 0, 0, 0, 0, plain, 0]
    lies = "packed" if stages.unit == PACKED_UNIT else "across"
    return Schedule(PATH_STREAM, tuple(detail), f"streamed in units of {stages.unit} columns, {lies}", units)


def clocks(instruction: Instruction, *, begun: bool = False) -> float:
    """About how long a product of this path takes; `begun`: while another one ends, so what comes first is there."""
    out, b = (instruction.operand(name) for name in ("out", "b"))
    assert out is not None
    assert b is not None
    rate = FEW
    if math.prod(out.bounds[:-1]) > FEW_ROWS:
        rate = MANY_PACKED if _has_packed_columns(b) else MANY_ACROSS
    return (0.0 if begun else START) + math.prod(b.bounds[-2:]) * b.dtype.itemsize / rate


def _plain(instruction: Instruction, unit: int, units: int, blocks: int) -> int:
    """STREAM_SCHEDULE's number for products that kernel/hopper/stream_plain.cuh executes, 0 for others."""
    out, a = (instruction.operand(name) for name in ("out", "a"))
    assert out is not None
    assert a is not None
    rows, each = math.prod(out.bounds[:-1]), units // blocks
    attributes = instruction.attributes
    steps: tuple[str, ...] = attributes.get("steps", ())
    if (
        rows not in (1, 2, 4)
        or a.bounds[-1] > KEPT_DEPTH[unit]
        or (each + 1) * unit * rows > SUMS
        or len(steps) > PLAIN_STEPS
        or not set(steps) <= {"bias", "act", "residual"}
        or any(instruction.operand(name) is not None for name in ("c", "gate"))
    ):
        return 0
    bias, residual = (instruction.operand(name) for name in ("bias", "residual"))
    whole = [d for d in (out, a, residual) if d is not None]
    if any(d is not None and d.dtype is not a.dtype for d in (*whole, bias)) or not all(map(is_row_major, whole)):
        return 0
    if a.elements != rows * a.bounds[-1] or (residual is not None and residual.elements != out.elements):
        return 0
    if bias is not None and (bias.elements != out.bounds[-1] or not is_row_major(bias)):
        return 0
    few = (
        (each + 1) * unit * rows <= WARP
        and instruction.sub != "glu"
        and attributes.get("act", "identity") in ("identity", "relu")
    )
    return 1 | rows // 2 << 1 | few * PLAIN_FEW | each * PLAIN_UNITS


def sparing(numbers: list[int], units: int, blocks: int, spared: int) -> bool:
    """Lets so many blocks have no part in a plain product, in the `numbers` of its schedule; False if it cannot."""
    plain, unit = numbers[PLAIN_AT], numbers[_FIELDS.index("unit")]
    each, rows = units // (blocks - spared), 1 << plain // 2 % 4
    if unit != PACKED_UNIT or (each + 1) * unit * rows > SUMS:
        return False
    few = plain & PLAIN_FEW and (each + 1) * unit * rows <= WARP
    numbers[PLAIN_AT] = plain % PLAIN_FEW + (PLAIN_FEW if few else 0) + each * PLAIN_UNITS
    numbers[SPARED_AT] = spared
    return True


def is_row_major(d: Descriptor) -> bool:
    """Whether a tensor has no gaps, whatever its registers hold: dims are constant, or 1 unless it has no elements."""
    step = 1
    for given, dim, stride in zip(reversed(d.dims), reversed(d.bounds), reversed(d.strides), strict=True):
        if dim != 1 and (isinstance(given, Dynamic) or stride != step):
            return False
        step *= dim
    return True


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
    """Whether the columns of `b` are such chunks, at one distance from each other, however a register moves them."""
    (depth, columns), (stride, step) = b.bounds[-2:], b.strides[-2:]
    pitch = _column_pitch(b)
    return (
        stride == 1
        and (columns == 1 or step >= depth)
        and pitch % ALIGNMENT == 0
        and 0 < pitch < MAX_STRIDE
        and (b.offset_register is None or b.offset_scale % pitch == 0)
    )


def _column_pitch(b: Descriptor) -> int:
    """Bytes between columns; of a single one, its length."""
    return (b.bounds[-2] if b.bounds[-1] == 1 else b.strides[-1]) * b.dtype.itemsize


def _packed(b: Descriptor, context: Context) -> _Stages:
    """Stages of a unit by PACKED_DEPTH. The map has all columns that `b` can be moved to."""
    depth, columns = b.bounds[-2:]
    address, pitch = context.address(b), _column_pitch(b)
    granules = GRANULES if depth * 2 > PACKED_DEPTH else GRANULES // 2
    moved = 0
    if b.offset_register is not None:
        low, high = context.limits(b)
        address -= (address - low) // pitch * pitch
        columns = (high - address - depth * 2) // pitch + 1
        moved = pitch
    lines = granules * PACKED_DEPTH // GRANULES // LINE_DEPTH
    if depth % LINE_DEPTH:
        boxes, box = lines, (LINE_DEPTH, PACKED_UNIT)
        tensor_map = TensorMap(b.dtype, address, (depth, columns), (pitch,), box)
    else:
        boxes, dims = 1, (LINE_DEPTH, columns, depth // LINE_DEPTH)
        tensor_map = TensorMap(b.dtype, address, dims, (pitch, LINE_DEPTH * 2), (LINE_DEPTH, PACKED_UNIT, lines))
    return _Stages(PACKED_UNIT, math.ceil(depth / PACKED_DEPTH), granules, boxes, moved, tensor_map)


def _lies_across(b: Descriptor) -> bool:
    """Whether neighbours in `b` are columns, in lines that begin at chunks, wherever a register moves them to."""
    stride, step = b.strides[-2:]
    pitch = stride * b.dtype.itemsize
    scale = ALIGNMENT if b.offset_register is None else b.offset_scale
    return (
        step == 1 and pitch % ALIGNMENT == 0 and 0 < pitch < MAX_STRIDE and scale % ALIGNMENT == 0 and 0 < scale < 2**32
    )


def _across(b: Descriptor, rows: int, context: Context) -> _Stages:
    """Stages of a unit by as much of the depth as fits. The places that `b` can be moved to are the map's last dim."""
    depth, columns = b.bounds[-2:]
    unit = NARROW_UNIT if rows > MOST_WIDE_ROWS or columns <= NARROW_UNIT * context.target.blocks else WIDE_UNIT
    line = unit * b.dtype.itemsize
    address, pitch = context.address(b), b.strides[-2] * b.dtype.itemsize
    places, moved = 1, 0
    if b.offset_register is not None:
        moved = b.offset_scale
        low, high = context.limits(b)
        address -= (address - low) // moved * moved
        places = (high - address - (depth - 1) * pitch - columns * 2) // moved + 1
    box = (unit, GRANULE_BYTES // line, 1)
    tensor_map = TensorMap(b.dtype, address, (columns, depth, places), (pitch, moved or pitch), box, swizzle=line)
    return _Stages(unit, math.ceil(depth / (GRANULES * box[1])), GRANULES, GRANULES, moved, tensor_map)
