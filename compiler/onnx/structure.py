"""What must hold of an ONNX graph before anybody follows its names: each is made once, before it is read.

Nodes that are only in the wrong order are sorted; values that are missing, made twice or made from themselves are
refused, with the nodes' names. The same for the graphs inside nodes and the bodies of functions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dla.compiler.onnx.protos import Key, all_nodes, graphs_of, key_of, key_of_function
from dla.compiler.onnx.tensors import Values
from dla.isa.errors import ModelError
from dla.isa.names import shown

if TYPE_CHECKING:
    import onnx

_MAX_EXPANDED = 1_000_000  # nodes, after each call of a function is replaced by its body
_NAMED = 5  # nodes in a message about a cycle


def check_graph(graph: onnx.GraphProto, values: Values) -> None:
    """Raise ModelError unless `graph` is sound; sort its nodes where that is all that is wrong."""
    missing = _check(graph, values)
    for name, reader in missing.items():
        raise ModelError(f"{reader} '{shown(name)}', which nothing makes")
    if not graph.output:
        raise ModelError("the graph has no outputs")


def check_functions(model: onnx.ModelProto, values: Values) -> None:
    """Raise ModelError unless the bodies of the functions are sound and expand to a bounded number of nodes."""
    bodies: dict[Key, onnx.FunctionProto] = {}
    for function in model.functions:
        what = f"function '{shown(function.name)}'"
        key = key_of_function(function)
        if not function.name or not all(isinstance(part, str) for part in key):
            raise ModelError(f"{what} has no name, or one that is not text")
        if key in bodies:
            raise ModelError(f"{what} of domain '{shown(function.domain)}' is defined twice")
        bodies[key] = function
        inputs = _all_text(function.input, f"an input of {what}")
        outputs = _all_text(function.output, f"an output of {what}")
        missing = _check_nodes(function, inputs, outputs, values, what)
        for name, reader in missing.items():
            raise ModelError(f"{reader} '{shown(name)}', which nothing in {what} makes")
    _check_expansion(model, bodies)


def _text(name: Any, what: str) -> str:
    """`name`, if the parser could read it as UTF-8."""
    if not isinstance(name, str):
        raise ModelError(f"the name of {what} is not UTF-8 text: {shown(name)}")
    return name


def _all_text(names: Iterable[Any], what: str) -> list[str]:
    return [_text(name, what) for name in names]


def _called(node: onnx.NodeProto, index: int) -> str:
    """A node for messages: 'Conv node 'layer1/conv'' or by its place in the file."""
    return f"{shown(node.op_type)} node " + (f"'{shown(node.name)}'" if node.name else f"number {index}")


def _check(graph: onnx.GraphProto, values: Values) -> dict[str, str]:
    """Names that `graph` takes from around it, each with who does: "Relu node 'r' reads"."""
    inputs = _all_text((value.name for value in graph.input), "an input")
    if len(set(inputs)) < len(inputs) or "" in inputs:
        raise ModelError("two inputs of the graph have the same name, or one has none")
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"initialiser '{shown(name)}' is sparse, which dla does not read",
                         hint="store it as a dense tensor")  # fmt: skip
    constants = set()
    for tensor in graph.initializer:
        name = _text(tensor.name, "an initialiser")
        if not name or name in constants:
            raise ModelError(f"initialiser '{shown(name)}' " + ("is there twice" if name else "has no name"))
        values.check(tensor)
        constants.add(name)
    outputs = _all_text((value.name for value in graph.output), "an output")
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            _text(dim.dim_param, f"a dim of '{shown(value.name)}'")
    # An initialiser may have an input's name: it is then the input's default.
    return _check_nodes(graph, [*constants, *inputs], outputs, values, "the graph")


def _check_nodes(body: Any, given: Sequence[str], outputs: Sequence[str], values: Values, what: str) -> dict[str, str]:
    """As `_check`, of a graph or function with nodes `body.node`; `given` is made before any of them."""
    nodes: list[onnx.NodeProto] = list(body.node)
    makers: dict[str, int] = dict.fromkeys(given, -1)
    reads = []
    for index, node in enumerate(nodes):
        reads.append(_check_node(node, index, values))
        for name in _all_text(node.output, f"an output of {_called(node, index)}"):
            if name in makers and name:
                first = makers[name]
                other = _called(nodes[first], first) if first >= 0 else "an input or initialiser"
                raise ModelError(f"'{shown(name)}' is made twice: by {other} and by {_called(node, index)}")
            makers[name] = index
    missing = {
        name: f"{_called(nodes[index], index)} reads"
        for index, names in enumerate(reads)
        for name in names
        if name not in makers
    }
    order = _topological([{makers.get(name, -1) for name in names} - {-1} for names in reads], nodes)
    if order != list(range(len(nodes))):
        copies = [_copy(nodes[index]) for index in order]
        del body.node[:]
        body.node.extend(copies)
    for name in outputs:
        if not name or (name not in makers and name not in missing):
            missing.setdefault(name, f"an output of {what} is")
    return missing


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


def _check_node(node: onnx.NodeProto, index: int, values: Values) -> list[str]:
    """The names that `node` reads, itself and in the graphs inside it. An empty name is an input left out."""
    called = _called(node, index)
    if not _text(node.op_type, "an operator") or not isinstance(node.name, str) or not isinstance(node.domain, str):
        raise ModelError(f"{called} has no operator, or a name that is not UTF-8 text")
    names = [name for name in _all_text(node.input, f"an input of {called}") if name]
    seen = set()
    for attribute in node.attribute:
        if not _text(attribute.name, f"an attribute of {called}") or attribute.name in seen:
            raise ModelError(f"{called} has attribute '{shown(attribute.name)}' twice, or one without a name")
        seen.add(attribute.name)
        if attribute.type == attribute.UNDEFINED and not attribute.ref_attr_name:
            raise ModelError(f"attribute '{shown(attribute.name)}' of {called} has no type")
        try:
            for tensor in _tensors(attribute):
                values.embed(tensor)
        except ModelError as error:
            raise ModelError(
                f"{called}, attribute '{shown(attribute.name)}': {error.message}", hint=error.hint
            ) from None
        for graph in graphs_of(attribute):
            names += _check(graph, values)
    return names


def _tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _topological(needs: Sequence[set[int]], nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Indices of nodes, each after those in its `needs`, otherwise as they are. Raises ModelError for a cycle."""
    users: list[list[int]] = [[] for _ in needs]
    for index, before in enumerate(needs):
        for maker in before:
            users[maker].append(index)
    waiting = [len(before) for before in needs]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for user in users[order[-1]]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        cycle = _cycle(needs, waiting)
        named = ", ".join(_called(nodes[index], index) for index in cycle[:_NAMED])
        more = f" and {len(cycle) - _NAMED} more" if len(cycle) > _NAMED else ""
        raise ModelError(f"the graph has a cycle: {named}{more}")
    return order


def _cycle(needs: Sequence[set[int]], waiting: Sequence[int]) -> list[int]:
    """Nodes of one cycle, in the order in which values go round it, among those still waiting."""
    path: dict[int, None] = {}
    node = next(index for index, count in enumerate(waiting) if count)
    while node not in path:
        path[node] = None
        node = min(before for before in needs[node] if waiting[before])  # what waits, waits for one that waits
    nodes = list(path)
    return nodes[nodes.index(node) :][::-1]


def _check_expansion(model: onnx.ModelProto, bodies: dict[Key, onnx.FunctionProto]) -> None:
    """Refuse functions that call themselves, or whose calls of calls multiply beyond reason."""
    sizes: dict[Key, int] = {}
    for root in bodies:
        path = {} if root in sizes else {root: _calls(bodies[root].node)}
        while path:  # not by recursion: a chain of functions may be longer than Python's stack
            key, rest = next(reversed(path.items()))
            for call in rest:
                if call in path:
                    raise ModelError(f"function '{shown(call[1])}' calls itself")
                if call in bodies and call not in sizes:
                    path[call] = _calls(bodies[call].node)
                    break
            else:
                size = sum(sizes.get(call, 1) for call in _calls(bodies[key].node))
                sizes[key] = min(size, _MAX_EXPANDED + 1)  # it may double from function to function
                del path[key]
    total = sum(sizes.get(c, 1) for c in _calls(model.graph.node))
    if total > _MAX_EXPANDED:
        raise ModelError(f"the model's functions expand to more than {_MAX_EXPANDED:,} nodes")


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    """The operator of every node, in the graphs inside nodes too."""
    return map(key_of, all_nodes(nodes))
