"""Operators that move elements to other places by shape alone: mostly views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.onnx.rules.slices import cut, part
from dla.compiler.onnx.sizes import fixed_dim
from dla.compiler.shapes import broadcast, inverse, shape_text
from dla.isa.descriptor import MAX_RANK
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def reshape(c: Context) -> Value:
    """0 keeps a dim (unless allowzero), -1 takes what is left; before operator set 5 the shape was an attribute."""
    x = c[0]
    wanted: list[Dim] = c.sizes(1, "shape") if c.has(1) else list(c.required("shape"))
    if not c.attribute("allowzero", 0):
        wanted = [_kept(x, k) if isinstance(n, int) and n == 0 else n for k, n in enumerate(wanted)]
    free = [k for k, n in enumerate(wanted) if isinstance(n, int) and n == -1]
    if len(free) > 1:
        raise ModelError(f"shape {shape_text(wanted)} has more than one -1")
    if free:
        rest = dims.product(n for k, n in enumerate(wanted) if k != free[0])
        size = dims.divide(x.type.elements, rest) if rest != 0 else 0
        if size is None:
            raise ModelError(f"{x.type} cannot be reshaped to {shape_text(wanted)}: -1 stands for no whole number")
        wanted[free[0]] = size
    if dims.product(wanted) != x.type.elements:
        fixed = dims.symbols(x.dims) and not dims.symbols(wanted)
        raise ModelError(
            f"{x.type} cannot be reshaped to {shape_text(wanted)}",
            hint="the model's own shapes hold for one size only: --fix NAME=SIZE" if fixed else None,
        )
    return c.b.reshape(x, wanted)


def _kept(x: Value, axis: int) -> Dim:
    if axis >= x.rank:
        raise ModelError(f"0 in the shape stands for dim {axis} of {x.type}, which has none")
    return x.dims[axis]


def flatten(c: Context) -> Value:
    """A matrix: the dims before `axis` and those from it."""
    x = c[0]
    axis = int(c.attribute("axis", 1))
    if not -x.rank <= axis <= x.rank:
        raise ModelError(f"axis {axis} does not exist in a tensor of rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    return c.b.reshape(x, [dims.product(x.dims[:axis]), dims.product(x.dims[axis:])])


def squeeze(c: Context) -> Value:
    """Without the given axes of size 1, by default all of them."""
    x, axes = c[0], c.axes(1)
    if axes is None:
        axes = [k for k, d in enumerate(x.dims) if d == 1]
    wide = [a for a in axes if x.dims[c.axis(a, x.rank)] != 1]
    if wide:
        raise ModelError(f"axis {wide[0]} of {x.type} has not size 1")
    return c.b.squeeze(x, *axes)


def unsqueeze(c: Context) -> Value:
    """With axes of size 1."""
    x, axes = c[0], c.axes(1)
    if axes is None:
        raise ModelError("its axes are missing")
    if len({a % (x.rank + len(axes)) for a in axes}) != len(axes):
        raise ModelError(f"its axes {axes} name one twice")
    return c.b.unsqueeze(x, *axes)


def transpose(c: Context) -> Value:
    """Axes in another order, by default reversed."""
    x = c[0]
    perm = [c.axis(int(p), x.rank) for p in c.attribute("perm", range(x.rank)[::-1])]
    if sorted(perm) != list(range(x.rank)):
        raise ModelError(f"perm {perm} is no order of the axes of {x.type}")
    return c.b.transpose(x, perm)


def expand(c: Context) -> Value:
    """Broadcast; the shape may have ones where x has more."""
    return c.b.expand(c[0], broadcast([c[0].dims, c.sizes(1, "shape")], "Expand"))


def slice_(c: Context) -> Value:
    """x[start:end:step] along some axes; before operator set 10 these were attributes."""
    x = c[0]
    if c.has(1):
        starts, ends = c.sizes(1, "starts"), c.sizes(2, "ends")
        axes = c.axes(3)
        steps = c.integers(4, "steps") if c.has(4) else [1] * len(starts)
    else:
        starts, ends, axes = list(c.required("starts")), list(c.required("ends")), c.axes(3)
        steps = [1] * len(starts)
    axes = list(range(len(starts))) if axes is None else axes
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError("its starts, ends, axes and steps differ in number")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = part(c.b, x, c.axis(axis, x.rank), start, end, step)
    return x


def split(c: Context) -> tuple[Value, ...]:
    """Parts along an axis, of given or (but for the last one) of equal sizes."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    given = c.sizes(1, "split") if c.has(1) else c.attribute("split")
    size = x.dims[axis]
    sizes: list[Dim] = list(given) if given is not None else []
    if given is None:
        count = int(c.attribute("num_outputs", len(c.outputs)))
        if count != len(c.outputs):
            raise ModelError(f"it has {len(c.outputs)} outputs instead of {count}")
        each = (size + (count - 1)) // count if count else 0
        sizes = [each] * (count - 1) + [size - each * (count - 1)]
    return tuple(cut(c.b, x, axis, sizes))


def concat(c: Context) -> Value:
    """Inputs one after the other; before operator set 4 the axis was 1 where none was written."""
    given = c.values()
    axis = c.axis(int(c.attribute("axis", 1) if c.opset < 4 else c.required("axis")), given[0].rank)
    if any(v.rank != given[0].rank for v in given):
        raise ModelError(f"inputs of different ranks: {', '.join(str(v.type) for v in given)}")
    return c.b.concat(given, axis)


def tile(c: Context) -> Value:
    """Repeated along axes."""
    x = c[0]
    repeats = c.sizes(1, "repeats")
    if len(repeats) != x.rank:
        raise ModelError(f"{len(repeats)} repeats for {x.type}")
    for axis, count in enumerate(repeats):
        x = _repeated(c, x, axis, count)
    return x


def _repeated(c: Context, x: Value, axis: int, count: Dim) -> Value:
    if count == 1:
        return x
    shape = list(x.dims)
    shape[axis] = x.dims[axis] * count
    if x.dims[axis] == 1:
        return c.b.expand(x, shape)
    if x.rank == MAX_RANK:
        if not isinstance(count, int):
            raise ModelError(f"{x.type} has too many axes to be repeated")
        return c.b.concat([x] * count, axis) if count else c.b.part(x, axis, 0, 0)
    spread = c.b.expand(c.b.unsqueeze(x, axis), [*x.dims[:axis], count, *x.dims[axis:]])
    return c.b.reshape(spread, shape)


def depth_to_space(c: Context) -> Value:
    """[N, b * b * C, H, W] -> [N, C, H * b, W * b]; mode says which factor of the channels is outermost."""
    x, b = c[0], int(c.required("blocksize"))
    n, channels, height, width = _image(x)
    inner = _exactly(channels, b * b, x)
    if _channels_first(c):
        split_, perm = [n, inner, b, b, height, width], (0, 1, 4, 2, 5, 3)
    else:
        split_, perm = [n, b, b, inner, height, width], (0, 3, 4, 1, 5, 2)
    spread = c.b.transpose(c.b.reshape(x, split_), perm)
    return c.b.reshape(spread, [n, inner, height * b, width * b])


def space_to_depth(c: Context) -> Value:
    """[N, C, H, W] -> [N, b * b * C, H / b, W / b]; the mode as in DepthToSpace."""
    x, b = c[0], int(c.required("blocksize"))
    n, channels, height, width = _image(x)
    height, width = _exactly(height, b, x), _exactly(width, b, x)
    perm = (0, 1, 3, 5, 2, 4) if _channels_first(c) else (0, 3, 5, 1, 2, 4)
    blocks = c.b.transpose(c.b.reshape(x, [n, channels, height, b, width, b]), perm)
    return c.b.reshape(blocks, [n, channels * (b * b), height, width])


def _channels_first(c: Context) -> bool:
    """Whether channels are outermost (mode CRD), and not the blocks' rows (DCR)."""
    mode = c.attribute("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"mode '{mode}' is none of DCR, CRD")
    return bool(mode == "CRD")


def _image(x: Value) -> tuple[Dim, Dim, Dim, Dim]:
    if x.rank != 4:
        raise ModelError(f"{x.type} has not the four axes [N, C, H, W]")
    n, channels, height, width = x.dims
    return n, channels, height, width


def _exactly(size: Dim, divisor: int, x: Value) -> Dim:
    found = dims.divide(size, divisor) if divisor > 0 else None
    if found is None:
        raise ModelError(f"dim {size} of {x.type} is not a multiple of {divisor}")
    return found


def center_crop_pad(c: Context) -> Value:
    """Cropped or padded with zeros, evenly at both ends, to given sizes of some axes."""
    x = c[0]
    wanted = c.integers(1, "shape")
    axes = [c.axis(int(a), x.rank) for a in c.attribute("axes", range(x.rank))]
    if len(axes) != len(wanted):
        raise ModelError(f"{len(wanted)} sizes for {len(axes)} axes")
    low, high = [0] * x.rank, [0] * x.rank
    for axis, size in zip(axes, wanted, strict=True):
        have = fixed_dim(x, axis)
        if have > size:
            x = c.b.part(x, axis, (have - size) // 2, size)
        else:
            low[axis] = (size - have) // 2
            high[axis] = size - have - low[axis]
    return c.b.pad(x, low, high, value=False if x.dtype is DType.BOOL else 0)


def reverse_sequence(c: Context) -> Value:
    """The first lengths[b] elements along the time axis reversed, for each b along the batch axis."""
    x = c[0]
    batch, time = int(c.attribute("batch_axis", 1)), int(c.attribute("time_axis", 0))
    batch, time = c.axis(batch, x.rank), c.axis(time, x.rank)
    # [T, B] of where each element comes from, picked from x as [T * B, rest].
    perm = [time, batch, *(k for k in range(x.rank) if k not in (time, batch))]
    front = c.b.transpose(x, perm)
    steps, count = front.dims[0], front.dims[1]
    step = c.b.iota([steps, 1], DType.I64)
    lengths = c.b.reshape(c.b.cast(c[1], DType.I64), [1, count])
    source = c.b.select(c.b.ew("lt", step, lengths), c.b.sub(c.b.sub(lengths, 1), step), step)
    at = c.b.add(c.b.mul(source, c.b.fill((), count, DType.I64)), c.b.iota([1, count], DType.I64, axis=1))
    rows = c.b.gather(c.b.reshape(front, [steps * count, *front.dims[2:]]), at)
    return c.b.transpose(rows, inverse(perm))


RULES: dict[str, Callable[[Context], Any]] = {
    "CenterCropPad": center_crop_pad,
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": flatten,
    "Identity": lambda c: c.inputs[0],
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
