"""Random inputs that a program accepts: for trying a program, and for comparing machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import numpy as np

from dla.emulator.ranks import tensor_of
from dla.isa.descriptor import Descriptor, Dynamic, Segment, bound_of
from dla.isa.dtypes import Array, DType, convert
from dla.isa.program import Program, Tensor
from dla.isa.table import Role

LARGEST_DIM = 64
"""Named dims that nobody set become their bound, but at most this."""
_INDEX_ARITHMETIC = ("COPY", "EW", "SELECT")
_INTEGERS = 10  # i32 and i64 are drawn from 0 to 9: small enough to index with


def random_inputs(
    program: Program, seed: int | Sequence[int], dims: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Inputs for `program`: floats from the normal distribution, 8-bit integers and bools from all values.

    i32 and i64 are small and not negative, and smaller than the axes that the program indexes with them.
    The same seed gives the same inputs. `dims` sets named dims.
    """
    rng = np.random.default_rng(seed)
    sizes = {symbol.register: min(symbol.bound, LARGEST_DIM) for symbol in program.dims}
    sizes |= {symbol.register: dims[symbol.name] for symbol in program.dims if dims and symbol.name in dims}
    return {tensor.name: _draw(rng, program, tensor, sizes) for tensor in program.in_segment(Segment.INPUT)}


def made_up(
    program: Program, given: Collection[str], seed: int, dims: Mapping[str, int] | None, ranks: int,
    mine: int | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Random inputs for what is not `given`, on several `ranks`, others on each; with `mine`, for that rank.

    `given` are names of tensors (`x`: for all ranks, or for this one), or of those of single ranks (`x.rank0`). What is
    made up has a leading axis of ranks; for `mine` it has none; where other ranks' are given it is `x.rank1`, ... So
    whatever a rank makes up is the same whether ranks are in one process or in many.
    """
    expected = [tensor.name for tensor in program.in_segment(Segment.INPUT)]
    parts = {tensor_of(name, expected) for name in given}

    @cache
    def of(rank: int) -> dict[str, Array]:
        return random_inputs(program, (seed, rank), dims)

    found: dict[str, Array] = {}
    for name in expected:
        lacking = [rank for rank in range(ranks) if not parts & {(name, None), (name, rank)}]
        if len(lacking) < ranks:
            # Where a tensor has the name that a part would have, the part cannot be given: that is said later.
            found |= {key: of(rank)[name] for rank in lacking if (key := f"{name}.rank{rank}") not in expected}
        else:
            found[name] = np.stack([of(rank)[name] for rank in lacking]) if mine is None else of(mine)[name]
    return found


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
    """One more than the largest integer that GATHER, SCATTER and RESIZE can take from `tensor`.

    Indices may have been copied and wrapped on their way from `tensor` (compiled models let -1 be the last one).
    """
    limit = _INTEGERS
    held = {_range(tensor.descriptor)}  # what holds its integers, or some made from them
    for instruction in program.instructions:
        read = [d for o, d in zip(instruction.row.operands, instruction.operands, strict=True)
                if d is not None and o.role is Role.IN and _meets(_range(d), held)]  # fmt: skip
        if any(operand.name == "indices" for operand in instruction.row.inputs):
            indices, x = instruction.operand("indices"), instruction.operand("x")
            assert indices is not None and x is not None, "required operands"  # noqa: PT018  # both for mypy
            if indices in read:
                axis = instruction.row.with_defaults(instruction.attributes)["axis"]
                limit = min(limit, bound_of(x.dims[axis]))
        passes_on = bool(read) and instruction.row.mnemonic in _INDEX_ARITHMETIC
        for out in (d for o, d in zip(instruction.row.operands, instruction.operands, strict=True)
                    if d is not None and o.role is Role.OUT):  # fmt: skip
            segment, begin, end = _range(out)
            held = {h for h in held if not (h[0] is segment and begin <= h[1] and h[2] <= end)}
            if passes_on and out.dtype in (DType.I32, DType.I64):
                held.add((segment, begin, end))
    return max(limit, 1)


_Range = tuple[Segment, int, int]


def _range(d: Descriptor) -> _Range:
    return d.segment, d.offset, d.offset + d.span


def _meets(one: _Range, others: Iterable[_Range]) -> bool:
    return any(one[0] is segment and one[1] < end and begin < one[2] for segment, begin, end in others)
