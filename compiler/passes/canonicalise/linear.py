"""Values that are linear in their indices, and conditions that are half-planes of them: positions and causal masks.

`j <= i + past` over [queries, keys] is the half-plane i - j + past >= 0, whether it is a constant triangle, or a
comparison of ranges of symbolic length, or a slice of either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dla.compiler.dims import Dim
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import DEPTH, number
from dla.compiler.shapes import merged_axes
from dla.isa.dtypes import Array, DType

_LARGEST = 1 << 26
"""Elements of a constant that is compared with a triangle, at most."""


@dataclass(frozen=True)
class Linear:
    """base + the sum of factors[k] * (index along axis k); a factor is 0 along an axis of size 1."""

    factors: tuple[Dim, ...]
    base: Dim

    def plus(self, other: Linear, sign: int = 1) -> Linear:
        """The sum with (or for sign -1 the difference from) another of any rank."""
        rank = max(len(self.factors), len(other.factors))
        a, b = self.of_rank(rank), other.of_rank(rank)
        factors = tuple(p + sign * q for p, q in zip(a.factors, b.factors, strict=True))
        return Linear(factors, a.base + b.base * sign)

    def of_rank(self, rank: int) -> Linear:
        """The same with axes put in front, along which it does not change."""
        return Linear((0,) * (rank - len(self.factors)) + self.factors, self.base)

    def times(self, other: Linear) -> Linear:
        """The product with a constant of any rank."""
        rank = max(len(self.factors), len(other.factors))
        return Linear(tuple(f * other.base for f in self.of_rank(rank).factors), self.base * other.base)

    @property
    def is_constant(self) -> bool:
        """Whether it is the same everywhere."""
        return not any(self.factors)

    @property
    def opposite(self) -> Linear:
        """Where the half-plane `self >= 0` is not."""
        return Linear(tuple(f * -1 for f in self.factors), self.base * -1 - 1)


@dataclass(frozen=True)
class TwoValued:
    """`inside` where half-plane `where` holds, `outside` elsewhere; a plain number has no half-plane."""

    where: Linear | None
    inside: float
    outside: float


def linear(value: Value, depth: int = DEPTH) -> Linear | None:
    """`value`, of integers, as a linear function of its indices."""
    node = value.producer
    if value.constant is not None:
        return _linear_constant(value.constant)
    if node is None or depth == 0:
        return None
    if node.op == "FILL":
        filled = node.attributes["value"]
        return Linear((0,) * value.rank, filled) if not isinstance(filled, float) else None
    if node.op == "IOTA":
        start, step = node.attributes["start"], node.attributes["step"]
        if isinstance(start, float) or not isinstance(step, int):
            return None
        axis = node.attributes["axis"]
        return Linear(tuple(step if k == axis and d != 1 else 0 for k, d in enumerate(value.dims)), start)
    if node.op == "EW" and node.sub in ("add", "sub", "mul"):
        a, b = linear(source(node), depth - 1), linear(source(node, 1), depth - 1)
        if a is None or b is None:
            return None
        if node.sub == "mul":
            return a.times(b) if b.is_constant else b.times(a) if a.is_constant else None
        return a.plus(b, 1 if node.sub == "add" else -1)
    inner = linear(source(node), depth - 1) if node.op in _VIEWS or node.op in ("COPY", "ACT") else None
    if inner is None or (node.op == "ACT" and node.sub != "neg") or value.dtype is DType.BOOL:
        return None
    if node.op == "ACT":
        return inner.times(Linear((), -1))
    return inner if node.op == "COPY" else _VIEWS[node.op](node, inner)


def half_plane(value: Value, depth: int = DEPTH) -> Linear | None:
    """Where `value`, of bools, is true: where the result is not negative."""
    node = value.producer
    if value.constant is not None:
        return _triangle(value.constant)
    if node is None or depth == 0 or value.dtype is not DType.BOOL:
        return None
    if node.op in _VIEWS:
        inner = half_plane(source(node), depth - 1)
        return _VIEWS[node.op](node, inner) if inner is not None else None
    if node.name == "ACT.not":
        inner = half_plane(source(node), depth - 1)
        return inner.opposite if inner is not None else None
    if node.op == "COPY":
        return _where_true(two_valued(source(node), depth - 1), lambda x: x != 0)
    if node.op != "EW":
        return None
    if node.sub in ("and", "or"):
        a, b = half_plane(source(node), depth - 1), half_plane(source(node, 1), depth - 1)
        if a is None or b is None:
            return None
        a, b = a.of_rank(value.rank), b.of_rank(value.rank)
        return a if a == b else None
    return _compared(node, depth)


def half_planes(value: Value, depth: int = DEPTH) -> list[Linear] | None:
    """The half-planes in all of which `value`, of bools, is true; None if it is no such thing."""
    single = half_plane(value, depth)
    node = value.producer
    if single is not None or node is None or depth == 0:
        return None if single is None else [single]
    if node.op not in _VIEWS and node.name != "EW.and":
        return None
    found: list[Linear] = []
    for operand in node.present:
        planes = half_planes(operand, depth - 1)
        if planes is None:
            return None
        moved = [_VIEWS[node.op](node, p) if node.op in _VIEWS else p.of_rank(value.rank) for p in planes]
        known = [p for p in moved if p is not None]
        if len(known) < len(moved):
            return None
        found += known
    return found


def two_valued(value: Value, depth: int = DEPTH) -> TwoValued | None:
    """`value` as one number in a half-plane and another elsewhere."""
    found = number(value)
    if found is not None:
        return TwoValued(None, found, found)
    if value.constant is not None:
        return _two_valued_constant(value.constant)
    node = value.producer
    if node is None or depth == 0:
        return None
    if value.dtype is DType.BOOL:
        where = half_plane(value, depth - 1)
        return TwoValued(where, 1.0, 0.0) if where is not None else None
    if node.op in _VIEWS or node.op == "COPY":
        inner = two_valued(source(node), depth - 1)
        if inner is None or inner.where is None or node.op == "COPY":
            return inner
        moved = _VIEWS[node.op](node, inner.where)
        return TwoValued(moved, inner.inside, inner.outside) if moved is not None else None
    if node.op not in ("EW", "SELECT"):
        return None
    given = [two_valued(v, depth - 1) for v in node.present]
    known = [g for g in given if g is not None]
    return _pointwise(node, known) if len(known) == len(given) else None


def _pointwise(node: Node, given: Sequence[TwoValued]) -> TwoValued | None:
    """EW or SELECT of values that change along the same line."""
    rank = node.output.rank
    lines = [g.where.of_rank(rank) if g.where is not None else None for g in given]
    line = next(w for w in lines if w is not None)
    if any(w not in (None, line, line.opposite) for w in lines):
        return None
    inside = [g.outside if w == line.opposite else g.inside for g, w in zip(given, lines, strict=True)]
    outside = [g.inside if w == line.opposite else g.outside for g, w in zip(given, lines, strict=True)]
    compute = _NUMERIC.get(node.name)
    if compute is None:
        return None
    with np.errstate(all="ignore"):
        a, b = (float(compute(*map(np.float32, side))) for side in (inside, outside))
    return TwoValued(line, a, b) if a == a and b == b else None


_NUMERIC: dict[str, Callable[..., float]] = {
    "EW.add": lambda a, b: a + b,
    "EW.sub": lambda a, b: a - b,
    "EW.mul": lambda a, b: a * b,
    "SELECT": lambda c, a, b: a if c else b,
}


def _compared(node: Node, depth: int) -> Linear | None:
    a, b = linear(source(node), depth - 1), linear(source(node, 1), depth - 1)
    one = Linear((), 1)
    if a is None or b is None:
        kind = {"eq": lambda x, y: x == y, "ne": lambda x, y: x != y}.get(node.sub)
        other = number(source(node, 1))
        if kind is None or other is None:
            return None
        return _where_true(two_valued(source(node), depth - 1), lambda x: bool(kind(x, other)))
    if node.sub in ("le", "lt"):
        a, b = b, a
    if node.sub in ("ge", "le"):
        return a.plus(b, -1)
    return a.plus(b, -1).plus(one, -1) if node.sub in ("gt", "lt") else None


def _where_true(found: TwoValued | None, holds: Callable[[float], bool]) -> Linear | None:
    if found is None or found.where is None or holds(found.inside) == holds(found.outside):
        return None
    return found.where if holds(found.inside) else found.where.opposite


def _linear_constant(array: Array) -> Linear | None:
    if array.dtype == np.bool_ or not 0 < array.size <= 1 << 20:
        return None
    origin = (0,) * array.ndim
    values = array.astype(np.float64)
    base = values[origin]
    factors = [
        values[tuple(int(j == k) for j in range(array.ndim))] - base if n > 1 else 0 for k, n in enumerate(array.shape)
    ]
    if any(f != int(f) for f in (*factors, base) if np.isfinite(f)) or not np.all(np.isfinite([*factors, base])):
        return None
    expected = base + sum((f * i for f, i in zip(factors, np.indices(array.shape), strict=True)), np.zeros(array.shape))
    return Linear(tuple(map(int, factors)), int(base)) if np.array_equal(values, expected) else None


def _triangle(array: Array) -> Linear | None:
    """The half-plane that a bool constant is, over its last two axes (the others have size 1)."""
    if array.ndim < 2 or array.dtype != np.bool_ or array.size > _LARGEST or array.size != np.prod(array.shape[-2:]):
        return None
    flat: Array = array.reshape(array.shape[-2:])
    if 1 in flat.shape or 0 in flat.shape:
        return None
    front = (0,) * (array.ndim - 2)
    columns = array.shape[-1]
    for turned in (False, True):
        lower = ~flat if turned else flat
        first = int(lower[0].sum())
        diagonal = first - 1 if first else -int(np.argmax(lower[:, 0]))
        if first < columns and lower.any() and np.array_equal(lower, np.tri(len(flat), columns, diagonal, dtype=bool)):
            found = Linear((*front, 1, -1), diagonal)
            return found.opposite if turned else found
    return None


def _two_valued_constant(array: Array) -> TwoValued | None:
    if array.size < 2 or array.size > _LARGEST:
        return None
    high = array == array.reshape(-1)[0]
    where = _triangle(high)
    rest = array[~high]
    if where is None or not np.all(rest == rest[0]):
        return None
    return TwoValued(where, float(array.reshape(-1)[0]), float(rest[0]))


def _reshaped(node: Node, inner: Linear) -> Linear | None:
    """Axes merged where indices run on from row to row, and axes of size 1 put in or taken out."""
    given = source(node).dims
    groups = merged_axes(given, node.output.dims)
    if groups is None:
        return None
    factors: list[Dim] = []
    for group in groups:
        axes = [axis for axis in group if given[axis] != 1]
        if any(inner.factors[a] != inner.factors[b] * given[b] for a, b in itertools.pairwise(axes)):
            return None
        factors.append(inner.factors[axes[-1]] if axes else 0)
    return Linear(tuple(factors), inner.base)


def _expanded(node: Node, inner: Linear) -> Linear:
    return inner.of_rank(node.output.rank)


def _turned(node: Node, inner: Linear) -> Linear:
    return Linear(tuple(inner.factors[p] for p in node.attributes["perm"]), inner.base)


def _sliced(node: Node, inner: Linear) -> Linear:
    base = inner.base
    for factor, start in zip(inner.factors, node.attributes["starts"], strict=True):
        base = base + start * factor
    steps = zip(inner.factors, node.attributes["steps"], node.output.dims, strict=True)
    return Linear(tuple(f * k if d != 1 else 0 for f, k, d in steps), base)


_VIEWS: dict[str, Callable[[Node, Linear], Linear | None]] = {
    "RESHAPE": _reshaped,
    "EXPAND": _expanded,
    "TRANSPOSE": _turned,
    "SLICE": _sliced,
}
