"""CONV of images, three channels wide, on wgmma: what fits, and how much of an image a block takes at a time."""

from __future__ import annotations

import math

from dla.emulator.device import layout
from dla.emulator.device.layout import PATH_PIXELS
from dla.emulator.device.paths import epilogue
from dla.emulator.device.paths.conv import Geometry
from dla.emulator.device.paths.tensor_map import ALIGNMENT, TensorMap
from dla.emulator.device.paths.tilings import GRANULE_BYTES, LINE_BYTES, RING_GRANULES
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

CHANNELS, STEP = 3, 2
"""Of x; and positions from window to window across: two pixels, of four elements each, are 16 bytes."""
OUTPUTS = 64
"""At most: one product is so wide."""
PAIR_BYTES = 16
KERNEL_WIDTHS = (3, 4, 7, 8)
"""Whose pairs of pixels are an even number: a product takes two."""
POSITIONS = 128
"""Of a line, for one product; and that the copy engine stores at a time."""
BOXES = 2
"""Of results, that wait for the copy engine: one for each warpgroup."""
LINES = (4, 3, 2, 1)
"""Of the result, in a tile, where there are enough for all blocks, and they fit."""
ROW_MARGIN = 32
"""Bytes: in front of a row of x, and behind it."""


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a CONV of three channels whose windows lie two pixels apart; None for others."""
    if instruction.row.mnemonic != "CONV":
        return None
    out, x, w = (instruction.operand(name) for name in ("out", "x", "w"))
    if out is None or x is None or w is None or not _fits(instruction, out, x, w):
        return None
    shape = Geometry.of(instruction, out, x, w)
    if shape.channels != CHANNELS or shape.outputs > OUTPUTS or shape.strides[1] != STEP or shape.dilations[1] != 1:
        return None
    if shape.kernel[1] not in KERNEL_WIDTHS:
        return None
    pairs = math.ceil(shape.kernel[1] / 2)
    span = math.ceil(shape.positions[1] / POSITIONS) * POSITIONS + pairs - 1
    pitch = -(-shape.sizes[1] * CHANNELS * 2 // ALIGNMENT) * ALIGNMENT + ROW_MARGIN
    depth = shape.kernel[0] * pairs
    for lines in LINES:
        bands = math.ceil(shape.positions[0] / lines)
        rows = (lines - 1) * shape.strides[0] + (shape.kernel[0] - 1) * shape.dilations[0] + 1
        room = BOXES * POSITIONS * LINE_BYTES + depth * OUTPUTS * PAIR_BYTES + rows * (2 * span * PAIR_BYTES + pitch)
        granules = math.ceil(room / GRANULE_BYTES)
        busy = shape.samples * bands >= context.target.blocks or lines == 1
        if busy and granules <= RING_GRANULES:
            break
    else:
        return None
    flags = (layout.HALF_FLOATS if x.dtype is DType.F16 else 0) | (layout.B_CONSTANT if context.is_constant(w) else 0)
    out_map = context.map_index(_result_map(context, out))
    detail = (lines, bands, rows, pairs, span, pitch, depth, granules, flags, out_map)
    return Schedule(PATH_PIXELS, detail, f"wgmma, pairs of pixels, {lines} lines at a time", shape.samples * bands)


def _result_map(context: Context, out: Descriptor) -> TensorMap:
    """Boxes of some positions of a line."""
    dims, steps = (
        tuple(reversed(out.bounds)),
        tuple(stride * out.dtype.itemsize for stride in reversed(out.strides[:-1])),
    )
    ones = tuple(ALIGNMENT if dim == 1 else step for dim, step in zip(dims[1:], steps, strict=True))
    return TensorMap(out.dtype, context.address(out), dims, ones, (OUTPUTS, POSITIONS, 1, 1))


def _fits(instruction: Instruction, out: Descriptor, x: Descriptor, w: Descriptor) -> bool:
    """Whether the types, the layouts and what follows the products are such that the kernel can do it."""
    attributes = instruction.attributes
    if x.dtype not in (DType.BF16, DType.F16) or x.rank != 4 or 0 in (*out.bounds, *x.bounds, *w.bounds):
        return False
    if any(d.offset_register is not None for d in (out, x, w)):
        return False
    if any(isinstance(dim, Dynamic) for d in (out, x, w) for dim in d.dims[1:]) or isinstance(w.dims[0], Dynamic):
        return False
    if attributes.get("groups", 1) != 1 or any(attributes.get("gaps", ())):
        return False
    rows = (x.strides[0] * 2 % ALIGNMENT, x.strides[1] * 2 % ALIGNMENT, x.offset % ALIGNMENT)
    if any(rows) or x.strides[2:] != (CHANNELS, 1) or w.strides[3] != 1:
        return False
    if not set(attributes.get("steps", ())) <= {"bias", "act"} or attributes.get("act", "identity") not in (
        "identity",
        "relu",
    ):
        return False
    return epilogue.is_fast(instruction) and epilogue.is_in_lines(instruction) and epilogue.is_in_chunks(out)
