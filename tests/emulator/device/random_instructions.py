"""Random valid instructions of every row: odd, empty and broadcast shapes, types, attributes, values.

`draft(rng, row, sub, dtype)` draws one; random_batch.py lays many of them out as one program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dla.isa import windows
from dla.isa.descriptor import Segment, contiguous
from dla.isa.dtypes import Array, DType, convert
from dla.isa.instructions import BY_MNEMONIC, gemm, rnn
from dla.isa.instructions.act import WITH_ALPHA
from dla.isa.program import Instruction
from dla.isa.table import Row
from dla.isa.typing import check

Rng = np.random.Generator
Shape = tuple[int, ...]
Values = Callable[[Rng, Shape, DType], Array]
"""(generator, shape, dtype) -> an array of values that an operand may take."""

# ---- values ----


def values(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Floats from a normal distribution; integers small or from the whole range; bools."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return convert(rng.standard_normal(shape) * rng.choice([1.0, 1.0, 8.0]), dtype)
    limits = np.iinfo(dtype.numpy)
    small = rng.random() < 0.5
    low, high = (max(limits.min, -9), 10) if small else (limits.min, limits.max)
    return rng.integers(low, high, shape, dtype=np.int64).astype(dtype.numpy)


def special_values(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """As `values`, with NaN, infinities and zeros among the floats, half of the time."""
    array = values(rng, shape, dtype)
    if dtype.is_float and rng.random() < 0.5:
        chosen = rng.random(shape) < 0.05
        array[chosen] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], int(chosen.sum())).astype(dtype.numpy)
    return array


def within_one(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Floats from -1 to 1, ends included; any integers."""
    return convert(rng.uniform(-1.02, 1.02, shape).clip(-1, 1), dtype) if dtype.is_float else values(rng, shape, dtype)


def above_one(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Floats from 1 on, many of them close to it; any integers."""
    return convert(1 + rng.exponential(2, shape) ** 3, dtype) if dtype.is_float else values(rng, shape, dtype)


def near_one(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Positive floats whose products neither overflow nor vanish; any integers."""
    return convert(rng.uniform(0.8, 1.25, shape), dtype) if dtype.is_float else values(rng, shape, dtype)


def not_zero(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """As `values`, without integer zeros."""
    array = values(rng, shape, dtype)
    return array if dtype.is_float else np.where(array == 0, np.ones_like(array), array)


def exponents(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """Moderate floats; integers from 0 to 6."""
    if dtype.is_float:
        return convert(rng.uniform(-3, 3, shape), dtype)
    return rng.integers(0, 7, shape).astype(dtype.numpy)


def indices_below(count: int) -> Values:
    """Integers from 0 to count - 1."""
    return lambda rng, shape, dtype: rng.integers(0, count, shape).astype(dtype.numpy)


# ---- shapes ----


def size(rng: Rng) -> int:
    """One dim: often 1 or odd, now and then 0."""
    if rng.random() < 0.03:
        return 0
    return int(rng.choice([1, 1, 2, 3, 3, 4, 5, 7, 7, 8, 13, 16, 17, 33]))


def shape(rng: Rng, low: int = 0, high: int = 4, *, most: int = 6000) -> Shape:
    """A shape of `low` to `high` dims; sometimes one of them is long."""
    dims = [size(rng) for _ in range(rng.integers(low, high + 1))]
    if dims and rng.random() < 0.15:
        dims = [min(d, 2) for d in dims]
        dims[rng.integers(len(dims))] = int(rng.choice([65, 257, 1000, 2049]))
    while np.prod(dims, dtype=np.int64) > most:
        dims[int(np.argmax(dims))] //= 2
    return tuple(dims)


def broadcastable(rng: Rng, target: Shape) -> Shape:
    """A shape that broadcasts to `target`."""
    kind = rng.integers(4)
    if kind == 0:
        return target
    given = tuple(1 if rng.random() < 0.3 else d for d in target)
    return given if kind == 1 else given[rng.integers(len(target) + 1) :]


# ---- drafts ----


@dataclass
class Draft:
    """An instruction before its operands have places."""

    row: Row
    sub: str
    shapes: dict[str, Shape]
    dtypes: dict[str, DType] = field(default_factory=dict)  # of operands
    attributes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)
    repeated: dict[str, tuple[int, ...]] = field(default_factory=dict)  # axes of stride 0, by operand


_Drawn = tuple[dict[str, Shape], dict[str, Any], dict[str, Values]]


@cache
def takes(mnemonic: str, sub: str, dtype: DType) -> bool:
    """Whether `draft` draws `sub` of `dtype`. Twice as many attempts as any needs: most of the time goes into a no."""
    return draft(np.random.default_rng(1), BY_MNEMONIC[mnemonic], sub, dtype, attempts=66) is not None


def draft(rng: Rng, row: Row, sub: str, dtype: DType, *, attempts: int = 200) -> Draft | None:
    """A draft whose first input, or else output, is of `dtype`; None if `sub` does not take it, or none was valid."""
    for _ in range(attempts):
        shapes, attributes, chosen = _DRAW[row.mnemonic](rng, sub, dtype)
        attempt = Draft(row, sub, shapes, _types(rng, row, dtype, shapes), attributes, chosen)
        placed = tuple(
            contiguous(Segment.SCRATCH, attempt.dtypes[o.name], shapes[o.name]) if o.name in shapes else None
            for o in row.operands
        )
        if not check(Instruction(row, sub, placed, attributes)):
            attempt.repeated = _repeated(rng, attempt)
            return attempt
    return None


def _repeated(rng: Rng, drawn: Draft) -> dict[str, tuple[int, ...]]:
    """Axes along which operands repeat on purpose: the indices of SCATTER all but one, where whole slices are meant."""
    if drawn.row.mnemonic != "SCATTER" or rng.random() < 0.5:
        return {}
    return {"indices": tuple(k for k in range(len(drawn.shapes["indices"])) if k != drawn.attributes["axis"])}


def _types(rng: Rng, row: Row, dtype: DType, shapes: Mapping[str, Shape]) -> dict[str, DType]:
    """A type for each operand; the output's is that of the input half of the time."""
    main = (row.inputs or row.outputs)[0]
    variables: dict[str, DType] = {main.dtypes: dtype} if isinstance(main.dtypes, str) else {}
    chosen = {}
    for operand in row.operands:
        allowed = row.operand_dtypes(operand)
        drawn = dtype if dtype in allowed and rng.random() < 0.5 else allowed[rng.integers(len(allowed))]
        chosen[operand.name] = variables.setdefault(operand.dtypes, drawn) if isinstance(operand.dtypes, str) else drawn
    return {name: t for name, t in chosen.items() if name in shapes}


def _copy(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    return {"out": out, "x": broadcastable(rng, out)}, {}, {"x": special_values}


def _number(rng: Rng, dtype: DType) -> int | float:
    if rng.random() < 0.5:
        return int(rng.choice([0, 1, -1, 7, 127, -128, 300, 2**31, -(2**40), 2**63 - 1]))
    return float(rng.choice([0.0, 0.5, -2.5, 3.7, 1e-3, 300.5, -1e10, 65519.9, 1e30]))


def _fill(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    return {"out": shape(rng)}, {"value": _number(rng, dtype)}, {}


def _iota(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng, 1)
    numbers = {"start": _number(rng, dtype), "step": [1, -3, 0.25, 0.1, 1000][rng.integers(5)]}
    return {"out": out}, numbers | {"axis": int(rng.integers(len(out)))}, {}


def _pad(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1, most=500)
    room = {"constant": lambda n: 5, "reflect": lambda n: n - 1, "wrap": lambda n: n, "edge": lambda n: 5 if n else 0}
    ends = [[int(rng.integers(0, max(0, min(room[sub](n), 5)) + 1)) for n in x] for _ in range(2)]
    low, high = (tuple(e) + (0,) * (6 - len(x)) for e in ends)
    attributes: dict[str, Any] = {"low": low, "high": high}
    if sub == "constant":
        attributes["value"] = _number(rng, dtype)
    out = tuple(d + a + b for d, a, b in zip(x, low, high, strict=False))
    return {"out": out, "x": x}, attributes, {"x": special_values}


def _gather(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x, indices = shape(rng, 1, 3, most=2000), shape(rng, 0, 2, most=20)
    axis = int(rng.integers(len(x)))
    x = (*x[:axis], max(1, x[axis]), *x[axis + 1 :])
    shapes = {"out": x[:axis] + indices + x[axis + 1 :], "x": x, "indices": indices}
    return shapes, {"axis": axis}, {"x": special_values, "indices": indices_below(x[axis])}


def _scatter(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1, 3, most=4000)
    axis = int(rng.integers(len(x)))
    columns = int(np.prod(x[:axis] + x[axis + 1 :], dtype=np.int64))
    count = min(int(rng.choice([0, 1, 2, 7, 40, 300])), 6000 // max(1, columns))
    x = (*x[:axis], max(1 if count else 0, x[axis]), *x[axis + 1 :])
    whole = rng.random() < 0.5  # columns have updates, rather than some
    part = tuple(count if k == axis else d if whole else int(rng.integers(d + 1)) for k, d in enumerate(x))
    places = max(1, min(x[axis], int(rng.choice([1, 3, 10**6]))))  # the fewer, the more updates of one element
    chosen = near_one if sub == "mul" else values if sub == "add" else special_values
    drawn = {"x": chosen, "updates": chosen, "indices": indices_below(places)}
    return {"out": x, "x": x, "indices": part, "updates": part}, {"axis": axis}, drawn


def _resize(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x, table = shape(rng, 1, 4, most=2000), (size(rng), int(rng.choice([0, 1, 1, 2, 2, 4, 7])))
    axis = int(rng.integers(len(x)))
    x = (*x[:axis], max(1, x[axis]), *x[axis + 1 :])
    shapes = {"out": (*x[:axis], table[0], *x[axis + 1 :]), "x": x, "indices": table, "weights": table}
    return shapes, {"axis": axis}, {"x": special_values, "indices": indices_below(x[axis]), "weights": _with_zeros}


def _with_zeros(rng: Rng, shape: Shape, dtype: DType) -> Array:
    """As `values`, many of them 0: terms that do not count."""
    array = values(rng, shape, dtype)
    return np.where(rng.random(shape) < 0.3, np.zeros_like(array), array)


def _act(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    alpha = {"alpha": 0.3} if sub in WITH_ALPHA and rng.random() < 0.5 else {}
    domain = {"asin": within_one, "acos": within_one, "atanh": within_one, "acosh": above_one}.get(sub, special_values)
    return {"out": out, "x": broadcastable(rng, out)}, alpha, {"x": domain if rng.random() < 0.7 else special_values}


def _ew(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    special = {"div": not_zero, "mod": not_zero, "pow": exponents}.get(sub, special_values)
    left = near_one if sub == "pow" and dtype.is_float else values if sub in ("div", "mod", "pow") else special_values
    return {"out": out, "a": broadcastable(rng, out), "b": broadcastable(rng, out)}, {}, {"a": left, "b": special}


def _select(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    shapes = {"out": out} | {name: broadcastable(rng, out) for name in ("cond", "a", "b")}
    return shapes, {}, {"a": special_values, "b": special_values}


def _reduce(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1)
    count = 1 if sub in ("argmax", "argmin") else int(rng.integers(1, len(x) + 1))
    axes = tuple(sorted(int(a) for a in rng.choice(len(x), count, replace=False)))
    keepdims = bool(rng.integers(2))
    out = tuple(1 if k in axes else d for k, d in enumerate(x) if keepdims or k not in axes)
    chosen = near_one if sub == "prod" else values if sub == "l2" else special_values
    return {"out": out, "x": x}, {"axes": axes, "keepdims": keepdims}, {"x": chosen}


def _scan(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1)
    flags = {"exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}
    chosen = near_one if sub == "prod" else special_values
    return {"out": x, "x": x}, {"axis": int(rng.integers(len(x))), **flags}, {"x": chosen}


def _softmax(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1)
    return {"out": x, "x": x}, {"axis": int(rng.integers(len(x)))}, {"x": special_values}


def _norm(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 2 if sub == "group" else 1)
    channels = x[-1]
    shapes = {"out": x, "x": x} | {name: (channels,) for name in ("gain", "bias") if rng.random() < 0.6}
    attributes: dict[str, Any] = {"eps": float(rng.choice([1e-5, 1e-2]))}
    if sub == "group":
        attributes["groups"] = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0] or [1]))
    if sub == "batch":
        shapes |= {"mean": (channels,), "var": (channels,)}
    return shapes, attributes, {"var": near_one}


def _rope(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 2)
    pairs = int(rng.integers(x[-1] // 2 + 1))
    tables = {name: (*broadcastable(rng, x[:-2]), x[-2], pairs) for name in ("cos", "sin")}
    return {"out": x, "x": x} | tables, {"interleaved": bool(rng.integers(2))}, {}


def _rnn(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    state = shape(rng, 1, most=1500)
    gates = (*state[:-1], rnn.GATES[sub] * state[-1])
    inputs = {"gates": gates} | ({"c": state} if sub == "lstm" else {"rec": gates, "h": state})
    outputs = {"out": state} | ({"c_out": state} if sub == "lstm" else {})
    return outputs | inputs, {}, dict.fromkeys((*inputs, "x"), special_values)


def _topk(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng, 1)
    out = (*x[:-1], int(rng.integers(x[-1] + 1)))
    shapes = {"out": out, "x": x} | ({"indices": out} if rng.integers(2) else {})
    return shapes, {"smallest": bool(rng.integers(2))}, {"x": special_values}


_SMOOTH = ("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "softplus", "hard_swish")


def _epilogue(rng: Rng, out: Shape) -> tuple[dict[str, Shape], dict[str, Any]]:
    """Operands and attributes of random epilogue steps."""
    steps = tuple(rng.permutation(["bias", "act", "residual", "gate", "clamp"])[: rng.integers(5)].tolist())
    shapes = {step: broadcastable(rng, out) for step in steps if step in ("bias", "residual", "gate")}
    attributes: dict[str, Any] = {"steps": steps} if steps else {}
    attributes |= {"act": str(rng.choice(_SMOOTH))} if "act" in steps else {}
    attributes |= {"clamp_low": -0.5, "clamp_high": 2.0} if "clamp" in steps else {}
    return shapes, attributes


def _gemm(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    batch = shape(rng, 0, 2, most=6)
    m, n, k = (int(rng.choice([0, 1, 2, 5, 8, 16, 17, 33, 64, 100, 130])) for _ in range(3))
    out, columns = (*batch, m, n), 2 * n if sub == "glu" else n
    shapes = {"out": out, "a": (*broadcastable(rng, batch), m, k), "b": (*broadcastable(rng, batch), k, columns)}
    if not dtype.is_float:
        return shapes, {}, {}
    extra, attributes = _epilogue(rng, out)
    if sub == "glu":
        attributes["unit"] = str(rng.choice(list(gemm.UNITS)))
    elif rng.random() < 0.3:
        extra["c"] = broadcastable(rng, out)
        attributes["beta"] = 0.5
    if rng.random() < 0.3:
        attributes["alpha"] = -1.5
    return shapes | extra, attributes | _math(rng, dtype), {}


def _math(rng: Rng, dtype: DType) -> dict[str, Any]:
    """Half of all products of f32 are in tf32."""
    return {"math": "tf32"} if dtype is DType.F32 and rng.random() < 0.5 else {}


def _window(rng: Rng, spatial: int, most: int) -> dict[str, Any]:
    """Attributes of a WINDOW record for one or two spatial axes."""
    lead = (1,) * (2 - spatial)
    pads = [0 if k % 2 < 2 - spatial else int(rng.integers(0, 3)) for k in range(4)]
    strides, dilations = ((*lead, *(int(v) for v in rng.integers(1, most + 1, spatial))) for _ in range(2))
    return {"strides": strides, "dilations": dilations, "pads": tuple(pads)}


def _conv(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    spatial = int(rng.integers(1, 3))
    groups = int(rng.choice([1, 1, 2, 3, 8]))
    depth, outputs = (int(rng.choice([1, 2, 3, 8, 16])) for _ in range(2))
    taps, sizes = (tuple(int(v) for v in rng.integers(low, high, spatial)) for low, high in ((1, 4), (3, 15)))
    attributes = _window(rng, spatial, 2)
    if rng.random() < 0.3:
        attributes["gaps"] = (*(0,) * (2 - spatial), *(int(v) for v in rng.integers(0, 4, spatial)))
    positions = windows.geometry(attributes | {"window": (1, 1)}, spatial, taps).output(sizes) or (1,) * spatial
    batch = int(rng.choice([0, 1, 2, 3]))
    out = (batch, *positions, outputs * groups)
    shapes = {"out": out, "x": (batch, *sizes, depth * groups), "w": (outputs * groups, *taps, depth)}
    extra, more = _epilogue(rng, out)
    return shapes | extra, attributes | more | _math(rng, dtype) | {"groups": groups}, {}


def _pool(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    spatial = int(rng.integers(1, 3))
    batch, channels = int(rng.choice([0, 1, 2, 3])), size(rng)
    sizes = tuple(int(v) for v in rng.integers(2, 15, spatial))
    if sub.startswith("global"):
        return {"out": (batch, *(1,) * spatial, channels), "x": (batch, *sizes, channels)}, {}, {"x": special_values}
    taps = tuple(int(v) for v in rng.integers(1, 4, spatial))
    attributes = _window(rng, spatial, 2) | {"window": (*(1,) * (2 - spatial), *taps)}
    positions = windows.geometry(attributes, spatial).output(sizes) or (1,) * spatial
    attributes |= {"count_include_pad": bool(rng.integers(2))} if sub == "avg" else {}
    return {"out": (batch, *positions, channels), "x": (batch, *sizes, channels)}, attributes, {"x": special_values}


def _attention(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    batch, shared, repeat = (int(rng.choice([1, 2, 3])) for _ in range(3))
    queries, keys, depth, width = (int(rng.choice([1, 3, 7, 16, 33, 64, 70])) for _ in range(4))
    heads = shared * repeat
    shapes = {
        "out": (batch, heads, queries, width), "q": (batch, heads, queries, depth), "k": (batch, shared, keys, depth),
        "v": (batch, shared, keys, width),
    }  # fmt: skip
    if rng.random() < 0.4:
        shapes["mask"] = broadcastable(rng, (batch, heads, queries, keys))
    if rng.random() < 0.4:
        shapes["lse"] = (batch, heads, queries)
    attributes: dict[str, Any] = {"causal": bool(rng.integers(2)), "window": int(rng.choice([0, 0, 5]))}
    attributes |= {"softcap": 5.0} if rng.random() < 0.2 else {}
    attributes |= {"scale": 0.25} if rng.random() < 0.3 else {}
    attributes |= {"position": int(rng.integers(0, keys))} if rng.random() < 0.3 else {}
    return shapes, attributes, {}


def _alone(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    return {"out": out, "x": out}, {}, {"x": special_values}


def _alone_in_pairs(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    return {"out": out, "x": out}, {"pairs": 1}, {"x": special_values}


def _gathered_alone(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    x = shape(rng)
    return {"out": (1, *x), "x": x}, {}, {"x": special_values}


def _scattered_alone(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = shape(rng)
    return {"out": out, "x": (1, *out)}, {}, {"x": special_values}


def _exchanged_alone(rng: Rng, sub: str, dtype: DType) -> _Drawn:
    out = (1, *shape(rng))
    return {"out": out, "x": out}, {}, {"x": special_values}


_DRAW: dict[str, Callable[[Rng, str, DType], _Drawn]] = {
    "COPY": _copy, "FILL": _fill, "IOTA": _iota, "PAD": _pad, "GATHER": _gather, "SCATTER": _scatter,
    "ACT": _act, "EW": _ew,
    "SELECT": _select, "REDUCE": _reduce, "SCAN": _scan, "GEMM": _gemm, "CONV": _conv, "POOL": _pool,
    "RESIZE": _resize, "NORM": _norm,
    "SOFTMAX": _softmax, "ATTENTION": _attention, "ROPE": _rope, "RNN": _rnn,
    "TOPK": _topk,
    "ALLREDUCE": _alone, "ALLGATHER": _gathered_alone, "REDUCESCATTER": _scattered_alone, "ALLTOALL": _exchanged_alone,
    "BROADCAST": _alone, "PERMUTE": _alone_in_pairs,
}  # fmt: skip
COVERED = frozenset(_DRAW)
"""Mnemonics that `draft` knows."""
