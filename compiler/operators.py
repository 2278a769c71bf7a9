"""What a graph node may be, and the types of what it gives: the rows of the instruction set, views, and composites.

An operator that is a row has the row's attributes, plus those that only the graph needs because an instruction reads
them off its output (`shape` of FILL and IOTA, `count` of TOPK). Shapes follow the rows' patterns and constraints; the
verifier asks those again of the finished program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dla.compiler import dims
from dla.compiler.dims import Dim
from dla.compiler.graph import Body, Node, TensorType, Value
from dla.compiler.shapes import broadcast, shape_text
from dla.isa import windows
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.names import shown
from dla.isa.table import Row

VIEWS = ("RESHAPE", "TRANSPOSE", "SLICE", "EXPAND")
"""Operators that only look at their input differently: no instruction where strides can say it."""

GRAPH_ONLY = ("shape", "count")
"""Attributes that no instruction has."""

Types = Sequence[TensorType | None]


@dataclass(frozen=True)
class Request:
    """One node whose output types are asked for. `dtype` is the type wished for the first output, or None."""

    op: str
    sub: str
    inputs: Types
    attributes: Mapping[str, Any]
    dtype: DType | None

    def __getitem__(self, index: int) -> TensorType:
        found = self.inputs[index]
        if found is None:
            raise ModelError(f"{self.op}: input {index} is missing")
        return found

    def like(self, dtype: DType | None = None) -> tuple[TensorType]:
        """The first input's shape."""
        return (TensorType(self.dtype or dtype or self[0].dtype, self[0].dims),)

    def of(self, shape: Sequence[Dim], dtype: DType | None = None) -> tuple[TensorType]:
        """A given shape."""
        return (TensorType(self.dtype or dtype or self[0].dtype, tuple(shape)),)


def root(value: Value) -> Value:
    """The value of which `value` is a view (perhaps itself)."""
    while value.producer is not None and value.producer.op in VIEWS:
        (value,) = value.producer.present
    return value


def source(node: Node, index: int = 0) -> Value:
    """An input that `node` surely has."""
    value = node.inputs[index]
    assert value is not None, f"{node.op} has an input {index}"
    return value


def steps_of(node: Node) -> Dim:
    """How many steps a RECURRENT has."""
    body: Body = node.attributes["body"]
    first = node.inputs[0] if body.sequences else None
    steps: Dim = node.attributes["steps"] if first is None else first.dims[0]
    return steps


def row_of(op: str) -> Row | None:
    """The row that `op` is, or None."""
    return BY_MNEMONIC.get(op)


def full_attributes(node: Node) -> dict[str, Any]:
    """A row node's attributes with the row's defaults, without those that only the graph has."""
    row = BY_MNEMONIC[node.op]
    given = {k: v for k, v in node.attributes.items() if k not in GRAPH_ONLY}
    return row.with_defaults(given)


def infer(
    op: str, sub: str, inputs: Types, attributes: Mapping[str, Any], dtype: DType | None = None
) -> tuple[TensorType, ...]:
    """The types of a node's outputs. Raises ModelError where the inputs do not fit each other."""
    request = Request(op, sub, inputs, attributes, dtype)
    row = row_of(op)
    if op not in _RULES:
        raise ModelError(f"there is no operator {shown(op)!r}")
    if row is not None:
        request = Request(op, sub, inputs, row.with_defaults({}) | dict(attributes), dtype)
    return _RULES[op](request)


def window_output(attributes: Mapping[str, Any], sizes: Sequence[Dim], kernel: Sequence[int] | None) -> tuple[int, ...]:
    """The number of positions along each spatial axis. Raises ModelError for symbolic sizes, or where none fits."""
    fixed = tuple(d for d in sizes if isinstance(d, int))
    if len(fixed) != len(sizes):
        raise ModelError(
            f"a convolution or pool slides over axes of symbolic size {shape_text(sizes)}",
            hint="fix these dims: --fix NAME=SIZE",
        )
    rank = len(sizes)
    window = None if kernel is None else tuple(kernel)
    positions = windows.geometry(attributes, rank, window).output(fixed)
    if positions is None:
        raise ModelError(f"a window is larger than its padded input of {shape_text(sizes)}")
    return positions


def _pointwise(request: Request) -> tuple[TensorType, ...]:
    given = [t for t in request.inputs if t is not None]
    shape = broadcast([t.dims for t in given], request.op)
    if request.op == "SELECT":
        return request.of(shape, request[1].dtype)
    if request.op == "EW":
        if request[0].dtype is not request[1].dtype:
            raise ModelError(f"EW.{request.sub} of {request[0].dtype.text} and {request[1].dtype.text}")
        compares = request.sub in ("eq", "ne", "lt", "le", "gt", "ge")
        return request.of(shape, DType.BOOL if compares else None)
    if request.sub in ("isnan", "isinf"):
        return (TensorType(DType.BOOL, shape),)
    return request.of(shape)


def _reduce(request: Request) -> tuple[TensorType, ...]:
    axes = request.attributes["axes"]
    if request.attributes["keepdims"]:
        shape = [1 if k in axes else d for k, d in enumerate(request[0].dims)]
    else:
        shape = [d for k, d in enumerate(request[0].dims) if k not in axes]
    return request.of(shape, DType.I64 if request.sub in ("argmax", "argmin") else None)


def _gemm(request: Request) -> tuple[TensorType, ...]:
    a, b = request[0], request[1]
    if a.rank < 2 or b.rank < 2 or a.dims[-1] != b.dims[-2]:
        raise ModelError(f"GEMM of {a} and {b}: the inner dims differ")
    if a.dtype is not b.dtype:
        raise ModelError(f"GEMM of {a.dtype.text} and {b.dtype.text}")
    columns = b.dims[-1]
    if request.sub == "glu":
        columns = columns // 2
    shape = (*broadcast([a.dims[:-2], b.dims[:-2]], "GEMM"), a.dims[-2], columns)
    return request.of(shape, a.dtype if a.dtype.is_float else DType.I32)


def _conv(request: Request) -> tuple[TensorType, ...]:
    x, w = request[0], request[1]
    if x.rank != w.rank or not 3 <= x.rank <= 2 + windows.MAX_SPATIAL:
        raise ModelError(f"CONV of {x} with kernels {w}: one or two spatial axes are needed")
    kernel = [d for d in w.dims[1:-1] if isinstance(d, int)]
    if len(kernel) != w.rank - 2:
        raise ModelError(f"CONV with kernels {w}: their size must be constant")
    if x.dims[-1] != w.dims[-1] * request.attributes["groups"]:
        raise ModelError(f"CONV of {x} with kernels {w} in {request.attributes['groups']} groups: channels differ")
    positions = window_output(request.attributes, x.dims[1:-1], kernel)
    return request.of((x.dims[0], *positions, w.dims[0]))


def _pool(request: Request) -> tuple[TensorType, ...]:
    x = request[0]
    if request.sub.startswith("global"):
        return request.of((x.dims[0], *(1 for _ in x.dims[1:-1]), x.dims[-1]))
    return request.of((x.dims[0], *window_output(request.attributes, x.dims[1:-1], None), x.dims[-1]))


def _attention(request: Request) -> tuple[TensorType, ...]:
    q, k, v = request[0], request[1], request[2]
    if not q.rank == k.rank == v.rank == 4 or q.dims[-1] != k.dims[-1] or k.dims[2] != v.dims[2]:
        raise ModelError(f"ATTENTION of queries {q}, keys {k} and values {v}: their shapes do not fit")
    return request.of((*q.dims[:3], v.dims[3]))


def _topk(request: Request) -> tuple[TensorType, ...]:
    shape = (*request[0].dims[:-1], request.attributes["count"])
    return (TensorType(request[0].dtype, shape), TensorType(request.dtype or DType.I64, shape))


def _gather(request: Request) -> tuple[TensorType, ...]:
    x, indices, axis = request[0], request[1], request.attributes["axis"]
    return request.of((*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]))


def _resize(request: Request) -> tuple[TensorType, ...]:
    axis = request.attributes["axis"]
    shape = list(request[0].dims)
    shape[axis] = request[1].dims[0]
    return request.of(shape)


def _pad(request: Request) -> tuple[TensorType, ...]:
    low, high = request.attributes["low"], request.attributes["high"]
    return request.of([d + low[k] + high[k] for k, d in enumerate(request[0].dims)])


def _rnn(request: Request) -> tuple[TensorType, ...]:
    if request.sub == "lstm":
        (h,) = request.of(request[1].dims)
        return h, TensorType(request[1].dtype, request[1].dims)
    return request.of(request[3].dims)


def _made(request: Request) -> tuple[TensorType, ...]:
    return (TensorType(request.dtype or DType.F32, tuple(request.attributes["shape"])),)


def _reshape(request: Request) -> tuple[TensorType, ...]:
    shape = tuple(request.attributes["shape"])
    if dims.product(shape) != request[0].elements:
        raise ModelError(f"{request[0]} cannot be reshaped to {shape_text(shape)}")
    return request.of(shape)


def _transpose(request: Request) -> tuple[TensorType, ...]:
    perm = tuple(request.attributes["perm"])
    if sorted(perm) != list(range(len(request[0].dims))):
        raise ModelError(f"perm {list(perm)} is no order of the axes of {request[0]}")
    return request.of([request[0].dims[k] for k in perm])


def _slice(request: Request) -> tuple[TensorType, ...]:
    names = ("starts", "sizes", "steps")
    for old, start, size, step in zip(request[0].dims, *(request.attributes[name] for name in names), strict=True):
        beyond = start + (size - 1) * step - old + 1
        if size != 0 and isinstance(beyond, int) and beyond > 0:
            raise ModelError(f"{request[0]} has not {size} elements from {start} on in steps of {step}")
    return request.of(request.attributes["sizes"])


def _expand(request: Request) -> tuple[TensorType, ...]:
    shape = tuple(request.attributes["shape"])
    if broadcast([request[0].dims, shape], "EXPAND") != shape:
        raise ModelError(f"{request[0]} does not broadcast to {shape_text(shape)}")
    return request.of(shape)


def _concat(request: Request) -> tuple[TensorType, ...]:
    axis = request.attributes["axis"]
    given = [request[k] for k in range(len(request.inputs))]
    rest = {(t.dtype, *t.dims[:axis], None, *t.dims[axis + 1 :]) for t in given}
    if len(rest) != 1:
        raise ModelError(f"CONCAT of {', '.join(map(str, given))} along axis {axis}: the other dims differ")
    total: Dim = 0
    for t in given:
        total = total + t.dims[axis]
    largest = max((t.dims[axis] for t in given), key=dims.bound)
    if dims.bound(largest) > dims.bound(total):  # n and 2 - n, say, where n may be 4
        raise ModelError(f"CONCAT of {', '.join(map(str, given))}: {largest} may be larger than the whole, {total}",
                         hint="lower the bounds of dims: --bound NAME=SIZE")  # fmt: skip
    return request.of((*given[0].dims[:axis], total, *given[0].dims[axis + 1 :]))


def _shard(request: Request) -> tuple[TensorType, ...]:
    """One rank's piece of a constant: an equal part of each of the segments into which `axis` falls."""
    axis, segments, ranks = (request.attributes[name] for name in ("axis", "segments", "ranks"))
    if request[0].dims[axis] != sum(segments) or any(size % ranks for size in segments):
        raise ModelError(f"{request[0]} has no equal pieces for {ranks} ranks along axis {axis}")
    return request.of([sum(segments) // ranks if k == axis else d for k, d in enumerate(request[0].dims)])


def _write(request: Request) -> tuple[TensorType, ...]:
    starts = request.attributes["starts"]
    if request[0].rank != request[1].rank or request[0].dtype is not request[1].dtype:
        raise ModelError(f"WRITE of {request[1]} into {request[0]}")
    for axis, (old, start, size) in enumerate(zip(request[0].dims, starts, request[1].dims, strict=True)):
        low, high = dims.interval(start + size - old)
        # A machine makes sure that what starts in a register does not leave its memory; all else must fit at its bound.
        beyond = low > 0 or (high > 0 and isinstance(start, int) and start + dims.bound(size) > dims.bound(old))
        before = dims.interval(start)[1] < 0
        if size != 0 and (beyond or before):
            raise ModelError(
                f"WRITE of {request[1]} into {request[0]}: along axis {axis}, "
                f"{size} from {start} on do not fit into {old}",
                hint=None if low > 0 or before else "lower the bounds of dims: --bound NAME=SIZE",
            )
    return request.like()


def _recurrent(request: Request) -> tuple[TensorType, ...]:
    """What each step gives, stacked, and then the states after the last step; see `graph.Body`.

    There are as many steps as the sequences are long, or `steps` where there are none.
    """
    body: Body = request.attributes["body"]
    given = [request[k] for k in range(len(request.inputs))]
    seen = [TensorType(t.dtype, t.dims[1:]) for t in given[: body.sequences]] + given[body.sequences :]
    made = [v.type for v in body.graph.outputs.values()]
    states = made[: body.states]
    if seen != [v.type for v in body.graph.inputs.values()] or states != seen[body.sequences :][: body.states]:
        raise ModelError(f"RECURRENT of {', '.join(map(str, given))}: its step is for other types")
    lengths = {t.dims[0] for t in given[: body.sequences]}
    if len(lengths) > 1:
        raise ModelError("RECURRENT: its sequences have different lengths")
    steps = lengths.pop() if lengths else request.attributes["steps"]
    return (*(TensorType(t.dtype, (steps, *t.dims)) for t in made[body.states :]), *states)


_RULES: dict[str, Callable[[Request], tuple[TensorType, ...]]] = {
    "COPY": Request.like,
    "ACT": _pointwise,
    "EW": _pointwise,
    "SELECT": _pointwise,
    "REDUCE": _reduce,
    "SCAN": Request.like,
    "GEMM": _gemm,
    "CONV": _conv,
    "POOL": _pool,
    "NORM": Request.like,
    "SOFTMAX": Request.like,
    "ATTENTION": _attention,
    "ROPE": Request.like,
    "TOPK": _topk,
    "GATHER": _gather,
    "SCATTER": Request.like,
    "RESIZE": _resize,
    "RNN": _rnn,
    "PAD": _pad,
    "FILL": _made,
    "IOTA": _made,
    "RESHAPE": _reshape,
    "TRANSPOSE": _transpose,
    "SLICE": _slice,
    "EXPAND": _expand,
    "CONCAT": _concat,
    "WRITE": _write,
    "SHARD": _shard,
    "ALLREDUCE": Request.like,
    "RECURRENT": _recurrent,
}
OPERATORS = tuple(_RULES)
"""Every operator that a graph may have."""
