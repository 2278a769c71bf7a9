"""Operations for random graphs: each adds one, or a few that belong together, if its graph has values that fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from growing_graphs import BOOL, F32, I64, Growing

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder, Values
from dla.compiler.dims import Dim
from dla.compiler.graph import Value
from dla.compiler.shapes import broadcast
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

# -- views


def _reshape(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    shape = list(x.dims)
    for _ in range(g.rng.randint(1, 3)):
        if g.chance() and len(shape) > 1:
            at = g.rng.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif g.chance(0.2):
            shape.insert(g.rng.randrange(len(shape) + 1), 1)
        elif shape:
            at = g.rng.randrange(len(shape))
            for factor in g.rng.sample([2, 3, 4, dims.symbol("n", 5), dims.symbol("m", 4)], 5):
                rest = dims.divide(shape[at], factor)
                if rest is not None and shape[at] != 0:
                    shape[at : at + 1] = g.rng.sample([factor, rest], 2)
                    break
    g.add(g.b.reshape(x, shape))


def _transpose(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 1)
    g.add(g.b.transpose(x, g.rng.sample(range(x.rank), x.rank)))


def _slice(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    size = x.dims[axis]
    if isinstance(size, int):
        if size < 2:
            raise LookupError
        start = g.rng.randrange(size)
        step = g.rng.randint(1, 3)
        count = g.rng.randint(1, -(-(size - start) // step))
        g.add(g.b.slice(x, {axis: start}, {axis: count}, {axis: step}))
    else:
        keep = dims.maximum(size - g.rng.randint(0, 1), 0)
        start = size - keep if g.chance() else 0
        g.add(g.b.slice(x, {axis: start}, {axis: keep}))


def _expand(g: Growing) -> None:
    x = g.pick(lambda v: v.rank < 5)
    shape = [g.dim() if d == 1 and g.chance() else d for d in x.dims]
    g.add(g.b.expand(x, [g.dim() for _ in range(g.rng.randint(0, 2))] + shape))


def _squeeze(g: Growing) -> None:
    x = g.pick(lambda v: 1 in v.dims)
    g.add(g.b.squeeze(x, g.rng.choice([k for k, d in enumerate(x.dims) if d == 1])))


def _unsqueeze(g: Growing) -> None:
    x = g.pick(lambda v: v.rank < 6)
    g.add(g.b.unsqueeze(x, g.rng.randint(0, x.rank)))


# -- putting together


def _concat(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.rng.randint(1, 3)):
        parts.append(g.pick(lambda v: v.dtype is x.dtype and v.rank == x.rank and _rest(v, axis) == _rest(x, axis)))
    g.rng.shuffle(parts)
    g.add(g.b.concat(parts, axis))


def _rest(x: Value, axis: int) -> tuple[Dim, ...]:
    return (*x.dims[:axis], *x.dims[axis + 1 :])


def _write(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    part = g.pick(lambda v: v.dtype is x.dtype and v.rank == x.rank
                  and all(dims.interval(a - b)[0] >= 0 for a, b in zip(x.dims, v.dims, strict=True)))  # fmt: skip
    starts = {k: (0 if g.chance() else a - b) for k, (a, b) in enumerate(zip(x.dims, part.dims, strict=True))}
    g.add(g.b.write(x, part, starts))


def _pad(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    low, high = ([g.rng.choice([0, 0, 1, 2]) for _ in x.dims] for _ in range(2))
    g.add(g.b.pad(x, low, high, mode=g.rng.choice(["constant", "constant", "edge", "wrap", "reflect"])))


def _made(g: Growing) -> None:
    shape = [g.dim() for _ in range(g.rng.randint(1, 3))]
    if g.chance():
        g.add(g.b.fill(shape, g.rng.choice([0, 1, 2]), g.rng.choice([F32, I64])))
    else:
        g.add(g.b.iota(shape, I64, axis=g.rng.randrange(len(shape)), start=1, step=2))


# -- element by element


def _act(g: Growing) -> None:
    kinds = ("relu", "neg", "abs", "tanh", "sigmoid", "gelu", "silu", "leaky_relu", "hard_swish", "sin", "erf")
    kind = g.rng.choice(kinds)
    g.add(g.b.act(kind, g.floats(), 0.125 if kind == "leaky_relu" else None))


def _silu(g: Growing) -> None:
    x = g.floats()
    g.add(g.b.mul(x, g.add(g.b.act("sigmoid", x))))


def _ew(g: Growing) -> None:
    a = g.pick(lambda v: v.dtype is not BOOL)
    kind = g.rng.choice(["add", "add", "mul", "sub", "min", "max"])
    if g.chance(0.2):
        g.add(g.b.ew(kind, a, g.rng.choice([0, 1, 2, -1])) if g.chance() else g.b.ew(kind, g.rng.choice([0, 1, 3]), a))
    else:
        g.add(g.b.ew(kind, *g.rng.sample([a, g.pick(lambda v: v.dtype is a.dtype and _meet(v, a))], 2)))


def _meet(*values: Value) -> bool:
    try:
        return len(broadcast([v.dims for v in values])) <= 6
    except ModelError:
        return False


def _compare(g: Growing) -> None:
    a = g.pick(lambda v: v.dtype is not BOOL and g.is_exact(v))
    c = g.pick(lambda v: v.dtype is a.dtype and g.is_exact(v) and _meet(v, a))
    g.add(g.b.ew(g.rng.choice(["eq", "lt", "ge"]), a, c))


def _select(g: Growing) -> None:
    cond = g.pick(lambda v: v.dtype is BOOL)
    a = g.pick(lambda v: _meet(v, cond))
    g.add(g.b.select(cond, a, g.pick(lambda v: v.dtype is a.dtype and _meet(v, a, cond))))


def _cast(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is not F32 or g.is_exact(v))
    through = g.rng.choice([I64, DType.I32, DType.BOOL, DType.U8, F32])
    if x.dtype is F32 and through is DType.U8:
        raise LookupError  # of negative numbers
    g.add(g.b.cast(g.add(g.b.cast(x, through)), g.rng.choice([F32, I64])))


def _count(g: Growing) -> None:
    """Where the largest elements are, and integers folded."""
    x = g.pick(lambda v: v.rank > 0 and g.is_exact(v) and v.dtype is not BOOL)
    kind = g.rng.choice(["argmax", "argmin", "sum", "max"] if x.dtype is I64 else ["argmax", "argmin"])
    g.add(g.b.reduce(kind, x, [g.axis(x)], keepdims=g.chance()))


# -- along axes


def _reduce(g: Growing) -> None:
    x = g.floats(least=1)
    axes = g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))
    g.add(g.b.reduce(g.rng.choice(["sum", "mean", "max", "min"]), x, axes, keepdims=g.chance()))


def _scan(g: Growing) -> None:
    x = g.floats(least=1)
    g.add(g.b.scan(g.rng.choice(["sum", "max"]), x, g.axis(x), reverse=g.chance()))


def _softmax(g: Growing) -> None:
    x = g.floats(least=1)
    g.add(g.b.softmax(x, g.axis(x)))


def _norm(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and v.rank > 0 and isinstance(v.dims[-1], int) and v.dims[-1] > 1)
    size = int(str(x.dims[-1]))
    gain, bias = ((g.constant((size,)) if g.chance() else None) for _ in range(2))
    kind = g.rng.choice(["layer", "rms", "batch", "group"])
    if kind == "batch":
        var = g.b.constant(np.abs(g.array((size,), F32)) + 1)
        g.add(g.b.norm(kind, x, gain, bias, mean=g.constant((size,)), var=var))
    else:
        groups = g.rng.choice([k for k in range(1, size + 1) if size % k == 0]) if kind == "group" else 0
        g.add(g.b.norm(kind, x, gain, bias, eps=0.5, groups=groups))


def _topk(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and g.is_exact(v) and v.rank > 0 and isinstance(v.dims[-1], int)
               and v.dims[-1] > 0)  # fmt: skip
    found = g.b.topk(x, g.rng.randint(1, int(str(x.dims[-1]))), smallest=g.chance())
    for value in found if g.chance() else found[: g.rng.randint(0, 1)] or found[1:]:
        g.add(value)


def _gather(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    indices = g.pick(lambda v: v.dtype is I64 and v.rank + x.rank <= 7 and g.of(v).size > 0 and _indexes(g, v, x, axis))
    g.add(g.b.gather(x, indices, axis))


def _indexes(g: Growing, indices: Value, x: Value, axis: int) -> bool:
    found = g.of(indices)
    return bool(found.size and found.min() >= 0 and found.max() < g.of(x).shape[axis])


def _scatter(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype is not BOOL)
    axis = g.axis(x)
    updates = g.pick(lambda v: v.dtype is x.dtype and v.rank == x.rank
                     and all(dims.interval(a - b)[0] >= 0 for a, b in zip(x.dims, v.dims, strict=True)))  # fmt: skip
    size = x.dims[axis]
    if not isinstance(size, int) or size == 0:
        raise LookupError
    indices = g.add(g.b.expand(g.b.constant(np.array(g.rng.randrange(size))), updates.dims))
    g.add(g.b.scatter(g.rng.choice(["set", "add", "max"]), x, indices, updates, axis))


# -- products


def _matmul(g: Growing) -> None:
    a = g.floats(least=2)
    fits = [v for v in g.values if v.dtype is F32 and v.rank >= 2 and _meet(v, a) is not None]
    inner = a.dims[-1]
    found = [v for v in fits if v.dims[-2] == inner and _batches(a, v)]
    if (not found or g.chance()) and isinstance(inner, int):
        b = g.constant((inner, g.rng.randint(1, 6)))
    elif found:
        b = g.rng.choice(found)
    else:
        raise LookupError
    width = b.dims[-1]
    bias = g.constant((width,)) if isinstance(width, int) and g.chance(0.3) else None
    made = g.add(g.b.matmul(a, b, bias=bias, alpha=g.rng.choice([1.0, 1.0, 0.5])))
    if g.chance(0.1):
        made = g.add(g.b.matmul(a, b, c=made, beta=2.0))
    if g.chance(0.1) and made.rank > 1:
        made = g.add(g.b.swap(made))
    if g.chance(0.6):  # what epilogues take
        made = g.add(g.b.add(made, g.pick(lambda v: v.dtype is F32 and _meet(v, made))))
    if g.chance():
        made = g.add(g.b.act(g.rng.choice(["relu", "gelu", "silu", "tanh"]), made))
    if g.chance(0.4):
        g.add(g.b.mul(made, g.pick(lambda v: v.dtype is F32 and _meet(v, made))))


def _batches(a: Value, b: Value) -> bool:
    try:
        return len(broadcast([a.dims[:-2], b.dims[:-2]])) <= 4
    except ModelError:
        return False


def _siblings(g: Growing) -> None:
    """Several products of one input, as queries, keys and values are."""
    a = g.pick(lambda v: v.dtype is F32 and v.rank >= 2 and isinstance(v.dims[-1], int))
    made = [g.add(g.b.matmul(a, g.constant((int(str(a.dims[-1])), 4)))) for _ in range(g.rng.randint(2, 3))]
    if g.chance():
        g.add(g.b.mul(g.b.act("silu", made[0]), made[1]))


def _conv(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and v.rank in (3, 4) and all(isinstance(d, int) and d > 0 for d in v.dims[1:]))
    channels = int(str(x.dims[-1]))
    kernel = [g.rng.randint(1, min(3, int(str(d)))) for d in x.dims[1:-1]]
    outs = g.rng.randint(1, 4)
    groups = channels if g.chance(0.3) else 1
    w = g.constant((outs * groups, *kernel, channels // groups))
    strides = (1, *[1] * len(kernel))[-2:] if g.chance() else (1, 2) if len(kernel) == 1 else (2, 1)
    made = g.add(g.b.conv(x, w, bias=g.constant((outs * groups,)) if g.chance() else None, groups=groups,
                          strides=strides, pads=(0, 1, 0, 1)))  # fmt: skip
    size = int(str(made.dims[-1]))
    if g.chance():
        gain, bias, mean = (g.constant((size,)) for _ in range(3))
        made = g.add(g.b.norm("batch", made, gain, bias, mean=mean, var=g.b.constant(np.ones(size, np.float32))))
    if g.chance():
        g.add(g.b.act("relu", made))


def _pool(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and v.rank == 4 and all(isinstance(d, int) and d > 0 for d in v.dims[1:]))
    window = tuple(g.rng.randint(1, min(2, int(str(d)))) for d in x.dims[1:3])
    kind = g.rng.choice(["max", "avg", "global_avg"])
    g.add(g.b.pool(kind, x, **({} if kind == "global_avg" else {"window": window})))


def _attention(g: Growing) -> None:
    q = g.pick(lambda v: v.dtype is F32 and v.rank == 4 and isinstance(v.dims[1], int) and isinstance(v.dims[3], int))
    k = g.pick(lambda v: v.dtype is F32 and v.rank == 4 and v.dims[:2] == q.dims[:2] and v.dims[3] == q.dims[3])
    v = g.pick(lambda v: v.dtype is F32 and v.rank == 4 and v.dims == k.dims)
    g.add(g.b.attention(q, k, v, causal=g.chance()))


def _rope(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and v.rank >= 2 and isinstance(v.dims[-1], int) and v.dims[-1] > 1
               and isinstance(v.dims[-2], int))  # fmt: skip
    table = (int(str(x.dims[-2])), int(str(x.dims[-1])) // 2)
    g.add(g.b.rope(x, g.constant(table), g.constant(table), interleaved=g.chance()))


def _recurrent(g: Growing) -> None:
    x = g.pick(lambda v: v.dtype is F32 and v.rank == 3 and dims.bound(v.dims[0]) > 0 and g.of(v).shape[0] > 0)
    h = g.pick(lambda v: v.dtype is F32 and v.dims == x.dims[1:])
    kind = g.rng.randrange(4)

    def step(b: GraphBuilder, given: Values, states: Values, others: Values) -> tuple[Values, Values]:
        first, second = states
        made = b.act("tanh", b.add(first, given[0]))
        if kind == 0:
            return [second, made], [made]
        if kind == 1:
            return [made, b.sub(second, b.mul(others[0], 0.25))], [second]
        if kind == 2:
            return [made, made], [made, first]
        return [b.mul(b.add(made, second), 0.5), first], [b.act("neg", second)]

    stacked, states = g.b.recurrent(step, [x], [h, g.pick(lambda v: v.dtype is F32 and v.dims == h.dims)], [h],
                                    reverse=g.chance())  # fmt: skip
    for value in (*stacked, *states):
        if g.chance(0.7):
            g.add(value)


OPERATIONS: tuple[Callable[[Growing], None], ...] = (
    _reshape, _reshape, _reshape, _transpose, _transpose, _slice, _slice, _expand, _squeeze, _unsqueeze,
    _concat, _concat, _concat, _write, _write, _pad, _made, _act, _act, _silu, _ew, _ew, _ew, _ew, _compare, _select,
    _cast, _count, _reduce, _scan, _softmax, _norm, _topk, _gather, _scatter, _matmul, _matmul, _siblings, _conv, _pool,
    _attention, _rope, _recurrent,
)  # fmt: skip
