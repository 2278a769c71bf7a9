"""Precision: compute in another float type, f16 or bf16, where that is safe.

Every instruction accumulates in f32 whatever its operands are, so what matters is the type in which results are stored
between instructions. It becomes the wished one, but for results that 16 bits would spoil: running sums, means and other
folds, powers, exponentials and logarithms, and the tables of a rotary embedding. Inputs, outputs and states of the
model keep their types.

Products of f32 may be made in tf32 beside: that is how they are multiplied, and changes no type.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node, Value
from dla.compiler.operators import VIEWS
from dla.isa.dtypes import DType, convert

_FOLDS = ("sum", "mean", "prod", "l2", "logsumexp")
_STEEP = ("exp", "log", "reciprocal", "sqrt", "rsqrt", "sin", "cos", "tan")
_MIXED = {
    "GATHER": (0,),
    "SCATTER": (0, 2),
    "RESIZE": (0,),
    "ROPE": (0,),
    "NORM": (0,),
    "SELECT": (1, 2),
    "RNN": (0, 1, 2),
}
"""Inputs of these rows that must agree in type; the others have a type of their own. Elsewhere all floats must agree,
but for the operands of epilogues."""


def run(graph: Graph, dtype: DType | None = None, math: str = "exact") -> Graph:
    """`graph` with its f32 results stored as `dtype` where that is safe; None leaves it alone.

    `math` is the mode of its products of f32 (see `isa.math_mode`).
    """
    if dtype is not None and (dtype is not DType.F32 or _has_narrow(graph)):
        graph.sweep()
        graph = _Rewriter(graph, dtype).run()
    if math != "exact":
        for node in [node for part in graph.with_steps() for node in part.nodes]:
            if node.op in ("GEMM", "CONV") and all(v.dtype is DType.F32 for v in node.inputs[:2] if v is not None):
                node.attributes["math"] = math
    return graph


def _has_narrow(graph: Graph) -> bool:
    return any(v.dtype in (DType.F16, DType.BF16) for n in graph.nodes for v in (*n.outputs, *n.present))


def is_sensitive(node: Node) -> bool:
    """Whether the results of `node` stay in f32."""
    if node.op in ("REDUCE", "SCAN"):
        return node.sub in _FOLDS
    return (node.op == "ACT" and node.sub in _STEEP) or (node.op == "EW" and node.sub == "pow")


class _Rewriter:
    """Copies the graph, value by value, into one of other types."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self._old, self._dtype = graph, dtype
        self._b = GraphBuilder(graph=Graph(graph.name, sizes=graph.sizes))
        self._new: dict[int, Value] = {}
        self._cast: dict[tuple[int, DType], Value] = {}

    def run(self) -> Graph:
        """The new graph."""
        graph, b = self._old, self._b
        for name, value in graph.inputs.items():
            self._new[id(value)] = b.input(name, value.dtype, value.dims)
        for name, state in graph.states.items():
            self._new[id(state.before)] = b.state(name, state.before.dtype, state.before.dims)
        for node in graph.nodes:
            b.label, b.order = node.label, node.order
            self._node(node)
        b.label = "output"
        for name, value in graph.outputs.items():
            b.output(name, self._as(value, value.dtype))
        for name, state in graph.states.items():
            if state.after is not state.before:
                b.set_state(name, self._as(state.after, state.before.dtype))
        return b.graph

    def _node(self, node: Node) -> None:
        wished = DType.F32 if is_sensitive(node) else self._dtype
        together = self._together(node)
        common = self._common(node, together, wished)
        inputs: list[Value | None] = []
        for position, value in enumerate(node.inputs):
            if value is not None and node.op == "RECURRENT":
                inputs.append(self._as(value, value.dtype))  # its step is for these types
            elif value is None or not value.dtype.is_float:
                inputs.append(None if value is None else self._as(value, value.dtype))
            elif position in together:
                inputs.append(self._as(value, common))
            else:
                inputs.append(self._new.get(id(value)) or value)
        first = node.output.dtype
        moves = node.op in VIEWS or node.op in ("CONCAT", "WRITE", "GATHER", "SCATTER", "PAD", "SELECT", "TOPK")
        dtype = None if not first.is_float or moves else wished
        if node.op == "COPY":
            dtype = wished if first.is_float else first
        copied = self._b.node(node.op, inputs, sub=node.sub, dtype=dtype, **node.attributes)
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            self._new[id(old)] = new

    def _together(self, node: Node) -> tuple[int, ...]:
        if node.op in _MIXED:
            return _MIXED[node.op]
        epilogue = {"GEMM": 2, "CONV": 2, "ATTENTION": 3}.get(node.op)
        return tuple(range(len(node.inputs) if epilogue is None else epilogue))

    def _common(self, node: Node, together: tuple[int, ...], wished: DType) -> DType:
        """The type in which `node` reads its floats: as they are if they agree, else the wished one."""
        given = [node.inputs[k] for k in together if k < len(node.inputs)]
        live = {self._new[id(v)].dtype for v in given if v is not None and v.dtype.is_float and id(v) in self._new}
        return live.pop() if len(live) == 1 and node.op not in ("GEMM", "CONV", "ATTENTION") else wished

    def _as(self, value: Value, dtype: DType) -> Value:
        """The new value for `value`, as `dtype`."""
        found = self._new.get(id(value), value)
        if found.dtype is dtype or not found.dtype.is_float:
            return found
        key = id(found), dtype
        if key not in self._cast:
            if found.constant is None:
                self._cast[key] = self._b.cast(found, dtype)
            else:
                constant, limits = found.constant, ml_dtypes.finfo(dtype.numpy)
                if float(ml_dtypes.finfo(found.dtype.numpy).max) > float(limits.max):
                    # A mask of -1e9 must stay finite: infinity minus infinity is no number.
                    clipped = np.clip(constant, float(limits.min), float(limits.max))
                    constant = np.where(np.isfinite(constant), clipped, constant)
                self._cast[key] = self._b.constant(convert(constant, dtype), name=found.name)
        return self._cast[key]
