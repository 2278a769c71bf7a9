"""Normalisations written out: layer, RMS and group norm, their gains and biases, and the casts around them."""

from __future__ import annotations

from collections.abc import Iterator

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Node, Value
from dla.compiler.operators import source
from dla.compiler.passes.match import commuted, number, with_number
from dla.compiler.shapes import inverse


def standardised(node: Node, b: GraphBuilder) -> Value | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + eps), or x / sqrt(mean(x ** 2) + eps)."""
    for top, spread in _quotients(node):
        root = _mean_square(spread)
        if root is None or root[0] is not top or top.type != node.output.type or root[1] < 0:
            continue
        x = _centred(top)
        return b.norm("rms", top, eps=root[1]) if x is None else b.norm("layer", x, eps=root[1])
    return None


def _quotients(node: Node) -> Iterator[tuple[Value, Value]]:
    """The d and v where the node is d / sqrt(v) or d * (1 / sqrt(v))."""
    if node.sub == "div":
        root = source(node, 1).made_by("ACT", "sqrt")
        if root is not None:
            yield source(node), source(root)
    for d, factor in commuted(node.output, "mul"):
        root = factor.made_by("ACT", "rsqrt")
        if root is not None:
            yield d, source(root)


def _mean_square(value: Value) -> tuple[Value, float] | None:
    """The d and eps where `value` is mean(d * d, last axis) + eps; eps may be missing."""
    candidates = [*with_number(value, "add"), (value, 0.0)]
    for mean, eps in candidates:
        squares = _row_mean(mean)
        square = squares.made_by("EW", "mul") if squares is not None else None
        if square is not None and source(square) is source(square, 1):
            return source(square), eps
    return None


def _row_mean(value: Value) -> Value | None:
    """The x where `value` is its mean along the last axis, kept as an axis of size 1."""
    node = value.made_by("REDUCE", "mean")
    if node is None:
        return None
    x = source(node)
    last = tuple(node.attributes["axes"]) == (x.rank - 1,) and value.rank == x.rank
    return x if last else None


def _centred(value: Value) -> Value | None:
    """The x where `value` is x - mean(x)."""
    node = value.made_by("EW", "sub")
    return source(node) if node is not None and _row_mean(source(node, 1)) is source(node) else None


def gain(node: Node, b: GraphBuilder) -> Value | None:
    """norm(x) * gain."""
    return _extended(node, b, "mul", 1)


def bias(node: Node, b: GraphBuilder) -> Value | None:
    """norm(x) * gain + bias."""
    return _extended(node, b, "add", 2)


def _extended(node: Node, b: GraphBuilder, kind: str, index: int) -> Value | None:
    """`node` put into the NORM before it as input `index`. Casts to a narrower type may stand between."""
    for y, vector in commuted(node.output, kind):
        if y.type != node.output.type or not y.dtype.is_float:
            continue
        norm, perm = _norm_behind(y, b)
        if norm is None or any(v is not None for v in norm.inputs[index:3]):
            continue
        channels = _channels(vector, y.rank, perm[-1], b)
        if channels is None or channels.dims != norm.output.dims[-1:]:
            continue
        given = (*norm.inputs[:index], channels, *norm.inputs[index + 1 :])
        result = b.emit("NORM", given, sub=norm.sub, dtype=node.output.dtype, **norm.attributes)
        return b.transpose(result, inverse(perm))
    return None


def _norm_behind(y: Value, b: GraphBuilder) -> tuple[Node | None, tuple[int, ...]]:
    """The NORM that `y` is (perhaps transposed or cast) and nobody else reads; and y's axes in the NORM's order."""
    perm = tuple(range(y.rank))
    while y.producer is not None and b.graph.only_user(y):
        node = y.producer
        if node.op == "NORM":
            return node, perm
        if node.op == "TRANSPOSE" and perm == tuple(range(y.rank)):
            perm = inverse(node.attributes["perm"])
        elif node.op != "COPY" or not source(node).dtype.is_float:
            return None, perm
        y = source(node)
    return None, perm


def _channels(vector: Value, rank: int, axis: int, b: GraphBuilder) -> Value | None:
    """`vector`, which broadcasts along `axis` of a tensor of that rank only, as [C]."""
    position = vector.rank - (rank - axis)
    if position < 0 or not vector.dtype.is_float or any(d != 1 for k, d in enumerate(vector.dims) if k != position):
        return None
    return b.reshape(vector, (vector.dims[position],))


def cast_before(node: Node, b: GraphBuilder) -> Value | None:
    """A norm or a softmax computes in the accumulator's type anyway: no cast to f32 before it."""
    cast = source(node).made_by("COPY")
    if cast is None or not source(cast).dtype.is_float or not source(node).dtype.is_float:
        return None
    narrow = source(cast)
    if narrow.dtype.numpy.itemsize >= source(node).dtype.numpy.itemsize or narrow.dims != source(node).dims:
        return None
    return b.emit(node.op, [narrow, *node.inputs[1:]], sub=node.sub, dtype=node.output.dtype, **node.attributes)


def cast_after(node: Node, b: GraphBuilder) -> Value | None:
    """Nor one to a narrower type after it."""
    y = source(node)
    maker = y.made_by("NORM") or y.made_by("SOFTMAX")
    if maker is None or b.graph.only_user(y) is not node:
        return None
    if not (y.dtype.is_float and node.output.dtype.is_float) or y.dims != node.output.dims:
        return None
    return b.emit(maker.op, maker.inputs, sub=maker.sub, dtype=node.output.dtype, **maker.attributes)


def grouped(node: Node, b: GraphBuilder) -> Value | None:
    """Group norm as an instance norm of the groups: [N, C, S...] is seen as [N, groups, L] and back."""
    y = source(node).made_by("TRANSPOSE")
    norm = source(y).made_by("NORM", "group") if y is not None else None
    x = source(norm).made_by("TRANSPOSE") if norm is not None else None
    split = source(x).made_by("RESHAPE") if x is not None else None
    if y is None or norm is None or x is None or split is None:
        return None
    image, groups, rank = source(split), norm.attributes["groups"], node.output.rank
    turned = all(tuple(t.attributes["perm"]) == (0, 2, 1) for t in (x, y))
    if not turned or image.dims != node.output.dims or rank < 3 or norm.output.dims[-1] != groups:
        return None
    channels = image.dims[1]
    if split.output.dims[:2] != (image.dims[0], groups) or not isinstance(channels, int) or channels % groups:
        return None
    if any(v is not None and number(v) != neutral for v, neutral in zip(norm.inputs[1:3], (1.0, 0.0), strict=True)):
        return None
    last = (0, *range(2, rank), 1)
    result = b.norm("group", b.transpose(image, last), eps=norm.attributes["eps"], groups=groups)
    return b.transpose(result, (0, rank - 1, *range(1, rank - 1)))


def plain(node: Node, b: GraphBuilder) -> Value | None:
    """No bias of zeros, and without a bias no gain of ones."""
    factor, term = node.inputs[1], node.inputs[2]
    if term is not None and number(term) == 0.0:
        given = (*node.inputs[:2], None, *node.inputs[3:])
    elif factor is not None and term is None and number(factor) == 1.0:
        given = (node.inputs[0], None, *node.inputs[2:])
    else:
        return None
    return b.emit("NORM", given, sub=node.sub, dtype=node.output.dtype, **node.attributes)


RULES = {
    "EW": (standardised, gain, bias),
    "NORM": (cast_before, plain),
    "SOFTMAX": (cast_before,),
    "COPY": (cast_after,),
    "RESHAPE": (grouped,),
}
