"""Operators that pick or write elements at places that a tensor of indices gives.

What ONNX indexes by several coordinates is indexed here by one: the tensor is seen with its leading axes as one, and
the coordinates are added up, each times its axis' stride.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.compiler.operators import VIEWS
from dla.isa.dtypes import INDEXES, DType
from dla.isa.errors import ModelError

_FOLDS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def gather(c: Context) -> Value:
    """Slices at indices, which may count from the end."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    return c.b.gather(x, from_start(c, c[1], x.dims[axis]), axis)


def extract(c: Context) -> Value:
    """Elements of the last axis at indices of any shape, counted as one row."""
    x, indices = c[0], c[1]
    axis = c.axis(-1, x.rank)
    found = c.b.gather(x, from_start(c, c.b.reshape(indices, [dims.product(indices.dims)]), x.dims[axis]), axis)
    return found if x.rank > 1 else c.b.reshape(found, [1, *found.dims])


def from_start(c: Context, indices: Value, size: Dim) -> Value:
    """Indices that count from the start. Those beyond the end stay so, and trap where they are used."""
    if indices.dtype not in INDEXES:
        raise ModelError(f"indices of type {indices.dtype.text}")
    if indices.constant is not None and (indices.constant.size == 0 or indices.constant.min() >= 0):
        return indices
    if counted_up(indices):
        return indices
    return c.b.ew("max", indices, c.b.ew("mod", indices, c.b.fill((), size, indices.dtype)))


def counted_up(indices: Value) -> bool:
    """Whether indices are made such that none is negative."""
    while indices.producer is not None and indices.producer.op in (*VIEWS, "COPY"):
        (indices,) = indices.producer.present
    node = indices.producer
    if node is None:
        return False
    if node.op == "IOTA":
        ends = [node.attributes["start"], node.attributes["step"]]
        return all(isinstance(v, float) or dims.interval(v)[0] >= 0 for v in ends)
    return node.op == "TOPK" or (node.op == "REDUCE" and node.sub in ("argmax", "argmin"))


def compress(c: Context) -> Value:
    """The slices for which a condition, known while compiling, holds; without an axis, elements."""
    x = c[0]
    if "axis" not in c.attributes:
        x = c.b.reshape(x, [x.type.elements])
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    return c.b.gather(x, c.b.constant(np.flatnonzero(c.known(1, "condition")), DType.I64), axis)


def non_zero(c: Context) -> Value:
    """Coordinates of the elements that are not 0; their number is known only with the elements."""
    return c.b.constant(np.array(np.nonzero(c.known(0, "elements"))), DType.I64)


def gather_elements(c: Context) -> Value:
    """The elements of x at p with the axis' entry replaced by indices[p], for every position p of indices."""
    x, indices = c[0], c[1]
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    if indices.rank != x.rank:
        raise ModelError(f"indices {indices.type} for {x.type}: their ranks differ")
    sizes, shape = x.dims, indices.dims
    if (*shape[:axis], *shape[axis + 1 :]) == (*sizes[:axis], *sizes[axis + 1 :]):
        # All of the other axes: those before and those after the axis count as one.
        sizes, shape = _three(sizes, axis), _three(shape, axis)
        indices, axis = c.b.reshape(indices, shape), 1
    at = c.b.cast(from_start(c, indices, sizes[axis]), DType.I64)
    places = [at if k == axis else None for k in range(len(sizes))]
    picked = c.b.gather(c.b.reshape(x, [x.type.elements]), flat_index(c, places, sizes, shape))
    return c.b.reshape(picked, c[1].dims)


def _three(sizes: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return dims.product(sizes[:axis]), sizes[axis], dims.product(sizes[axis + 1 :])


def flat_index(c: Context, places: Sequence[Value | None], sizes: Sequence[Dim], shape: Sequence[Dim]) -> Value:
    """The row-major position of coordinates `places` in a tensor of `sizes`, as i64 of `shape`.

    Where a coordinate is None it is the position's own along that axis of `shape`.
    """
    total: Value | None = None
    for k, place in enumerate(places):
        stride = dims.product(sizes[k + 1 : len(places)])
        if place is None:
            if shape[k] == 1:
                continue
            line = [d if j == k else 1 for j, d in enumerate(shape)]
            term = c.b.iota(line, DType.I64, axis=k, step=stride)
        else:
            term = place if stride == 1 else c.b.mul(place, c.b.fill((), stride, DType.I64))
        total = term if total is None else c.b.add(total, term)
    return c.b.expand(c.b.constant(0, DType.I64) if total is None else total, shape)


def _coordinates(c: Context, indices: Value, sizes: Sequence[Dim]) -> list[Value | None]:
    """The columns of indices [..., K], each as [...], counted from the start."""
    columns: list[Value | None] = []
    for k, size in enumerate(sizes):
        column = c.b.squeeze(c.b.part(indices, -1, k, 1), -1)
        columns.append(c.b.cast(from_start(c, column, size), DType.I64))
    return columns


def gather_nd(c: Context) -> Value:
    """Indices [B..., M..., K] pick slices of x [B..., K axes, D...]."""
    x, indices, batch = c[0], c[1], int(c.attribute("batch_dims", 0))
    depth = indices.dims[-1] if indices.rank else 0
    fits = isinstance(depth, int) and 0 <= batch < indices.rank and batch + depth <= x.rank
    if not fits or not isinstance(depth, int) or indices.dims[:batch] != x.dims[:batch]:
        raise ModelError(f"indices {indices.type} with {batch} batch dims for {x.type}")
    places = [None] * batch + _coordinates(c, indices, x.dims[batch : batch + depth])
    sizes = x.dims[: batch + depth]
    rows = c.b.reshape(x, [dims.product(sizes), *x.dims[batch + depth :]])
    return c.b.gather(rows, flat_index(c, places, sizes, indices.dims[:-1]))


def _reduction(c: Context) -> str:
    given = c.attribute("reduction", "none")
    if given not in _FOLDS:
        raise ModelError(f"reduction '{given}' is none of {', '.join(_FOLDS)}")
    return _FOLDS[given]


def scatter_elements(c: Context) -> Value:
    """The tensor x with updates[p] at p with the axis' entry replaced by indices[p]."""
    x = c[0]
    axis = c.axis(int(c.attribute("axis", 0)), x.rank)
    if not x.rank == c[1].rank == c[2].rank or c[1].dims != c[2].dims:
        raise ModelError(f"indices {c[1].type} and updates {c[2].type} for {x.type}: their shapes do not fit")
    return c.b.scatter(_reduction(c), x, from_start(c, c[1], x.dims[axis]), c[2], axis)


def scatter_nd(c: Context) -> Value:
    """The tensor x with updates [M..., D...] at coordinates indices [M..., K]."""
    x, indices, updates = c[0], c[1], c[2]
    depth = indices.dims[-1] if indices.rank else 0
    if not isinstance(depth, int) or depth > x.rank or updates.dims != (*indices.dims[:-1], *x.dims[depth:]):
        raise ModelError(f"indices {indices.type} and updates {updates.type} for {x.type}: their shapes do not fit")
    sizes, rest = x.dims[:depth], dims.product(x.dims[depth:])
    many = dims.product(indices.dims[:-1])
    at = c.b.reshape(flat_index(c, _coordinates(c, indices, sizes), sizes, indices.dims[:-1]), [many, 1])
    rows = c.b.reshape(x, [dims.product(sizes), rest])
    changed = c.b.scatter(
        _reduction(c), rows, c.b.expand(at, [many, rest]), c.b.reshape(updates, [many, rest])
    )  # fmt: skip
    return c.b.reshape(changed, x.dims)


def tensor_scatter(c: Context) -> Value:
    """A cache with updates written along an axis from write_indices[batch], going round in mode circular."""
    cache, update = c[0], c[1]
    axis = c.axis(int(c.attribute("axis", -2)), cache.rank)
    if cache.rank != update.rank or axis == 0:
        raise ModelError(f"an update {update.type} of a cache {cache.type} along axis {axis}")
    if not c.has(2):
        return c.b.write(cache, update, {})
    line = [d if k == axis else 1 for k, d in enumerate(update.dims)]
    start = c.b.reshape(c.b.cast(c[2], DType.I64), [update.dims[0], *[1] * (cache.rank - 1)])
    at = c.b.add(start, c.b.iota(line, DType.I64, axis=axis))
    if c.attribute("mode", "linear") == "circular":
        at = c.b.ew("mod", at, c.b.fill((), cache.dims[axis], DType.I64))
    return c.b.scatter("set", cache, c.b.expand(at, update.dims), update, axis)


def one_hot(c: Context) -> Value:
    """values[1] where the position along a new axis is the index, else values[0]."""
    indices, depth, values = c[0], c.size(1, "depth"), c[2]
    axis = c.axis(int(c.attribute("axis", -1)), indices.rank + 1)
    at = c.b.cast(indices, DType.I64)
    at = c.b.select(c.b.ew("lt", at, 0), c.b.add(at, c.b.fill((), depth, DType.I64)), at)
    line = [depth if k == axis else 1 for k in range(indices.rank + 1)]
    hit = c.b.ew("eq", c.b.unsqueeze(at, axis), c.b.iota(line, DType.I64, axis=axis))
    off, on = (c.b.reshape(c.b.part(values, 0, k, 1), []) for k in range(2))
    return c.b.select(hit, on, off)


def col2im(c: Context) -> Value:
    """Columns [N, C * block, L] -> images [N, C, S...]: overlapping blocks are summed.

    Where each element goes is known: one SCATTER.add of [N * C] rows, with a last place for what falls into the pads.
    """
    x, image, block = c[0], c.integers(1, "image shape"), c.integers(2, "block shape")
    rank = len(image)
    given = {"dilations": [1] * rank, "strides": [1] * rank, "pads": [0] * 2 * rank}
    window = {name: list(c.attribute(name, usual)) for name, usual in given.items()}
    if len(block) != rank or any(len(window[name]) != len(usual) for name, usual in given.items()):
        raise ModelError(f"images of {rank} axes with blocks of {len(block)}, or attributes of other lengths")
    if min([1, *image, *block, *window["strides"]]) < 1:
        raise ModelError("its sizes and strides must be positive")
    at = _block_places(window, image, block)
    size, taps = int(np.prod(image)), int(np.prod(block))
    channels = dims.divide(x.dims[1], taps) if x.rank == 3 else None
    if channels is None or x.dims[2] != at.shape[1]:
        raise ModelError(f"{x.type} is not made of blocks of {block} of images of {image}")
    rows = x.dims[0] * channels
    flat = c.b.expand(c.b.constant(at.reshape(1, -1), DType.I64), [rows, at.size])
    summed = c.b.scatter(
        "add", c.b.fill([rows, size + 1], 0, x.dtype), flat, c.b.reshape(x, [rows, at.size]), axis=1
    )  # fmt: skip
    return c.b.reshape(c.b.part(summed, 1, 0, size), [x.dims[0], channels, *image])


def _block_places(window: Mapping[str, Sequence[int]], image: Sequence[int], block: Sequence[int]) -> Any:
    """For each element of a block and each position of the block, its place in the flat image; its size outside."""
    rank = len(image)
    dilations, strides, pads = window["dilations"], window["strides"], window["pads"]
    places, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for k, size in enumerate(image):
        reach = size + pads[k] + pads[rank + k] - dilations[k] * (block[k] - 1) - 1
        along = np.arange(block[k])[:, None] * dilations[k] + np.arange(reach // strides[k] + 1) * strides[k] - pads[k]
        taps, steps = places.shape[0] * along.shape[0], places.shape[1] * along.shape[1]
        places = (places[:, None, :, None] * size + along[None, :, None, :]).reshape(taps, steps)
        fits = (along >= 0) & (along < size)
        inside = (inside[:, None, :, None] & fits[None, :, None, :]).reshape(taps, steps)
    return np.where(inside, places, int(np.prod(image)))


RULES: dict[str, Callable[[Context], Any]] = {
    "ai.onnx.ml::ArrayFeatureExtractor": extract,
    "Col2Im": col2im,
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonZero": non_zero,
    "OneHot": one_hot,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
}
