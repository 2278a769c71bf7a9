"""CONV of floats as a product: whether it fits, its tile shape and splits, its tensor maps.

The main loop and the epilogue are those of GEMM; only the rows of x are fetched in another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dla.emulator.device import layout
from dla.emulator.device.layout import PATH_CONV, PATH_GEMM
from dla.emulator.device.paths import epilogue, gemm, tilings
from dla.emulator.device.paths.tensor_map import ALIGNMENT, MAX_STRIDE, AnyMap, Im2colMap, TensorMap
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.emulator.device.paths.types import Context, Schedule
from dla.isa.descriptor import Descriptor
from dla.isa.dtypes import DType
from dla.isa.program import Instruction

LEAST_CHANNELS = 24
"""Fewer leave most of a stage's depth empty; kernel/conv_narrow.cuh is quicker."""
MAX_STEP = 8
"""Distance of windows that a tensor map can have (element strides)."""
CORNERS = range(-128, 128)
"""Places of the corners of an im2col map's box with two spatial axes."""
MAX_OFFSET = 255
"""Furthest place in the kernel that a copy with two spatial axes can name."""


@dataclass(frozen=True)
class Geometry:
    """A convolution over two spatial axes, the first of size 1 where there is only one; sizes are bounds."""

    samples: int
    sizes: tuple[int, int]
    channels: int
    outputs: int
    positions: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    low: tuple[int, int]
    high: tuple[int, int]
    line: int  # channels in a slice of a stage

    @staticmethod
    def of(instruction: Instruction, out: Descriptor, x: Descriptor, w: Descriptor) -> Geometry:
        """The geometry of a CONV."""
        attributes = instruction.attributes
        top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
        down, across = attributes.get("strides", (1, 1))
        down_dilation, across_dilation = attributes.get("dilations", (1, 1))
        return Geometry(
            x.bounds[0], _two(x.bounds[1:-1]), x.bounds[-1], out.bounds[-1], _two(out.bounds[1:-1]),
            _two(w.bounds[1:-1]), (down, across), (down_dilation, across_dilation), (top, left), (bottom, right),
            tilings.LINE_BYTES // x.dtype.itemsize,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Output positions of all samples."""
        return self.samples * math.prod(self.positions)

    @property
    def stages(self) -> int:
        """Of one slice, of the whole depth: a line of channels, or what is left of them, at one place of the kernel."""
        return math.prod(self.kernel) * math.ceil(self.channels / self.line)

    @property
    def is_pointwise(self) -> bool:
        """Whether each output position sees exactly its own pixel."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any((*self.low, *self.high))

    def fits_a_map(self) -> bool:
        """Whether the copy engine can find the windows: see the limits of cuTensorMapEncodeIm2col and its copies."""
        reach = [(k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True)]
        corners = [-low for low in self.low] + [high - r for high, r in zip(self.high, reach, strict=True)]
        return max(self.strides) <= MAX_STEP and max(reach) <= MAX_OFFSET and all(c in CORNERS for c in corners)


def _two(sizes: tuple[int, ...]) -> tuple[int, int]:
    return (1, *sizes)[-2:]  # type: ignore[return-value]


def schedule(instruction: Instruction, context: Context) -> Schedule | None:
    """The schedule of a CONV of floats whose operands tensor maps can describe; None for others."""
    if instruction.row.mnemonic != "CONV":
        return None
    out, x, w = (instruction.operand(name) for name in ("out", "x", "w"))
    if out is None or x is None or w is None or not x.dtype.is_float:
        return None
    if any(d.offset_register is not None for d in (out, x, w)) or 0 in (*out.bounds, *x.bounds, *w.bounds):
        return None
    if instruction.attributes.get("groups", 1) != 1 or any(instruction.attributes.get("gaps", ())):
        return None
    shape = Geometry.of(instruction, out, x, w)
    if shape.channels < LEAST_CHANNELS or not shape.fits_a_map() or not _has_pixels(x) or not _has_pixels(w):
        return None
    return _assemble(instruction, context, shape, out, x, w)


def _has_pixels(d: Descriptor) -> bool:
    """Whether channels are neighbours, and everything else lies at distances that a map can have."""
    item = d.dtype.itemsize
    steps = [s * item for s, dim in zip(d.strides[:-1], d.bounds[:-1], strict=True) if dim != 1]
    return (
        d.strides[-1] == 1
        and d.offset % ALIGNMENT == 0
        and all(step % ALIGNMENT == 0 and 0 < step < MAX_STRIDE for step in steps)
    )


def _steps(d: Descriptor) -> tuple[int, int, int]:
    """Bytes between neighbours across, down, and of samples (or outputs): positive also where there is only one."""
    item = d.dtype.itemsize
    outer, *spatial, _ = (s * item if dim != 1 else ALIGNMENT for s, dim in zip(d.strides, d.bounds, strict=True))
    down, across = (ALIGNMENT, *spatial)[-2:]
    return across, down, outer


def _tall_tiles(outputs: int) -> tuple[Tile, ...]:
    few = outputs <= tilings.FEW_OUTPUTS_TILE.columns
    return (*tilings.TALL_TILES, tilings.FEW_OUTPUTS_TILE) if few else tilings.TALL_TILES


def _assemble(
    instruction: Instruction, context: Context, shape: Geometry, out: Descriptor, x: Descriptor, w: Descriptor
) -> Schedule | None:
    plain = shape.is_pointwise and _is_dense(x)
    product = (shape.rows, shape.outputs, 1)
    in_lines = _is_dense(out) and epilogue.is_in_lines(instruction) and tilings.has_corners(shape.rows, shape.outputs)
    in_chunks = in_lines and epilogue.is_in_chunks(out)
    found = tilings.ways(
        instruction, x.dtype, product, shape.stages, context, in_chunks=in_chunks, pairs=plain, low=in_lines,
        tall=_tall_tiles(shape.outputs) if out.dtype is x.dtype else (), gathered=not plain,
    )  # fmt: skip
    if found is None:
        return None
    offers, fast = found
    exact = tilings.is_exact(instruction, x.dtype)
    decision = context.decide(instruction, offers)
    choice, tile = decision.choice, decision.choice.tile
    slices = 1
    if not exact:
        total = shape.stages
        slices = tilings.slices_of(choice, total, b_across=False) if plain else _slices(choice, total)
    whole = False
    x_map: AnyMap
    if plain:
        dims = (shape.channels, shape.rows), (shape.channels, shape.outputs)
        boxes = (choice.brought("a"), slices), (choice.brought("b"), slices)
        x_map, whole = gemm.operand_map(x.dtype, context.address(x), dims[0], _pixel_step(x), boxes[0])
        w_map, _ = gemm.operand_map(w.dtype, context.address(w), dims[1], _steps(w)[2], boxes[1])
    else:
        x_map, w_map = _window_map(context, x, shape, tile.rows), _kernel_map(context, w, shape, tile.columns)
    flags = {
        layout.A_WHOLE: whole,
        layout.B_WHOLE: whole,
        layout.HALF_FLOATS: x.dtype is DType.F16,
        layout.FLOATS: x.dtype is DType.F32,
        layout.EXACT: exact,
        layout.BY_PIECES: exact and fast,
        layout.B_CONSTANT: context.is_constant(w),
        layout.BIAS_EARLY: fast and not exact and epilogue.bias_is_early(instruction),
    }
    stages = math.ceil(shape.stages / slices)
    in_registers = fast and not exact
    in_lines = in_lines and in_registers
    pitch = _pixel_step(out) if in_lines else None
    in_chunks = in_chunks and in_lines
    out_map = None
    if in_chunks and slices == 1:
        out_map = gemm.result_map(instruction, context, choice, shape.rows, pitch)
    parts = gemm.Parts(
        decision, choice.tiles(*product), stages, fast, slices, pitch=pitch, in_chunks=in_chunks, out_map=out_map
    )
    path = PATH_GEMM if plain else PATH_CONV
    return gemm.product_schedule(context, path, parts, (x_map, w_map), flags)


def _slices(choice: Choice, total: int) -> int:
    """Slices in a stage where windows are gathered and the whole depth has `total`.

    The loader takes about as long for a stage as for one and a half slices of it; what is left of the last stage is
    brought and multiplied, too. Each part of the depth has two stages.
    """

    def longest(slices: int) -> float:
        return math.ceil(math.ceil(total / slices) / choice.splits) * (slices + 1.5)

    room = tilings.RING_GRANULES * tilings.GRANULE_BYTES // (tilings.LEAST_STAGES * choice.tile.slice_bytes)
    most = min(room, total // choice.splits // 2)
    return min(range(1, max(1, most) + 1), key=lambda slices: (longest(slices), slices))


def _is_dense(d: Descriptor) -> bool:
    """Whether all pixels lie at one distance."""
    expected: int | None = None
    for stride, dim in reversed([*zip(d.strides[:-1], d.bounds[:-1], strict=True)]):
        if dim != 1:
            if expected is not None and stride != expected:
                return False
            expected = stride * dim
    return True


def _pixel_step(d: Descriptor) -> int:
    """Bytes between the pixels of a view that has them at one distance."""
    pixels = [*zip(d.strides[:-1], d.bounds[:-1], strict=True)]
    return next((stride * d.dtype.itemsize for stride, dim in reversed(pixels) if dim != 1), ALIGNMENT)


def _kernel_map(context: Context, w: Descriptor, shape: Geometry, columns: int) -> TensorMap:
    """Boxes of a line of channels of one place of the kernels of `columns` outputs."""
    dims = (shape.channels, shape.kernel[1], shape.kernel[0], shape.outputs)
    return TensorMap(w.dtype, context.address(w), dims, _steps(w), (shape.line, 1, 1, columns))


def _window_map(context: Context, x: Descriptor, shape: Geometry, rows: int) -> Im2colMap:
    """Boxes of a line of channels of what the windows of `rows` positions have at one place."""
    reach = [(k - 1) * d for k, d in zip(shape.kernel, shape.dilations, strict=True)]
    return Im2colMap(
        x.dtype, context.address(x), (shape.channels, shape.sizes[1], shape.sizes[0], shape.samples), _steps(x),
        lower=(-shape.low[1], -shape.low[0]), upper=(shape.high[1] - reach[1], shape.high[0] - reach[0]),
        box=(shape.line, rows), step=(shape.strides[1], shape.strides[0]),
    )  # fmt: skip
