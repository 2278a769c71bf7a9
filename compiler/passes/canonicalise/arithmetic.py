"""Arithmetic that changes nothing, special powers, choices that are known, and operands that are broadcast anyway."""

from __future__ import annotations

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import number, with_number
from dla.isa.dtypes import DType

_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "pow": 1.0}
_COMMUTE = ("add", "mul", "and", "or", "xor")
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def neutral(node: Node, b: GraphBuilder) -> Value | None:
    """Drops x + 0, x - 0, x * 1, x / 1, x ** 1, and the neutral elements of logic."""
    wanted = _NEUTRAL.get(node.sub)
    if node.output.dtype is DType.BOOL:
        wanted = {"and": 1.0, "or": 0.0, "xor": 0.0}.get(node.sub)
    if wanted is None:
        return None
    sides = ((0, 1), (1, 0)) if node.sub in _COMMUTE else ((0, 1),)
    for this, other in sides:
        x = source(node, this)
        if x.type == node.output.type and number(source(node, other)) == wanted:
            return x
    return None


def power(node: Node, b: GraphBuilder) -> Value | None:
    """Powers that are cheaper otherwise: x ** 2 is x * x."""
    x, exponent = source(node), number(source(node, 1))
    if node.sub != "pow" or exponent is None or x.type != node.output.type or not x.dtype.is_float:
        return None
    if exponent == 2.0:
        return b.mul(x, x)
    return b.act(_POWERS[exponent], x) if exponent in _POWERS else None


def quotient(node: Node, b: GraphBuilder) -> Value | None:
    """1 / x is the reciprocal of x, and y * (1 / x) is y / x."""
    if not node.output.dtype.is_float:
        return None
    x, y = source(node, 0), source(node, 1)
    if node.sub == "div":
        return b.act("reciprocal", y) if y.type == node.output.type and number(x) == 1.0 else None
    if node.sub == "mul":
        for other, factor in ((x, y), (y, x)):
            inverse = factor.made_by("ACT", "reciprocal")
            if inverse is not None and b.graph.only_user(factor):
                return b.div(other, source(inverse))
    return None


def inverse_root(node: Node, b: GraphBuilder) -> Value | None:
    """1 / sqrt(x)."""
    root = source(node).made_by("ACT", "sqrt") if node.sub == "reciprocal" else None
    return b.act("rsqrt", source(root)) if root is not None and source(root).type == node.output.type else None


def involution(node: Node, b: GraphBuilder) -> Value | None:
    """-(-x), not (not x), and the identity."""
    x = source(node)
    if node.sub == "identity" and x.type == node.output.type:
        return x
    inner = x.made_by("ACT", node.sub) if node.sub in ("neg", "not") else None
    return source(inner) if inner is not None and source(inner).type == node.output.type else None


def opposite(node: Node, b: GraphBuilder) -> Value | None:
    """Of integers, not (x < y) is x >= y; NaN is neither."""
    compared = source(node).made_by("EW", *_OPPOSITE) if node.sub == "not" else None
    if compared is None or (source(compared).dtype.is_float and compared.sub not in ("eq", "ne")):
        return None
    return b.ew(_OPPOSITE[compared.sub], source(compared), source(compared, 1))


def known_choice(node: Node, b: GraphBuilder) -> Value | None:
    """A choice by a constant, between equals, or by a negated condition."""
    cond, a, other = source(node, 0), source(node, 1), source(node, 2)
    chosen = number(cond)
    if a is other or chosen is not None:
        taken = a if a is other or chosen else other
        return b.expand(taken, node.output.dims)
    negated = cond.made_by("ACT", "not")
    return b.select(source(negated), other, a) if negated is not None else None


def mean_by_sum(node: Node, b: GraphBuilder) -> Value | None:
    """sum(x) / n is the mean of x, where n is the number of terms."""
    for index in (0, 1) if node.sub == "mul" else (0,) if node.sub == "div" else ():
        folded, factor = source(node, index), number(source(node, 1 - index))
        total = folded.made_by("REDUCE", "sum")
        if total is None or not factor or folded.type != node.output.type or not folded.dtype.is_float:
            continue
        x = source(total)
        count = dims.product(x.dims[axis] for axis in total.attributes["axes"])
        share = factor if node.sub == "mul" else 1 / factor
        if isinstance(count, int) and count and abs(share * count - 1) < 1e-5:
            return b.emit("REDUCE", [x], sub="mean", dtype=node.output.dtype, **total.attributes)
    return None


def broadcast_late(node: Node, b: GraphBuilder) -> Value | None:
    """Compute on what was expanded, and expand the result if the row's own broadcasting does not do it."""
    inner = [_unexpanded(v, b) for v in node.present]
    if all(v is w for v, w in zip(inner, node.present, strict=True)):
        return None
    result = b.emit(node.op, inner, sub=node.sub, dtype=node.output.dtype, **node.attributes)
    return b.expand(result, node.output.dims)


def _unexpanded(value: Value, b: GraphBuilder) -> Value:
    node = value.producer
    if node is None:
        return value
    if node.op == "EXPAND":
        return source(node)
    if node.op == "FILL" and value.dims and isinstance(node.attributes["value"], int | float):
        return b.constant(node.attributes["value"], value.dtype)
    return value


def no_limit(node: Node, b: GraphBuilder) -> Value | None:
    """max(x, -infinity) and min(x, infinity)."""
    limit = {"max": float("-inf"), "min": float("inf")}.get(node.sub)
    if limit is None:
        return None
    return next((x for x, n in with_number(node.output, node.sub) if n == limit and x.type == node.output.type), None)


RULES = {
    "EW": (neutral, power, quotient, mean_by_sum, no_limit, broadcast_late),
    "ACT": (involution, opposite, inverse_root, broadcast_late),
    "SELECT": (known_choice, broadcast_late),
    "COPY": (broadcast_late,),
}
