"""Whether a graph is one: asked of what was built, and after every pass, so that a mistake is found where it was made.

What it promises to passes and to lowering: values are made before they are read, `users` tells who reads a value,
every type follows from `operators.infer`, and every symbolic size is one that the program will know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dla.compiler import dims
from dla.compiler.dims import Expr, Symbol
from dla.compiler.graph import Body, Graph, Node
from dla.compiler.operators import OPERATORS, infer
from dla.isa.errors import ModelError
from dla.isa.names import shown


def verify_graph(graph: Graph, after: str = "") -> None:
    """Raise ModelError if `graph` is damaged. `after` is the pass that gave it; "" for the graph as it was built."""
    problem = next(_problems(graph, frozenset(graph.symbols)), None)
    if problem is None:
        return
    if after:
        raise ModelError(f"the pass '{after}' damaged the graph; please report this\n  {problem}")
    raise ModelError(f"the graph {shown(graph.name)!r} is not sound: {problem}")


def _problems(graph: Graph, symbols: frozenset[Symbol]) -> Iterator[str]:
    """What is wrong, in plain words; the first complaint is the one to look at."""
    yield from _names(graph, symbols)
    yield from _order(graph)
    yield from _users(graph)
    for node in graph.nodes:
        yield from _node(node, symbols)


def _names(graph: Graph, symbols: frozenset[Symbol]) -> Iterator[str]:
    for name in sorted(graph.inputs.keys() & graph.states.keys()):
        yield f"an input and a state are named {shown(name)!r}"
    for name, count in Counter(s.name for s in symbols).items():
        if count > 1:
            yield f"the size {shown(name)!r} has different bounds"
    for name, state in graph.states.items():
        if state.before.type != state.after.type:
            yield f"the state {shown(name)!r} is {state.before.type}, and becomes {state.after.type}"


def _order(graph: Graph) -> Iterator[str]:
    """Everything that is read, or is a result, is there by then; nothing is made twice."""
    given = (*graph.inputs.values(), *(s.before for s in graph.states.values()))
    known = {id(v) for v in given}
    for node in graph.nodes:
        for value in node.present:
            if value.constant is None and id(value) not in known:
                yield f"{_called(node)} reads {value!r}, which nothing before it makes"
        for value in node.outputs:
            if id(value) in known:
                yield f"{_called(node)} makes {value!r} a second time"
            if value.producer is not node:
                yield f"{_called(node)} makes {value!r}, which says that something else does"
            known.add(id(value))
    named = [*graph.outputs.items(), *((n, s.after) for n, s in graph.states.items())]
    for name, value in named:
        if value.constant is None and id(value) not in known:
            yield f"nothing makes the result {shown(name)!r}"


def _users(graph: Graph) -> Iterator[str]:
    """A value's `users` are the nodes that read it, once for each input that it is.

    Of constants, which graphs may share, nodes of other graphs may be users as well.
    """
    reads = Counter((id(v), id(n)) for n in graph.nodes for v in n.present)
    values = [*graph.inputs.values(), *(s.before for s in graph.states.values())]
    values += [v for n in graph.nodes for v in (*n.present, *n.outputs)]
    own = {id(n) for n in graph.nodes}
    for value in {id(v): v for v in values}.values():
        listed = Counter(id(user) for user in value.users)
        for user in value.users:
            counted, read = listed[id(user)], reads[id(value), id(user)]
            if counted != read and (value.constant is None or id(user) in own):
                yield f"{value!r} has {_called(user)} as its user {counted} times, but is read by it {read} times"
    known = {(id(value), id(user)) for value in {id(v): v for v in values}.values() for user in value.users}
    for node in graph.nodes:
        for value in node.present:
            if (id(value), id(node)) not in known:
                yield f"{_called(node)} reads {value!r}, which does not know of it"


def _node(node: Node, symbols: frozenset[Symbol]) -> Iterator[str]:
    if node.op not in OPERATORS:
        yield f"{_called(node)}: there is no such operator"
        return
    for unknown in sorted(_symbols(node) - symbols, key=lambda s: s.name):
        remedy = f"declare it: b.symbol({unknown.name!r}, {unknown.bound})"
        yield f"{_called(node)} needs the size {shown(unknown.name)!r}, which no input has; {remedy}"
    yield from _types(node)
    body = node.attributes.get("body")
    if isinstance(body, Body):
        yield from _problems(body.graph, symbols | {body.counter})


def _types(node: Node) -> Iterator[str]:
    """A row may store its result in a type that the node chose; shapes follow from the inputs alone."""
    given = [None if v is None else v.type for v in node.inputs]
    try:
        usual = infer(node.op, node.sub, given, node.attributes)
        if usual == tuple(v.type for v in node.outputs):
            return
        chosen = [infer(node.op, node.sub, given, node.attributes, v.dtype) for v in node.outputs]
    except ModelError as error:
        yield f"{_called(node)}: {error.message}"
        return
    if len(usual) != len(node.outputs):
        yield f"{_called(node)} makes {len(node.outputs)} values, and should make {len(usual)}"
        return
    for position, value in enumerate(node.outputs):
        if value.type not in (usual[position], chosen[position][position]):
            yield f"{_called(node)} makes {value!r}, and should make {usual[position]}"


def _symbols(node: Node) -> frozenset[Symbol]:
    sizes = [d for v in node.outputs for d in v.dims]
    for attribute in node.attributes.values():
        sizes += attribute if isinstance(attribute, tuple | list) else [attribute]
    return dims.symbols(size for size in sizes if isinstance(size, Expr))


def _called(node: Node) -> str:
    return f"{node.name} ({shown(node.label)})" if node.label else node.name
