"""Recognising what values are: numbers, multiples, polynomials. Rules ask these instead of walking nodes themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import VIEWS, root, source
from dla.isa.dtypes import Array, DType

DEPTH = 8
"""Nodes on a path through one formula, at most."""
LOOK = 1 << 16
"""Elements of the largest constant that is searched for a pattern."""

Polynomial = dict[tuple[int, ...], float]
"""Factors by the powers of the unknowns: 3 x y + 1 is {(1, 1): 3, (0, 0): 1}."""


def constant_array(value: Value) -> Array | None:
    """The values of a constant, or of a transposed constant; None for anything else."""
    node = value.made_by("TRANSPOSE")
    if node is None:
        return value.constant
    given = source(node).constant
    return None if given is None else given.transpose(node.attributes["perm"])


def bare_product(value: Value) -> Node | None:
    """The GEMM that makes `value`, if that is alpha * a @ b and nothing else."""
    node = value.made_by("GEMM", "")
    bare = node is not None and not node.attributes.get("steps") and all(v is None for v in node.inputs[2:])
    return node if bare else None


def number(value: Value | None) -> float | None:
    """The one number that every element of `value` is, if that is known."""
    if value is None:
        return None
    value = root(value)
    filled = value.made_by("FILL")
    if filled is not None and isinstance(filled.attributes["value"], int | float):
        return float(filled.attributes["value"])
    array = value.constant
    if array is None or not 0 < array.size <= LOOK:
        return None
    flat = array.reshape(-1)
    return float(flat[0]) if array.size == 1 or bool(np.all(flat == flat[0])) else None


def under_views(value: Value) -> tuple[Value, list[Node]]:
    """What `value` is a view of, and the views of it, the first one first; `value` itself and none where it is none."""
    views: list[Node] = []
    while value.producer is not None and value.producer.op in VIEWS:
        views.append(value.producer)
        value = source(value.producer)
    return value, views[::-1]


def seen_again(value: Value, views: Sequence[Node], b: GraphBuilder) -> Value:
    """The same views of another value, which has the shape of what they were of."""
    for view in views:
        value = b.emit(view.op, [value], **view.attributes)
    return value


def close(found: float, wanted: float, dtype: DType) -> bool:
    """Whether two numbers of a formula written in `dtype` are meant to be equal."""
    precision = 1e-5 if dtype is DType.F32 else 4e-3
    return found == wanted or abs(found - wanted) <= precision * abs(wanted)


def commuted(value: Value | None, *kinds: str) -> Iterator[tuple[Value, Value]]:
    """The operands of an EW of one of `kinds` in both orders; nothing if `value` is made otherwise."""
    node = value.made_by("EW", *kinds) if value is not None else None
    if node is not None:
        yield source(node, 0), source(node, 1)
        yield source(node, 1), source(node, 0)


def with_number(value: Value | None, *kinds: str) -> Iterator[tuple[Value, float]]:
    """The other operand and the number, where `value` is an EW of one of `kinds` with a number, in any order."""
    for a, b in commuted(value, *kinds):
        found = number(b)
        if found is not None and value is not None and a.type.dims == value.type.dims:
            yield a, found


def scaled(value: Value) -> tuple[float, Value]:
    """The c and x where `value` is c * x of x's shape; 1 and `value` where it is no multiple."""
    factor, node = 1.0, value.producer
    while node is not None and value.dtype.is_float:
        inner = source(node) if node.op == "EW" or node.name == "ACT.neg" else None
        if node.name == "ACT.neg":
            factor = -factor
        elif node.name == "EW.mul" and (found := next(with_number(value, "mul"), None)):
            inner, factor = found[0], factor * found[1]
        elif node.name == "EW.div" and inner is not None and inner.dims == value.dims and number(source(node, 1)):
            factor /= number(source(node, 1)) or 1.0
        else:
            break
        assert inner is not None, "each case above found it"
        value, node = inner, inner.producer
    return factor, value


def polynomial(value: Value, unknowns: Sequence[Value], depth: int = DEPTH) -> Polynomial | None:
    """`value` as a polynomial of `unknowns`, by sums, products and powers; None if it is made of anything else."""
    for k, unknown in enumerate(unknowns):
        if value is unknown:
            return {tuple(int(j == k) for j in range(len(unknowns))): 1.0}
    constant = number(value)
    if constant is not None:
        return {(0,) * len(unknowns): constant}
    node = value.producer
    if node is None or depth == 0 or node.op not in ("EW", "ACT"):
        return None
    a = polynomial(source(node), unknowns, depth - 1)
    if a is None:
        return None
    if node.op == "ACT":
        return {powers: -c for powers, c in a.items()} if node.sub == "neg" else None
    b = polynomial(source(node, 1), unknowns, depth - 1)
    return None if b is None else _combined(node.sub, a, b)


def same(found: Polynomial | None, wanted: Mapping[tuple[int, ...], float], dtype: DType) -> bool:
    """Whether two polynomials have the same terms, within the precision of `dtype`."""
    if found is None:
        return False
    kept = {powers: c for powers, c in found.items() if abs(c) > 1e-9}
    return kept.keys() == wanted.keys() and all(close(c, wanted[powers], dtype) for powers, c in kept.items())


def below(value: Value, depth: int = DEPTH) -> Iterator[Value]:
    """`value` and what it is computed from by arithmetic with EW and negation; numbers are left out."""
    if number(value) is not None:
        return
    yield value
    node = value.producer
    if depth and node is not None and (node.op == "EW" or node.name == "ACT.neg"):
        for operand in dict.fromkeys(node.present):
            yield from below(operand, depth - 1)


def clamped(value: Value) -> tuple[Value, float, float] | None:
    """The x, low and high where `value` is min(max(x, low), high) in whatever order."""
    for outer, inner in (("min", "max"), ("max", "min")):
        for middle, a in with_number(value, outer):
            for x, b in with_number(middle, inner):
                return (x, b, a) if outer == "min" else (x, a, b)
    return None


def _combined(kind: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
    constant = next(iter(b.values())) if len(b) == 1 and not any(next(iter(b))) else None
    if kind in ("add", "sub"):
        sign = 1.0 if kind == "add" else -1.0
        return {p: a.get(p, 0.0) + sign * b.get(p, 0.0) for p in {**a, **b}}
    if kind == "mul":
        return _product(a, b)
    if kind == "div" and constant:
        return {p: c / constant for p, c in a.items()}
    if kind == "pow" and constant in (1.0, 2.0, 3.0):
        result = a
        for _ in range(int(constant) - 1):
            result = _product(result, a)
        return result
    return None


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for p, c in a.items():
        for q, d in b.items():
            powers = tuple(x + y for x, y in zip(p, q, strict=True))
            result[powers] = result.get(powers, 0.0) + c * d
    return result
