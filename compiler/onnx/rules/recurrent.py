"""Recurrent layers: one product for the inputs of all steps, then a loop over what depends on the step before.

The machine's cells have the gates i, f, g, o (lstm) and r, z, n (gru); ONNX has i, o, f, c and z, r, h. Layers with
other functions, a clip or peepholes are made of products and single functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.onnx.context import Context
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

Values = Sequence[Value]
Result = tuple[Values, Values]

_ACT = {"Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softplus", "Softsign": "softsign", "Tanh": "tanh"}
_ACT_ALPHA = {"Elu": ("elu", 1.0), "LeakyRelu": ("leaky_relu", 0.01), "ThresholdedRelu": ("thresholded_relu", 1.0)}
_ALPHA = {"Affine": 1.0, "HardSigmoid": 0.2, "ScaledTanh": 1.0} | {
    name: alpha for name, (_, alpha) in _ACT_ALPHA.items()
}
_BETA = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}


@dataclass(frozen=True)
class _Function:
    """An activation of a recurrent layer; `clip` limits its argument where it is not 0."""

    name: str
    alpha: float
    beta: float
    clip: float

    def __call__(self, b: GraphBuilder, x: Value) -> Value:
        if self.clip:
            x = b.ew("max", b.ew("min", x, self.clip), -self.clip)
        if self.name in _ACT:
            return b.act(_ACT[self.name], x)
        if self.name in _ACT_ALPHA:
            return b.act(_ACT_ALPHA[self.name][0], x, self.alpha)
        if self.name == "ScaledTanh":
            return b.mul(b.act("tanh", b.mul(x, self.beta)), self.alpha)
        line = b.add(b.mul(x, self.alpha), self.beta)
        return line if self.name == "Affine" else b.ew("min", b.ew("max", line, 0), 1)


@dataclass(frozen=True)
class _Layer:
    """One direction of a layer, its gates in the machine's order."""

    gates: Value  # [T, N, G * H]: the inputs' share, with the biases that do not depend on the state
    weights: Value  # [H, G * H]
    bias: Value | None  # [G * H]: the state's own
    h: Value  # [N, H]
    c: Value | None
    peepholes: Sequence[Value]
    functions: Sequence[_Function]
    lengths: Value | None  # [T, N, 1]: whether a step is within its sequence
    reverse: bool

    def is_plain(self, *names: str) -> bool:
        """Whether its functions are these and nothing is clipped."""
        return [f.name for f in self.functions] == list(names) and not any(f.clip for f in self.functions)


def _layer(kind: str, order: Sequence[int], defaults: Sequence[str]) -> Callable[[Context], Any]:
    """The rule of one operator; `order` has ONNX's number of each of the machine's gates."""

    def rule(c: Context) -> Any:
        directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        direction = str(c.attribute("direction", "forward"))
        if direction not in directions:
            raise ModelError(f"direction = {direction!r}")
        functions = _functions(c, list(defaults) * len(directions[direction]))
        stacked, final = [], []
        for k, reverse in enumerate(directions[direction]):
            own = functions[k * len(defaults) : (k + 1) * len(defaults)]
            every, last = _run(c, kind, _prepared(c, kind, k, order, own, reverse=reverse))
            stacked.append(every)
            final.append(last)
        return (_joined(c, stacked), *(_states(c, states) for states in zip(*final, strict=True)))

    return rule


def _joined(c: Context, parts: Values) -> Value:
    """[T, N, H] of each direction as [T, D, N, H]; they lie side by side, as whoever reads them next wants them."""
    b, (t, n, h) = c.b, parts[0].dims
    y = b.reshape(b.concat(parts, 2), (t, n, len(parts), h))
    return b.transpose(y, (1, 0, 2, 3) if c.attribute("layout", 0) else (0, 2, 1, 3))


def _states(c: Context, parts: Values) -> Value:
    """[N, H] of each direction as [D, N, H], or [N, D, H]."""
    axis = 1 if c.attribute("layout", 0) else 0
    return c.b.concat([c.b.unsqueeze(v, axis) for v in parts], axis)


def _functions(c: Context, defaults: Sequence[str]) -> list[_Function]:
    """The activations of all directions; alphas and betas are taken by those that have one, in order."""
    names = [_canonical(name) for name in c.attribute("activations") or defaults]
    if len(names) != len(defaults):
        raise ModelError(f"{len(names)} activations instead of {len(defaults)}")
    alphas, betas = (list(c.attribute(f"activation_{x}") or []) for x in ("alpha", "beta"))
    clip = float(c.attribute("clip", 0.0))
    return [_Function(name, _taken(alphas, _ALPHA.get(name)), _taken(betas, _BETA.get(name)), clip) for name in names]


def _canonical(name: str) -> str:
    known = {known.lower(): known for known in (*_ACT, *_ALPHA)}
    if name.lower() not in known:
        raise ModelError(f"activation {name!r} is not supported")
    return known[name.lower()]


def _taken(given: list[float], default: float | None) -> float:
    if default is None:
        return 0.0
    return float(given.pop(0)) if given else default


def _prepared(
    c: Context, kind: str, k: int, order: Sequence[int], functions: Sequence[_Function], *, reverse: bool
) -> _Layer:  # fmt: skip
    """Direction `k`: weights in the machine's order, the product of all inputs, and states to begin with."""
    b, layout = c.b, bool(c.attribute("layout", 0))
    x = b.swap(c[0], 0, 1) if layout else c[0]
    if x.rank != 3 or c[2].rank != 3 or not isinstance(c[2].dims[2], int):
        raise ModelError(f"inputs {x.type} and recurrent weights {c[2].type}")
    size, gates = c[2].dims[2], len(order)
    _check_weights(c, gates, size, k)
    own = kind == "gru" and bool(c.attribute("linear_before_reset", 0))
    bias, state_bias = _biases(b, c.optional(3), k, order, size)
    if not own and bias is not None and state_bias is not None:
        bias, state_bias = b.add(bias, state_bias), None
    projected = b.matmul(x, b.swap(_gates(b, c[1], k, order, size)), bias=bias)
    shape = (x.dims[1], size)
    peepholes = [_gates(b, c[7], k, [n], size) for n in (0, 2, 1)] if kind == "lstm" and c.has(7) else []
    return _Layer(
        projected, b.swap(_gates(b, c[2], k, order, size)), state_bias, _initial(c, 5, k, shape, x.dtype),
        _initial(c, 6, k, shape, x.dtype) if kind == "lstm" else None, peepholes, functions,
        _within(c, x.dims), reverse,
    )  # fmt: skip


def _check_weights(c: Context, gates: int, size: int, k: int) -> None:
    """Raise ModelError unless weights, biases and peepholes are for so many gates and at least k + 1 directions."""
    rows = {1: gates * size, 2: gates * size, 3: 2 * gates * size, 7: 3 * size}
    for index, count in rows.items():
        if c.has(index) and not (c[index].rank >= 2 and c[index].dims[1] == count and dims.bound(c[index].dims[0]) > k):
            raise ModelError(f"input {index}, {c[index].type}: {count} rows in each of {k + 1} directions are needed")


def _gates(b: GraphBuilder, value: Value, k: int, order: Sequence[int], size: int) -> Value:
    """Direction `k` of [D, G * H, ...], with the gates in the given order."""
    if value.constant is not None:
        rest = value.constant.shape[2:]
        chosen = value.constant[k].reshape(-1, size, *rest)[list(order)].reshape(-1, *rest)
        return b.constant(np.ascontiguousarray(chosen), name=value.name)
    one = b.squeeze(b.part(value, 0, k, 1), 0)
    return b.concat([b.part(one, 0, n * size, size) for n in order], 0)


def _biases(b: GraphBuilder, value: Value | None, k: int, order: Sequence[int], size: int) -> list[Value | None]:
    """The inputs' and the state's bias."""
    if value is None:
        return [None, None]
    return [_gates(b, value, k, [n + half * len(order) for n in order], size) for half in (0, 1)]


def _initial(c: Context, index: int, k: int, shape: tuple[Dim, ...], dtype: DType) -> Value:
    if not c.has(index):
        return c.b.fill(shape, 0, dtype)
    axis = 1 if c.attribute("layout", 0) else 0
    return c.b.squeeze(c.b.part(c[index], axis, k, 1), axis)


def _within(c: Context, shape: Sequence[Dim]) -> Value | None:
    """Whether step t of sample n is within its sequence, [T, N, 1]; None if all are."""
    steps, samples, _ = shape
    if not c.has(4):
        return None
    if c[4].constant is not None and np.all(c[4].constant == steps):
        return None
    lengths = c.b.reshape(c.b.cast(c[4], DType.I64), (1, samples, 1))
    return c.b.ew("lt", c.b.iota((steps, 1, 1), DType.I64, axis=0), lengths)


def _run(c: Context, kind: str, layer: _Layer) -> tuple[Value, Values]:
    """The hidden states of all steps, and the final states."""
    b, cell = c.b, _CELLS[kind]
    lengths = [] if layer.lengths is None else [b.expand(layer.lengths, (*layer.gates.dims[:2], 1))]
    states = [layer.h] if layer.c is None else [layer.h, layer.c]
    bias = [] if layer.bias is None else [layer.bias]
    extra = {
        "before_reset": bool(c.attribute("linear_before_reset", 0)),
        "joined": bool(c.attribute("input_forget", 0)),
    }

    def step(inner: GraphBuilder, slices: Values, before: Values, others: Values) -> Result:
        after = cell(inner, layer, slices[0], before, others, extra)
        if lengths:
            after = [inner.select(slices[1], new, old) for new, old in zip(after, before, strict=True)]
        return after, after[:1]

    made, final = b.recurrent(step, [layer.gates, *lengths], states, [layer.weights, *bias, *layer.peepholes],
                              reverse=layer.reverse)  # fmt: skip
    (every,) = made
    return (b.select(layer.lengths, every, 0) if layer.lengths is not None else every), final


def _parts(b: GraphBuilder, x: Value, count: int) -> list[Value]:
    """The [N, H] that x [N, count * H] consists of."""
    size = x.dims[1] // count
    return [b.part(x, 1, k * size, size) for k in range(count)]


def _rnn(
    b: GraphBuilder, layer: _Layer, gates: Value, states: Values, others: Values, extra: dict[str, bool]
) -> Values:
    """The step h' = f(gates + h @ R)."""
    (f,), inputs = layer.functions, [states[0], others[0], gates, None, None, None]
    if f.name in _ACT and not f.clip:
        return [b.emit("GEMM", inputs, steps=("act",), act=_ACT[f.name])]
    return [f(b, b.emit("GEMM", inputs))]


def _lstm(
    b: GraphBuilder, layer: _Layer, gates: Value, states: Values, others: Values, extra: dict[str, bool]
) -> Values:
    """The step c' = f * c + i * g, h' = o * tanh(c'); peepholes let i and f see c, and o see c'."""
    h, c = states
    gates = b.matmul(h, others[0], c=gates)
    if layer.is_plain("Sigmoid", "Tanh", "Tanh") and not layer.peepholes and not extra["joined"]:
        return b.node("RNN", [gates, c, None, None], sub="lstm").outputs
    gate, candidate, out = layer.functions
    seen = others[1:]
    i, f, g, o = _parts(b, gates, 4)
    if seen:
        i, f = b.add(i, b.mul(seen[0], c)), b.add(f, b.mul(seen[1], c))
    i = gate(b, i)
    f = b.sub(b.constant(1, i.dtype), i) if extra["joined"] else gate(b, f)
    new = b.add(b.mul(f, c), b.mul(i, candidate(b, g)))
    o = gate(b, b.add(o, b.mul(seen[2], new)) if seen else o)
    return [b.mul(o, _unclipped(out)(b, new)), new]


def _unclipped(function: _Function) -> _Function:
    """The function of the cell state, which is no sum of products: it is not clipped."""
    return _Function(function.name, function.alpha, function.beta, 0.0)


def _gru(
    b: GraphBuilder, layer: _Layer, gates: Value, states: Values, others: Values, extra: dict[str, bool]
) -> Values:
    """The step h' = (1 - z) * n + z * h; the reset gate is on h, or on its product."""
    h, weights = states[0], others[0]
    if extra["before_reset"]:
        rec = b.matmul(h, weights, bias=others[1] if layer.bias is not None else None)
        if layer.is_plain("Sigmoid", "Tanh"):
            return [b.emit("RNN", [gates, None, rec, h], sub="gru")]
    gate, candidate = layer.functions
    xr, xz, xn = _parts(b, gates, 3)
    if extra["before_reset"]:
        hr, hz, hn = _parts(b, rec, 3)
        r, z = gate(b, b.add(xr, hr)), gate(b, b.add(xz, hz))
        n = candidate(b, b.add(xn, b.mul(r, hn)))
    else:
        size = h.dims[1]
        both = gate(b, b.matmul(h, b.part(weights, 1, 0, 2 * size), c=b.part(gates, 1, 0, 2 * size)))
        r, z = _parts(b, both, 2)
        n = candidate(b, b.matmul(b.mul(r, h), b.part(weights, 1, 2 * size, size), c=xn))
    return [b.add(n, b.mul(z, b.sub(h, n)))]


_CELLS = {"rnn": _rnn, "lstm": _lstm, "gru": _gru}

RULES: dict[str, Callable[[Context], Any]] = {
    "GRU": _layer("gru", (1, 0, 2), ("Sigmoid", "Tanh")),
    "LSTM": _layer("lstm", (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh")),
    "RNN": _layer("rnn", (0,), ("Tanh",)),
}
