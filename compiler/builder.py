"""Building graphs, one method per operation: what front-ends, passes and people use.

    b = GraphBuilder("perceptron")
    x = b.input("x", DType.F32, (symbol("batch", 1024), 64))
    b.output("p", b.softmax(b.matmul(x, w, bias=bias)))

Every method infers its result's type at once, so a mistake is reported where it is made. Shapes are tuples of
`Dim`; axes may count from the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.dims import Dim, Symbol
from dla.compiler.fold import fold_small
from dla.compiler.graph import Body, Graph, Node, State, TensorType, Value
from dla.compiler.node_check import check_node
from dla.compiler.operators import infer
from dla.compiler.shapes import axis_of
from dla.isa.dtypes import BY_NUMPY, Array, DType, convert
from dla.isa.errors import ModelError

Number = int | float | bool
Operand = Value | Number
Values = Sequence[Value]
Step = Callable[["GraphBuilder", Values, Values, Values], tuple[Values, Values]]
"""One step of a loop: (builder, slices, states, others) -> (new states, results of the step)."""
Turn = Callable[["GraphBuilder", Dim, Values, Values], tuple[Values, Values]]
"""One turn of a loop: (builder, its number, states, others) -> (new states, results of the turn)."""


class GraphBuilder:
    """A graph under construction. `label` names what the next nodes come from; `order` is their place in the source."""

    def __init__(self, name: str = "model", graph: Graph | None = None) -> None:
        self.graph = graph if graph is not None else Graph(name)
        self.label = ""
        self.order = float(len(self.graph.nodes))
        self._small: dict[tuple[Any, ...], Value] = {}

    # -- what goes in and out

    def input(self, name: str, dtype: DType, shape: Sequence[Dim]) -> Value:
        """A tensor that the caller gives."""
        check_node(f"input {name!r}", "", [], [TensorType(dtype, tuple(shape))], {})
        value = Value(TensorType(dtype, tuple(shape)), name)
        self._named(self.graph.inputs, name, value)
        return value

    def state(self, name: str, dtype: DType, shape: Sequence[Dim]) -> Value:
        """A tensor that lives across runs, zeros at first; `set_state` says what it becomes."""
        check_node(f"state {name!r}", "", [], [TensorType(dtype, tuple(shape))], {})
        value = Value(TensorType(dtype, tuple(shape)), name)
        self._named(self.graph.states, name, State(value, value))
        return value

    def set_state(self, name: str, value: Value) -> None:
        """Let the state called `name` have `value`, which has its type, after the run."""
        if name not in self.graph.states:
            known = ", ".join(map(repr, self.graph.states)) or "none"
            raise ModelError(f"there is no state {name!r}", hint=f"the states: {known}")
        state = self.graph.states[name]
        if value.type != state.before.type:
            raise ModelError(f"the state {name!r} is {state.before.type}, and cannot become {value.type}")
        state.after = value

    def symbol(self, name: str, bound: int) -> Dim:
        """A size from 0 to `bound` that is set when the program runs: by an input's shape, or else by its name.

        The second kind is for sizes that no input has, such as how much of a cache is in use:
        `machine.run(program, inputs, dims={"past": 7})`, `dla run --set past=7`.
        """
        for other in self.graph.symbols:
            if other.name == name and other.bound != bound:
                raise ModelError(f"the size {name!r} is at most {other.bound}, and cannot be at most {bound} as well")
        self.graph.sizes.add(Symbol(name, bound))
        return dims.symbol(name, bound)

    def output(self, name: str, value: Value) -> None:
        """A tensor that the caller gets."""
        self._named(self.graph.outputs, name, value)

    def finish(self) -> Graph:
        """The graph."""
        return self.graph

    def constant(self, array: Any, dtype: DType | None = None, name: str = "") -> Value:
        """A constant; `array` in a type that the machine has, or converted to `dtype`. Small ones are shared."""
        values = np.asarray(array)
        if dtype is not None and values.dtype != dtype.numpy:
            values = convert(values, dtype)
        if values.dtype not in BY_NUMPY:
            raise ModelError(f"a constant of type {values.dtype} has no place in the machine")
        key = (values.dtype, values.shape, values.tobytes()) if values.size <= 16 and not name else None
        if key is not None and key in self._small:
            return self._small[key]
        if values.flags.writeable:
            values = values.view()
            values.flags.writeable = False
        value = Value(TensorType(BY_NUMPY[values.dtype], values.shape), name, constant=values)
        if key is not None:
            self._small[key] = value
        return value

    # -- moving

    def cast(self, x: Value, dtype: DType) -> Value:
        """X in another type, converted as COPY converts."""
        return x if x.dtype is dtype else self.emit("COPY", [x], dtype=dtype)

    def fill(self, shape: Sequence[Dim], value: Number | dims.Expr, dtype: DType) -> Value:
        """A tensor full of one number, which may be a symbolic size."""
        if isinstance(value, float) and not math.isfinite(value):
            return self.expand(self.constant(value, dtype), shape)  # instructions hold finite numbers only
        number = int(value) if isinstance(value, bool) else value
        return self.emit("FILL", [], shape=tuple(shape), value=number, dtype=dtype)

    def iota(
        self, shape: Sequence[Dim], dtype: DType, *, axis: int = 0, start: Any = 0, step: Any = 1
    ) -> Value:  # fmt: skip
        """Start + step * index along `axis`."""
        return self.emit("IOTA", [], shape=tuple(shape), axis=axis_of(axis, len(shape)), start=start, step=step,
                         dtype=dtype)  # fmt: skip

    def pad(
        self, x: Value, low: Sequence[int], high: Sequence[int], *, mode: str = "constant", value: Number = 0
    ) -> Value:
        """low[k] elements before and high[k] after x along each axis k; modes constant, reflect, edge, wrap."""
        if not any((*low, *high)):
            return x
        fill = (0,) * (6 - x.rank)
        number = int(value) if isinstance(value, bool) else value
        extra: dict[str, Any] = {"value": number} if mode == "constant" else {}
        return self.emit("PAD", [x], sub=mode, low=(*low, *fill), high=(*high, *fill), **extra)

    def gather(self, x: Value, indices: Value, axis: int = 0) -> Value:
        """Slices of x at `indices` (i32 or i64, not negative) along `axis`."""
        return self.emit("GATHER", [x, indices], axis=axis_of(axis, x.rank))

    def scatter(self, kind: str, x: Value, indices: Value, updates: Value, axis: int = 0) -> Value:
        """X with `updates` set (or added, ...) at `indices` along `axis`; shapes of indices and updates are equal."""
        return self.emit("SCATTER", [x, indices, updates], sub=kind, axis=axis_of(axis, x.rank))

    def interpolate(self, x: Value, indices: Array, weights: Array, axis: int) -> Value:
        """RESIZE: out[p] = sum over k of weights[p, k] * x[indices[p, k]] along `axis`; tables [P, K]."""
        tables = [self.constant(indices, DType.I32), self.constant(weights, DType.F32)]
        return self.emit("RESIZE", [x, *tables], axis=axis_of(axis, x.rank))

    # -- views

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """X in another shape of as many elements, row-major."""
        return x if tuple(shape) == x.dims else self.emit("RESHAPE", [x], shape=tuple(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """X with its axes in another order: axis k of the result is axis perm[k] of x."""
        perm = tuple(axis_of(p, x.rank) for p in perm)
        return x if perm == tuple(range(x.rank)) else self.emit("TRANSPOSE", [x], perm=perm)

    def swap(self, x: Value, a: int = -1, b: int = -2) -> Value:
        """X with two axes exchanged; by default a transposed matrix."""
        perm = list(range(x.rank))
        a, b = axis_of(a, x.rank), axis_of(b, x.rank)
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def slice(
        self, x: Value, starts: Mapping[int, Dim], sizes: Mapping[int, Dim], steps: Mapping[int, int] | None = None
    ) -> Value:  # fmt: skip
        """Elements start, start + step, ... of x along the given axes, `sizes` of them; steps are positive."""
        steps = steps or {}
        full: dict[str, list[Any]] = {"starts": [0] * x.rank, "sizes": list(x.dims), "steps": [1] * x.rank}
        for name, given in (("starts", starts), ("sizes", sizes), ("steps", steps)):
            for axis, number in given.items():
                full[name][axis_of(axis, x.rank)] = number
        if full["starts"] == [0] * x.rank and tuple(full["sizes"]) == x.dims:
            return x
        attributes: dict[str, Any] = {name: tuple(given) for name, given in full.items()}
        return self.emit("SLICE", [x], **attributes)

    def part(self, x: Value, axis: int, start: Dim, size: Dim) -> Value:
        """`size` elements of x from `start` along one axis."""
        return self.slice(x, {axis: start}, {axis: size})

    def expand(self, x: Value, shape: Sequence[Dim]) -> Value:
        """X broadcast to `shape`."""
        return x if tuple(shape) == x.dims else self.emit("EXPAND", [x], shape=tuple(shape))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """X with axes of size 1 put in; `axes` are positions in the result."""
        rank = x.rank + len(axes)
        at = {axis_of(a, rank) for a in axes}
        rest = iter(x.dims)
        return self.reshape(x, [1 if k in at else next(rest) for k in range(rank)])

    def squeeze(self, x: Value, *axes: int) -> Value:
        """X without the given axes, which have size 1."""
        at = {axis_of(a, x.rank) for a in axes}
        return self.reshape(x, [d for k, d in enumerate(x.dims) if k not in at])

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """`parts` one after the other along `axis`."""
        axis = axis_of(axis, parts[0].rank)
        if any(p.rank != parts[0].rank for p in parts):
            raise ModelError(f"CONCAT of {', '.join(str(p.type) for p in parts)}: their ranks differ")
        kept = [p for p in parts if p.dims[axis] != 0] or list(parts[:1])
        return kept[0] if len(kept) == 1 else self.emit("CONCAT", kept, axis=axis)

    def write(self, x: Value, part: Value, starts: Mapping[int, Dim]) -> Value:
        """X with `part` written over it from `starts`; in place where x is a state, or not needed any more."""
        full: list[Dim] = [0] * x.rank
        for axis, start in starts.items():
            full[axis_of(axis, x.rank)] = start
        return self.emit("WRITE", [x, part], starts=tuple(full))

    # -- element by element

    def act(self, kind: str, x: Value, alpha: float | None = None) -> Value:
        """A unary function; see ACT."""
        given: dict[str, Any] = {} if alpha is None else {"alpha": float(alpha)}
        return self.emit("ACT", [x], sub=kind, **given)

    def ew(self, kind: str, a: Operand, b: Operand) -> Value:
        """A binary function, with broadcasting; a number takes the other operand's type. See EW."""
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value), "of two numbers nothing is left to compute on the machine"
        a, b = (v if isinstance(v, Value) else self.constant(v, like.dtype) for v in (a, b))
        return self.emit("EW", [a, b], sub=kind)

    def add(self, a: Operand, b: Operand) -> Value:
        """A + b."""
        return self.ew("add", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        """A - b."""
        return self.ew("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        """A * b."""
        return self.ew("mul", a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        """A / b."""
        return self.ew("div", a, b)

    def select(self, cond: Value, a: Operand, b: Operand) -> Value:
        """A where cond, else b."""
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value), "one of the two must be a tensor"
        a, b = (v if isinstance(v, Value) else self.constant(v, like.dtype) for v in (a, b))
        return self.emit("SELECT", [cond, a, b])

    # -- along axes

    def reduce(
        self, kind: str, x: Value, axes: Sequence[int] | None = None, *, keepdims: bool = False,
        dtype: DType | None = None,
    ) -> Value:  # fmt: skip
        """A fold over `axes` (all by default); see REDUCE. `dtype` is that of the result, if not the usual one."""
        chosen = tuple(sorted({axis_of(a, x.rank) for a in (range(x.rank) if axes is None else axes)}))
        return self.emit("REDUCE", [x], sub=kind, axes=chosen, keepdims=keepdims, dtype=dtype) if chosen else x

    def scan(self, kind: str, x: Value, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Value:
        """A running fold; see SCAN."""
        return self.emit("SCAN", [x], sub=kind, axis=axis_of(axis, x.rank), exclusive=exclusive, reverse=reverse)

    def softmax(self, x: Value, axis: int = -1, *, log: bool = False) -> Value:
        """Softmax along `axis`, or its logarithm."""
        return self.emit("SOFTMAX", [x], sub="log" if log else "soft", axis=axis_of(axis, x.rank))

    def topk(self, x: Value, count: int, *, smallest: bool = False, axis: int = -1) -> tuple[Value, Value]:
        """The `count` largest (smallest) elements along `axis`, sorted, and their i64 indices."""
        axis = axis_of(axis, x.rank)
        node = self.node("TOPK", [self.swap(x, axis, -1)], count=count, smallest=smallest)
        values, indices = (self.swap(v, axis, -1) for v in node.outputs)
        return values, indices

    # -- products

    def matmul(
        self, a: Value, b: Value, *, c: Value | None = None, bias: Value | None = None, alpha: float = 1.0,
        beta: float = 1.0, dtype: DType | None = None,
    ) -> Value:  # fmt: skip
        """Alpha * a @ b + beta * c (+ bias), batched over leading dims, which broadcast."""
        extra = {"alpha": float(alpha), "beta": float(beta)}
        given: dict[str, Any] = {k: v for k, v in extra.items() if v != 1.0} | (
            {"steps": ("bias",)} if bias is not None else {}
        )
        return self.emit("GEMM", [a, b, c, bias, None, None], dtype=dtype, **given)

    def conv(
        self, x: Value, w: Value, *, bias: Value | None = None, strides: Sequence[int] = (1, 1),
        dilations: Sequence[int] = (1, 1), pads: Sequence[int] = (0, 0, 0, 0), groups: int = 1,
        gaps: Sequence[int] = (0, 0),
    ) -> Value:  # fmt: skip
        """Convolution of x [N, S..., C] with w [O, K..., C / groups]; see CONV for the attributes."""
        given: dict[str, Any] = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads)}
        given |= {"groups": groups} | ({"steps": ("bias",)} if bias is not None else {})
        given |= {"gaps": tuple(gaps)} if any(gaps) else {}
        return self.emit("CONV", [x, w, bias, None, None], **given)

    def pool(self, kind: str, x: Value, **window: Any) -> Value:
        """Pooling of x [N, S..., C]; kinds max, avg, global_max, global_avg; see POOL for the attributes."""
        return self.emit("POOL", [x], sub=kind, **window)

    def norm(
        self, kind: str, x: Value, gain: Value | None = None, bias: Value | None = None, *, eps: float = 1e-5,
        mean: Value | None = None, var: Value | None = None, groups: int = 0,
    ) -> Value:  # fmt: skip
        """Normalisation; kinds layer, rms, batch, group; see NORM."""
        given: dict[str, Any] = {"groups": groups} if kind == "group" else {}
        return self.emit("NORM", [x, gain, bias, mean, var], sub=kind, eps=float(eps), **given)

    def attention(self, q: Value, k: Value, v: Value, mask: Value | None = None, **options: Any) -> Value:
        """softmax(scale * q @ k.T + mask) @ v of [B, H, S, D] tensors; options as ATTENTION's attributes."""
        return self.emit("ATTENTION", [q, k, v, mask], **options)

    def rope(self, x: Value, cos: Value, sin: Value, *, interleaved: bool = False) -> Value:
        """Rotary position embedding of x [B..., S, D] by tables [S, R]."""
        return self.emit("ROPE", [x, cos, sin], interleaved=interleaved)

    # -- over time

    def recurrent(
        self, step: Step, sequences: Sequence[Value], states: Sequence[Value], others: Sequence[Value] = (), *,
        reverse: bool = False,
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """A loop over the first axis of `sequences`, from its end with `reverse`.

        `step` gets a builder, a slice of each sequence, the states and the others, all values of a graph of its own,
        and returns the new states and what belongs to this step. Returns the latter, stacked, and the final states.
        """
        return self._looped(sequences[0].dims[0], sequences, states, others, reverse,
                            lambda b, _, slices, held, rest: step(b, slices, held, rest))  # fmt: skip

    def repeat(
        self, step: Turn, count: Dim, states: Sequence[Value], others: Sequence[Value] = ()
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """A loop of `count` turns, which carries `states` along.

        `step` gets a builder, the number of the turn (0, 1, ...) as a size that only this turn knows, the states and
        the others, and returns what `recurrent`'s step returns. Constants need not be among `others`. What a turn
        writes over a part of a state (`write`) is written in place.
        """
        return self._looped(count, [], states, others, False, lambda b, turn, _, held, rest: step(b, turn, held, rest))

    def inner(self, name: str) -> GraphBuilder:
        """A builder for the step of a loop."""
        return GraphBuilder(name)

    def _looped(
        self, steps: Dim, sequences: Values, states: Values, others: Values, reverse: bool,
        step: Callable[[GraphBuilder, Dim, Values, Values, Values], tuple[Values, Values]],
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        # Steps of steps begin with the name of the step around them, so no two counters are called alike.
        counter = Symbol(f"{self.graph.name}#{len(self.graph.nodes)}", max(0, dims.bound(steps) - 1))
        inner = self.inner(counter.name)
        shapes = [(v, v.dims[1:]) for v in sequences] + [(v, v.dims) for v in (*states, *others)]
        given = [inner.input(f"i{k}", v.dtype, shape) for k, (v, shape) in enumerate(shapes)]
        cut, end = len(sequences), len(sequences) + len(states)
        number = dims.symbol(counter.name, counter.bound)
        after, results = step(inner, number, given[:cut], given[cut:end], given[end:])
        for k, value in enumerate((*after, *results)):
            inner.output(f"o{k}", value)
        inner.graph.sweep()
        length: dict[str, Any] = {} if sequences else {"steps": steps}
        node = self.node("RECURRENT", [*sequences, *states, *others], reverse=reverse, **length,
                         body=Body(inner.graph, cut, len(states), counter))  # fmt: skip
        return list(node.outputs[: len(results)]), list(node.outputs[len(results) :])

    # -- anything

    def emit(self, op: str, inputs: Sequence[Value | None], *, sub: str = "", dtype: DType | None = None,
             **attributes: Any) -> Value:  # fmt: skip
        """The first output of a new node."""
        return self.node(op, inputs, sub=sub, dtype=dtype, **attributes).output

    def node(self, op: str, inputs: Sequence[Value | None], *, sub: str = "", dtype: DType | None = None,
             **attributes: Any) -> Node:  # fmt: skip
        """A new node; its types follow from its inputs. Raises ModelError where they do not fit."""
        given = [None if v is None else v.type for v in inputs]
        types = infer(op, sub, given, attributes, dtype)
        check_node(op, sub, given, types, attributes)
        node = Node(op, sub, inputs, attributes, types, self.label, self.order)
        if not fold_small(node):
            self.graph.nodes.append(node)
        return node

    @staticmethod
    def _named(where: dict[str, Any], name: str, value: Any) -> None:
        if name in where:
            raise ModelError(f"two inputs, states or outputs are named {name!r}")
        where[name] = value
