"""Parts of axes as Python's slices give them, with symbolic ends and negative steps."""

from __future__ import annotations

from collections.abc import Sequence

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim, symbol
from dla.compiler.graph import Value
from dla.compiler.shapes import shape_text
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError


def part(b: GraphBuilder, x: Value, axis: int, start: Dim, end: Dim, step: int) -> Value:
    """x[start:end:step] along one axis, by Python's rules for what is negative or beyond the end.

    Raises ModelError where the sign of a symbolic start or end depends on the sizes.
    """
    size = x.dims[axis]
    if step == 0:
        raise ModelError("a slice has step 0")
    if step > 0:
        start, end = _within(start, size, 0, size), _within(end, size, 0, size)
        return b.slice(x, {axis: start}, {axis: _count(end - start, step)}, {axis: step})
    start, end = _within(start, size, -1, size - 1), _within(end, size, -1, size - 1)
    return reversed_part(b, x, axis, start, _count(start - end, -step), step)


def cut(b: GraphBuilder, x: Value, axis: int, sizes: Sequence[Dim]) -> list[Value]:
    """The parts of these sizes, one after the other, that x consists of along `axis`. Raises ModelError."""
    start: Dim = 0
    parts = []
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise ModelError(f"a part of a split has size {size}")
        parts.append(b.part(x, axis, start, size))
        start = size + start
    if start != x.dims[axis]:
        raise ModelError(f"parts of sizes {shape_text(sizes)} do not make up axis {axis} of {x.type}")
    return parts


def reversed_part(b: GraphBuilder, x: Value, axis: int, start: Dim, count: Dim, step: int) -> Value:
    """`count` elements start, start + step, ... for a negative step: strides are not negative, so indices say it."""
    if count == 1:
        return b.part(x, axis, start, 1)
    return b.gather(x, b.iota([count], DType.I64, start=start, step=step), axis)


def _count(span: Dim, step: int) -> Dim:
    return _larger((span + (step - 1)) // step if step > 1 else span, 0)


def _within(at: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """The position that `at` means, from the end if it is negative, between low and high."""
    least, most = _interval(at)
    if most < 0:
        at = at + size
    elif least < 0:
        raise ModelError(
            f"a slice begins or ends at {at}, which is negative for some sizes and not for others",
            hint="fix these dims: --fix NAME=SIZE",
        )
    return _smaller(_larger(at, low), high)


def _interval(dim: Dim) -> tuple[int, int]:
    """The smallest and largest value of `dim` where no symbolic size is 0.

    So x[1:] of an axis `seq` has seq - 1 elements, not max(seq - 1, 0), and fits x[:-1]. A program that runs with
    sizes for which a part would have a negative size traps.
    """
    larger = {s.name: symbol(s.name, max(0, s.bound - 1)) + 1 for s in dims.symbols([dim])}
    return dims.interval(dims.substitute(dim, larger))


def _smaller(a: Dim, b: Dim) -> Dim:
    low, high = _interval(a - b)
    return b if low >= 0 else a if high <= 0 else dims.minimum(a, b)


def _larger(a: Dim, b: Dim) -> Dim:
    low, high = _interval(a - b)
    return a if low >= 0 else b if high <= 0 else dims.maximum(a, b)
