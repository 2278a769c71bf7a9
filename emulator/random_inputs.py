"""Random inputs that a program accepts: for trying a program, and for comparing machines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dla.isa.descriptor import Dynamic, Segment, bound_of
from dla.isa.dtypes import Array, DType, convert
from dla.isa.program import Program, Tensor

LARGEST_DIM = 64
"""Named dims that nobody set become their bound, but at most this."""
_INTEGERS = 10  # i32 and i64 are drawn from 0 to 9: small enough to index with


def random_inputs(program: Program, seed: int, dims: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Inputs for `program`: floats from the normal distribution, 8-bit integers and bools from all values.

    i32 and i64 are small and not negative, and smaller than the axes that the program indexes with them.
    The same seed gives the same inputs. `dims` sets named dims.
    """
    rng = np.random.default_rng(seed)
    sizes = {symbol.register: min(symbol.bound, LARGEST_DIM) for symbol in program.dims}
    sizes |= {symbol.register: dims[symbol.name] for symbol in program.dims if dims and symbol.name in dims}
    return {tensor.name: _draw(rng, program, tensor, sizes) for tensor in program.in_segment(Segment.INPUT)}


def _draw(rng: np.random.Generator, program: Program, tensor: Tensor, sizes: Mapping[int, int]) -> Array:
    dtype = tensor.descriptor.dtype
    shape = [sizes.get(d.register, d.bound) if isinstance(d, Dynamic) else d for d in tensor.descriptor.dims]
    if dtype.is_float:
        return convert(rng.standard_normal(shape), dtype)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.itemsize == 1:
        limits = np.iinfo(dtype.numpy)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)
    return rng.integers(0, _index_limit(program, tensor), shape).astype(dtype.numpy)


def _index_limit(program: Program, tensor: Tensor) -> int:
    """One more than the largest integer that GATHER, SCATTER and RESIZE can take from `tensor`."""
    limit = _INTEGERS
    begin, end = tensor.descriptor.offset, tensor.descriptor.offset + tensor.descriptor.span
    for instruction in program.instructions:
        if all(operand.name != "indices" for operand in instruction.row.inputs):
            continue
        indices, x = instruction.operand("indices"), instruction.operand("x")
        assert indices is not None and x is not None, "required operands"  # noqa: PT018  # both for mypy
        if indices.segment is Segment.INPUT and begin <= indices.offset < end:
            axis = instruction.row.with_defaults(instruction.attributes)["axis"]
            limit = min(limit, bound_of(x.dims[axis]))
    return max(limit, 1)
