"""Layout: transposes sink through the graph until they meet and cancel, so that channels stay last inside.

ONNX has channels second; CONV, POOL and group norms have them last. The front-end puts a TRANSPOSE on either side of
each. Here op(transpose(x)) becomes transpose(op(x)) for every operator that does not care about the order of axes, or
whose axes can be renamed. Two transposes in a row are one; what arrives at an output is written in place by its
producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.passes.canonicalise.views import double_transpose
from dla.compiler.passes.rewrite import Replacement, rewrite
from dla.compiler.shapes import inverse, runs

Perm = tuple[int, ...]


def run(graph: Graph) -> Graph:
    """`graph` with its transposes as late as they can be, and as few."""
    return rewrite(graph, {op: [rule] for op, rule in _RULES.items()})


def _perm_of(value: Value | None) -> Perm | None:
    """The permutation by which `value` is a transpose of something, if it is one."""
    node = value.made_by("TRANSPOSE") if value is not None else None
    return None if node is None else node.attributes["perm"]


def _untransposed(value: Value) -> Value:
    """What `value`, which is a transpose, is a transpose of."""
    assert value.producer is not None, "only nodes transpose"
    (source,) = value.producer.present
    return source


def _again(node: Node, b: GraphBuilder, inputs: Sequence[Value | None], **changed: object) -> Value:
    """The first output of `node` made anew from other inputs."""
    attributes = {**node.attributes, **changed}
    return b.node(node.op, inputs, sub=node.sub, dtype=node.output.dtype, **attributes).output


def pointwise(node: Node, b: GraphBuilder) -> Replacement:
    """Operands that are transposed alike, beside constants and small ones that can be turned to fit."""
    perm = next((p for p in map(_perm_of, node.inputs) if p is not None), None)
    if perm is None or len(perm) != node.output.rank:
        return None
    back = inverse(perm)
    inputs: list[Value | None] = []
    for value in node.inputs:
        turned = None if value is None else _turned(b, value, perm, back)
        if value is not None and turned is None:
            return None
        inputs.append(turned)
    return b.transpose(_again(node, b, inputs), perm)


def _turned(b: GraphBuilder, value: Value, perm: Perm, back: Perm) -> Value | None:
    """`value` with its axes in the order before `perm`; None where that would be a strided read of a large tensor."""
    if _perm_of(value) == perm:
        return _untransposed(value)
    if all(d == 1 for d in value.dims) and value.rank <= 1:
        return value
    full = (1,) * (len(perm) - value.rank) + value.dims
    if sum(d != 1 for d in full) <= 1:  # no transpose, which the next look at the node would turn back
        return b.reshape(value, [full[k] for k in back])
    return b.transpose(b.reshape(value, full), back) if value.constant is not None else None


def same_axes(node: Node, b: GraphBuilder) -> Replacement:
    """An operator along one `axis`, whose result has its input's axes."""
    (x, *rest) = node.inputs
    perm = _perm_of(x)
    if x is None or perm is None or any(_perm_of(v) is not None for v in rest):
        return None
    return b.transpose(_again(node, b, [_untransposed(x), *rest], axis=perm[node.attributes["axis"]]), perm)


def concat(node: Node, b: GraphBuilder) -> Replacement:
    """Parts that are transposed alike."""
    perm = _perm_of(node.inputs[0])
    if perm is None or any(_perm_of(v) != perm for v in node.inputs):
        return None
    parts = [_untransposed(v) for v in node.present]
    return b.transpose(_again(node, b, parts, axis=perm[node.attributes["axis"]]), perm)


def pad(node: Node, b: GraphBuilder) -> Replacement:
    """The amounts go along with their axes."""
    (x,) = node.present
    perm = _perm_of(x)
    if perm is None:
        return None
    back, rest = inverse(perm), slice(len(perm), None)
    amounts = {
        name: (*(node.attributes[name][k] for k in back), *node.attributes[name][rest]) for name in ("low", "high")
    }
    return b.transpose(_again(node, b, [_untransposed(x)], **amounts), perm)


def cut(node: Node, b: GraphBuilder) -> Replacement:
    """A slice of a transpose is a transpose of a slice."""
    (x,) = node.present
    perm = _perm_of(x)
    if perm is None:
        return None
    back = inverse(perm)
    turned = {name: tuple(node.attributes[name][k] for k in back) for name in ("starts", "sizes", "steps")}
    return b.transpose(_again(node, b, [_untransposed(x)], **turned), perm)


def reduce(node: Node, b: GraphBuilder) -> Replacement:
    """Folded axes are renamed; those that stay keep their order among each other."""
    (x,) = node.present
    perm = _perm_of(x)
    if perm is None:
        return None
    axes = tuple(sorted(perm[a] for a in node.attributes["axes"]))
    folded = _again(node, b, [_untransposed(x)], axes=axes)
    if node.attributes.get("keepdims"):
        return b.transpose(folded, perm)
    stay = [p for p in perm if p not in axes]
    return b.transpose(folded, [sorted(stay).index(p) for p in stay])


def reshape(node: Node, b: GraphBuilder) -> Replacement:
    """Axes that are merged come together first, in the order of the source; the rest of the transpose comes after."""
    (x,) = node.present
    perm = _perm_of(x)
    found = None if perm is None else runs(x.dims, node.output.dims)
    if perm is None or found is None:
        return None
    order = sorted((min(perm[k] for k in old), [perm[k] for k in old], list(new)) for old, new in found)
    first = tuple(k for _, old, _ in order for k in old)
    # Axes that do not lie side by side have to be moved in any case.
    if first == perm or any(max(old) - min(old) >= len(old) for _, old, _ in order):
        return None
    places = [k for _, _, new in order for k in new]
    shape = [node.output.dims[k] for k in places]
    merged = b.reshape(b.transpose(_untransposed(x), first), shape)
    return b.transpose(merged, inverse(places))


_RULES: dict[str, Callable[[Node, GraphBuilder], Replacement]] = {
    "TRANSPOSE": double_transpose,
    "ACT": pointwise,
    "COPY": pointwise,
    "EW": pointwise,
    "SELECT": pointwise,
    "SOFTMAX": same_axes,
    "SCAN": same_axes,
    "RESIZE": same_axes,
    "CONCAT": concat,
    "PAD": pad,
    "SLICE": cut,
    "REDUCE": reduce,
    "RESHAPE": reshape,
}
