"""What a graph means: its nodes' values in NumPy, by the semantics of the instruction set's rows.

Constant folding computes with it, and tests compare graphs before and after a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.graph import Body, Graph, Node, Value
from dla.compiler.operators import full_attributes, row_of, steps_of
from dla.isa import dtypes
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError
from dla.isa.table import Out, Row, result_arrays

Sizes = Mapping[str, int]


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], states: Mapping[str, Array] | None = None, sizes: Sizes | None = None
) -> dict[str, Array]:
    """The outputs of `graph`, by name. States begin as zeros.

    Symbols take their sizes from the arrays' shapes; `sizes` has those that no shape gives.
    """
    given = {**dict(inputs), **(states or {})}
    sizes = dict(sizes or {})
    known: dict[int, Array] = {}
    held = graph.inputs | {name: state.before for name, state in graph.states.items()}
    for name, value in held.items():
        if name in given:
            _bind(name, value, np.shape(given[name]), sizes)
    for name, value in held.items():
        shape = tuple(dims.evaluate(d, sizes) for d in value.dims)
        known[id(value)] = np.asarray(given[name]) if name in given else np.zeros(shape, value.dtype.numpy)
    return _results(graph, known, sizes)


def _results(graph: Graph, known: dict[int, Array], sizes: Sizes) -> dict[str, Array]:
    """The outputs of `graph`; `known` has its inputs and states, by id, and gets everything else."""
    for node in graph.nodes:
        arrays = [None if v is None else _array(v, known) for v in node.inputs]
        for value, result in zip(node.outputs, node_results(node, arrays, sizes), strict=True):
            known[id(value)] = result
    return {name: _array(value, known) for name, value in graph.outputs.items()}


def node_results(node: Node, arrays: Sequence[Array | None], sizes: Sizes | None = None) -> tuple[Array, ...]:
    """The values of `node`'s outputs for its inputs' `arrays` (in stored types). Raises Trap as its row does."""
    sizes = sizes or {}
    row = row_of(node.op)
    if row is not None:
        return _row_results(node, row, arrays, sizes)
    if node.op == "RECURRENT":
        return _recurrent(node, arrays, sizes)
    if node.op not in _VIEWS:
        raise ModelError(f"{node.name} means nothing for one rank alone")
    shape = tuple(dims.evaluate(d, sizes) for d in node.output.dims)
    return (_VIEWS[node.op](node, shape, arrays, sizes),)


def _bind(name: str, value: Value, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    if len(shape) != value.rank:
        raise ModelError(f"{name} has rank {len(shape)}, but the graph has {value.type}")
    for dim, size in zip(value.dims, shape, strict=True):
        if isinstance(dim, int):
            expected = dim
        elif len(dim.symbols) == 1 and str(dim) == next(iter(dim.symbols)).name:
            expected = sizes.setdefault(str(dim), size)
        else:
            continue
        if expected != size:
            raise ModelError(f"{name} has shape {list(shape)}, but the graph has {value.type}")


def _array(value: Value, known: Mapping[int, Array]) -> Array:
    return known[id(value)] if value.constant is None else value.constant


def _row_results(node: Node, row: Row, arrays: Sequence[Array | None], sizes: Sizes) -> tuple[Array, ...]:
    operands = {o.name: None if x is None else _widened(x, row) for o, x in zip(row.inputs, arrays, strict=True)}
    attributes = {
        k: dims.evaluate(v, sizes) if isinstance(v, dims.Expr) else v for k, v in full_attributes(node).items()
    }
    if row.subs:
        attributes["sub"] = node.sub or row.default_sub
    out = Out(tuple(dims.evaluate(d, sizes) for d in node.output.dims), node.output.dtype)
    assert row.semantics is not None, "graphs hold tensor instructions"
    results = result_arrays(row, row.semantics(out, **operands, **attributes))
    return tuple(
        dtypes.convert(np.asarray(r), v.dtype) for v, r in zip(node.outputs, results, strict=False) if r is not None
    )


def _widened(x: Array, row: Row) -> Array:
    if row.raw or x.dtype == np.bool_:
        return x
    return x.astype(np.float64 if dtypes.BY_NUMPY[x.dtype].is_float else np.int64, copy=False)


def _slice(node: Node, shape: tuple[int, ...], arrays: Sequence[Any], sizes: Sizes) -> Array:
    starts = [dims.evaluate(s, sizes) for s in node.attributes["starts"]]
    steps = node.attributes["steps"]
    cut = tuple(slice(a, a + (n - 1) * k + 1 if n else a, k) for a, n, k in zip(starts, shape, steps, strict=True))
    return np.asarray(arrays[0][cut])


def _write(node: Node, shape: tuple[int, ...], arrays: Sequence[Any], sizes: Sizes) -> Array:
    result = np.array(arrays[0])
    starts = [dims.evaluate(s, sizes) for s in node.attributes["starts"]]
    result[tuple(slice(a, a + n) for a, n in zip(starts, arrays[1].shape, strict=True))] = arrays[1]
    return result


def _recurrent(node: Node, arrays: Sequence[Any], sizes: Sizes) -> tuple[Array, ...]:
    body: Body = node.attributes["body"]
    sequences, states = arrays[: body.sequences], list(arrays[body.sequences :][: body.states])
    others = arrays[body.sequences + body.states :]
    made = node.outputs[: len(node.outputs) - body.states]
    stacked = [np.zeros(tuple(dims.evaluate(d, sizes) for d in v.dims), v.dtype.numpy) for v in made]
    steps = range(dims.evaluate(steps_of(node), sizes))
    for step in reversed(steps) if node.attributes["reverse"] else steps:
        given = (*(s[step] for s in sequences), *states, *others)
        known = {id(v): np.asarray(x) for v, x in zip(body.graph.inputs.values(), given, strict=True)}
        results = list(_results(body.graph, known, {**sizes, body.counter.name: step}).values())
        states = results[: body.states]
        for whole, part in zip(stacked, results[body.states :], strict=True):
            whole[step] = part
    return (*stacked, *states)


_VIEWS: dict[str, Callable[[Node, tuple[int, ...], Sequence[Any], Sizes], Array]] = {
    "RESHAPE": lambda node, shape, arrays, sizes: np.asarray(arrays[0].reshape(shape)),
    "TRANSPOSE": lambda node, shape, arrays, sizes: np.asarray(arrays[0].transpose(node.attributes["perm"])),
    "EXPAND": lambda node, shape, arrays, sizes: np.asarray(np.broadcast_to(arrays[0], shape)),
    "SLICE": _slice,
    "CONCAT": lambda node, shape, arrays, sizes: np.concatenate(arrays, axis=node.attributes["axis"]),
    "WRITE": _write,
}
