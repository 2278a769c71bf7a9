"""Random instructions that fit their rows: shapes, types and attributes. `random_programs` makes programs of them.

Everything is drawn from the table: patterns give shapes, type variables give types, attributes know their ranges.
Where a constraint ties sizes together (a convolution's output), RECIPES work the sizes out; whatever else a
constraint refuses is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dla.isa import shapes, typing, windows
from dla.isa.activations import ACTIVATIONS, QUESTIONS
from dla.isa.attributes import F32, Attribute, Axes, Axis, Enum, Flag, Int, Target
from dla.isa.descriptor import MAX_RANK, Dim, Dynamic, Segment, bound_of, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import rnn
from dla.isa.program import Instruction
from dla.isa.registers import BY_NAME, Register
from dla.isa.scalar_attributes import Reg, ScalarValue
from dla.isa.table import Operand, Row

MAX_TRIES = 2000
Shape = tuple[Dim, ...]


@dataclass
class Pieces:
    """One instruction without its memory: what shapes, types and attributes it has."""

    row: Row
    sub: str
    shapes: dict[str, Shape]  # by operand; absent operands are missing
    dtypes: dict[str, DType]
    attributes: dict[str, Any]

    def operands(self) -> list[Operand]:
        """The operands that are there, in order."""
        return [o for o in self.row.operands if o.name in self.shapes]

    def instruction(self, place: Callable[[Operand, Shape, DType], Any]) -> Instruction:
        """The instruction, with the descriptor that `place(operand, shape, dtype)` gives each operand."""
        given = {o.name: place(o, self.shapes[o.name], self.dtypes[o.name]) for o in self.operands()}
        defaults = {n: a.default for n, a in self.row.all_attributes.items()}
        canonical = {n: self.row.all_attributes[n].canonical(v) for n, v in self.attributes.items()}
        attributes = {n: v for n, v in canonical.items() if v != defaults[n]}
        return Instruction(self.row, self.sub, tuple(given.get(o.name) for o in self.row.operands), attributes)


@dataclass
class Sizes:
    """What the names in a row's patterns stand for, and the attributes that depend on them."""

    dims: dict[str, Dim] = field(default_factory=dict)
    prefixes: dict[str, Shape] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


class Drawer:
    """Draws numbers, sizes and values from a `random.Random`."""

    def __init__(
        self, rng: random.Random, *, largest: int = 6, zero: float = 0.03, dynamic: tuple[Dim, ...] = (), ranks: int = 1
    ) -> None:
        """`largest` size of a dim; `zero` chance that it is 0; `dynamic` dims that may be drawn too; `ranks`."""
        self.rng = rng
        self.largest = largest
        self.zero = zero
        self.dynamic = dynamic
        self.ranks = ranks

    def size(self, low: int = 0) -> int:
        """A constant size: mostly small, sometimes 0 or 1."""
        if low == 0 and self.rng.random() < self.zero:
            return 0
        return self.rng.randint(max(low, 1), self.largest)

    def dim(self) -> Dim:
        """A size, constant or dynamic."""
        if self.dynamic and self.rng.random() < 0.2:
            return self.rng.choice(self.dynamic)
        return self.size()

    def shape(self, rank: int) -> Shape:
        """`rank` dims."""
        return tuple(self.dim() for _ in range(rank))

    def chance(self, probability: float = 0.5) -> bool:
        """Whether something happens."""
        return self.rng.random() < probability

    def number(self) -> float:
        """An f32 that has few digits, or many."""
        value = self.rng.choice([self.rng.uniform(-2, 2), self.rng.randint(-3, 3), 10.0 ** self.rng.randint(-6, 6)])
        return float(np.float32(value))


def _window(draw: Drawer, sizes: list[int], kernel: list[int]) -> tuple[dict[str, Any], list[int]] | None:
    """Strides, dilations and pads for windows `kernel` over `sizes`, and the number of positions; None if none fits."""
    rng, rank = draw.rng, len(sizes)
    rest = [1] * (2 - rank)
    strides = [rng.choice([1, 1, 2, 3]) for _ in sizes]
    dilations = [rng.choice([1, 1, 2]) for _ in sizes]
    low, high = ([rng.choice([0, 0, 1, 2]) for _ in sizes] for _ in range(2))
    zeros = [0] * (2 - rank)
    attributes = {
        "strides": tuple(rest + strides), "dilations": tuple(rest + dilations),
        "pads": tuple(zeros + low + zeros + high), "window": tuple(rest + kernel),
    }  # fmt: skip
    positions = windows.geometry(attributes, rank).output(tuple(sizes))
    return None if positions is None else (attributes, list(positions))


def _conv(draw: Drawer, sub: str) -> Sizes | None:
    groups, rank = draw.rng.choice([1, 1, 2, 3]), draw.rng.choice([1, 2])
    kernel, sizes = [draw.size(1) for _ in range(rank)], [draw.size(1) + 2 for _ in range(rank)]
    window = _window(draw, sizes, [min(k, 3) for k in kernel])
    if window is None:
        return None
    attributes, positions = window
    if draw.chance(0.3):
        attributes["gaps"] = tuple([0] * (2 - rank) + [draw.rng.choice([0, 1, 2]) for _ in sizes])
        positions = list(windows.geometry(attributes, rank).output(tuple(sizes)) or ())
    taps = attributes.pop("window")[2 - rank :]
    inputs, outputs = draw.size(1), draw.size(1) * groups
    dims: dict[str, Dim] = {"N": draw.dim(), "C": inputs * groups, "G": inputs, "O": outputs}
    prefixes = {"P": tuple(positions), "S": tuple(sizes), "K": tuple(taps)}
    return Sizes(dims, prefixes, attributes | {"groups": groups})


def _pool(draw: Drawer, sub: str) -> Sizes | None:
    rank = draw.rng.choice([1, 2])
    sizes = [draw.size(1) + 1 for _ in range(rank)]
    dims: dict[str, Dim] = {"N": draw.dim(), "C": draw.dim()}
    if sub.startswith("global"):
        return Sizes(dims, {"S": tuple(sizes), "P": (1,) * rank})
    window = _window(draw, sizes, [min(draw.size(1), 3) for _ in range(rank)])
    if window is None:
        return None
    attributes, positions = window
    return Sizes(dims, {"S": tuple(sizes), "P": tuple(positions)}, attributes)


def _reduce(draw: Drawer, sub: str) -> Sizes:
    x = draw.shape(draw.rng.randint(1, 4))
    count = 1 if sub.startswith("arg") else draw.rng.randint(1, len(x))
    axes = tuple(sorted(draw.rng.sample(range(len(x)), count)))
    keep = draw.chance()
    out = tuple(1 if k in axes else d for k, d in enumerate(x) if keep or k not in axes)
    return Sizes({}, {"X": x, "O": out}, {"axes": axes, "keepdims": keep})


def _pad(draw: Drawer, sub: str) -> Sizes:
    x = [draw.size() for _ in range(draw.rng.randint(1, 3))]
    largest = [2 if sub == "constant" else max(0, min(2, n - (sub == "reflect"))) for n in x]
    low, high = ([draw.rng.randint(0, m) for m in largest] for _ in range(2))
    out = tuple(n + a + b for n, a, b in zip(x, low, high, strict=True))
    rest = [0] * (MAX_RANK - len(x))
    attributes = {"low": tuple(low + rest), "high": tuple(high + rest)}
    if sub == "constant":
        attributes["value"] = draw.rng.randint(-3, 3)
    return Sizes({}, {"X": tuple(x), "O": out}, attributes)


def _gather(draw: Drawer, sub: str) -> Sizes:
    x, indices = draw.shape(draw.rng.randint(1, 3)), draw.shape(draw.rng.randint(0, 2))
    axis = draw.rng.randrange(len(x))
    x = (*x[:axis], draw.size(1), *x[axis + 1 :])
    return Sizes({}, {"X": x, "I": indices, "O": x[:axis] + indices + x[axis + 1 :]}, {"axis": axis})


def _scatter(draw: Drawer, sub: str) -> Sizes:
    x = draw.shape(draw.rng.randint(1, 3))
    axis = draw.rng.randrange(len(x))
    part = tuple(d if isinstance(d, Dynamic) or draw.chance() else draw.rng.randint(0, d) for d in x)
    return Sizes({}, {"X": x, "I": (*part[:axis], draw.dim(), *part[axis + 1 :])}, {"axis": axis})


def _resize(draw: Drawer, sub: str) -> Sizes:
    x, positions = draw.shape(draw.rng.randint(1, 3)), draw.dim()
    axis = draw.rng.randrange(len(x))
    return Sizes({"P": positions}, {"X": x, "O": (*x[:axis], positions, *x[axis + 1 :])}, {"axis": axis})


def _norm(draw: Drawer, sub: str) -> Sizes:
    groups = draw.rng.choice([1, 2]) if sub == "group" else 0
    prefix = draw.shape(draw.rng.randint(1, 2))
    return Sizes({"C": draw.size(1) * max(1, groups)}, {"B": prefix}, {"groups": groups, "eps": 1e-3})


def _topk(draw: Drawer, sub: str) -> Sizes:
    n = draw.size(1)
    return Sizes({"N": n, "K": draw.rng.randint(1, n)}, {"B": draw.shape(draw.rng.randint(0, 2))})


def _rope(draw: Drawer, sub: str) -> Sizes:
    half = draw.size(1)
    return Sizes({"R": half, "D": 2 * half + draw.rng.choice([0, 0, 1]), "S": draw.dim()}, {"B": draw.shape(1)})


def _gemm(draw: Drawer, sub: str) -> Sizes:
    columns = draw.size() if sub == "glu" else draw.dim()
    wide = 2 * bound_of(columns) if sub == "glu" else columns
    return Sizes({"N": columns, "N2": wide}, {}, {} if sub == "glu" else {"unit": None})


def _rnn(draw: Drawer, sub: str) -> Sizes:
    width = draw.size()
    return Sizes({"H": width, "G": rnn.GATES[sub] * width})


def _attention(draw: Drawer, sub: str) -> Sizes:
    heads = draw.size(1)
    return Sizes({"HK": heads, "H": heads * draw.rng.choice([1, 1, 2, 3])})


def _parts(draw: Drawer, sub: str) -> Sizes:
    return Sizes({"R": draw.ranks})


def _broadcast(draw: Drawer, sub: str) -> Sizes:
    return Sizes(attributes={"root": draw.rng.randrange(draw.ranks)})


def _permute(draw: Drawer, sub: str) -> Sizes:
    return Sizes(attributes={"pairs": 1})


def _loads(draw: Drawer, sub: str) -> Sizes:
    return Sizes({}, {"B": (1,) * draw.rng.randint(0, 2)})


RECIPES: dict[str, Callable[[Drawer, str], Sizes | None]] = {
    "GEMM": _gemm, "CONV": _conv, "POOL": _pool, "REDUCE": _reduce, "PAD": _pad, "GATHER": _gather,
    "SCATTER": _scatter, "RESIZE": _resize, "NORM": _norm, "TOPK": _topk,
    "ROPE": _rope, "RNN": _rnn, "ATTENTION": _attention, "LOADS": _loads,
    "ALLGATHER": _parts, "REDUCESCATTER": _parts, "ALLTOALL": _parts, "BROADCAST": _broadcast,
    "PERMUTE": _permute,
}  # fmt: skip
"""Rows whose constraints tie sizes (or sizes and attributes) together."""


def random_pieces(row: Row, draw: Drawer, *, sub: str | None = None, dtype: DType | None = None) -> Pieces:
    """A random instruction of `row` that `isa.typing` accepts, sub-operation and type of the first type variable given.

    Raises LookupError if none is found: the row has constraints that this module does not know.
    """
    for _ in range(MAX_TRIES):
        name = sub if sub is not None else draw.rng.choice(row.subs).name if row.subs else ""
        sizes = RECIPES[row.mnemonic](draw, name) if row.mnemonic in RECIPES else Sizes()
        if sizes is None:
            continue
        pieces = _draw_pieces(row, draw, name, sizes, dtype)
        if pieces is not None and not typing.check(pieces.instruction(_anywhere)):
            return pieces
    raise LookupError(f"no valid {row.mnemonic} found: give it a recipe in tests/generators.py")


def _anywhere(operand: Operand, shape: Shape, dtype: DType) -> Any:
    return contiguous(Segment.SCRATCH, dtype, shape)


def _draw_pieces(row: Row, draw: Drawer, sub: str, sizes: Sizes, dtype: DType | None) -> Pieces | None:
    rng = draw.rng
    steps = _steps(row, draw)
    present = [o for o in row.operands if _is_present(o, sub, steps, draw)]
    types = {name: rng.choice(allowed) for name, allowed in row.types.items()}
    if dtype is not None and row.types:
        types = {n: dtype if dtype in allowed and draw.chance(0.8) else types[n] for n, allowed in row.types.items()}
        if dtype not in types.values():
            return None
    given = {o.name: types[o.dtypes] if isinstance(o.dtypes, str) else rng.choice(o.dtypes) for o in present}
    found: dict[str, Shape] = {}
    for operand in present:
        found[operand.name] = _shape(shapes.parse(operand.shape), sizes, draw, row)
        if len(found[operand.name]) > MAX_RANK:
            return None
    attributes = _attributes(row, draw, found) | sizes.attributes
    if any(
        a.required and n not in attributes and not isinstance(a, Reg | Target) for n, a in row.all_attributes.items()
    ):
        return None  # an axis of a tensor without axes
    if "steps" in row.all_attributes:
        attributes |= _epilogue(draw, steps)
    if "window" in row.all_attributes and "window" not in sizes.attributes:
        attributes.pop("window", None)
    return Pieces(row, sub, found, given, {n: v for n, v in attributes.items() if v is not None})


def _is_present(operand: Operand, sub: str, steps: tuple[str, ...], draw: Drawer) -> bool:
    if operand.step is not None:
        return operand.step in steps
    if operand.subs and sub not in operand.subs:
        return False
    return not operand.optional or draw.chance()


def _steps(row: Row, draw: Drawer) -> tuple[str, ...]:
    if "steps" not in row.all_attributes or draw.chance(0.4):
        return ()
    return tuple(draw.rng.sample(["bias", "act", "residual", "gate", "clamp"], draw.rng.randint(1, 4)))


def _epilogue(draw: Drawer, steps: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {"steps": steps, "act": "identity", "act_alpha": None, "clamp_low": 0.0, "clamp_high": 0.0}
    if "act" in steps:
        values["act"] = draw.rng.choice([a for a in ACTIVATIONS if a not in ("identity", "not", *QUESTIONS)])
        values["act_alpha"] = draw.number() if ACTIVATIONS[values["act"]].alpha and draw.chance() else None
    if "clamp" in steps:
        values["clamp_low"], values["clamp_high"] = sorted((draw.number(), draw.number()))
    return values


def _shape(pattern: shapes.ShapePattern, sizes: Sizes, draw: Drawer, row: Row) -> Shape:
    """A shape for `pattern`; names that are not bound yet are."""
    for name in pattern.fixed:
        if isinstance(name, str):
            sizes.dims.setdefault(name, draw.size() if name in row.static else draw.dim())
    if pattern.prefix is not None and pattern.prefix not in sizes.prefixes:
        rank = draw.rng.randint(0, 2)
        constant = pattern.prefix in row.static
        sizes.prefixes[pattern.prefix] = tuple(draw.size() for _ in range(rank)) if constant else draw.shape(rank)
    fixed: list[Dim] = [f if isinstance(f, int) else sizes.dims[f] for f in pattern.fixed]
    prefix = sizes.prefixes[pattern.prefix] if pattern.prefix is not None else ()
    if pattern.prefix_broadcasts:
        prefix = _broadcastable(prefix, draw)
    shape = (*fixed[: pattern.before], *prefix, *fixed[pattern.before :])
    return _broadcastable(shape, draw) if pattern.broadcasts else shape


def _broadcastable(shape: Shape, draw: Drawer) -> Shape:
    """A shape that broadcasts to `shape`: some leading dims gone, some others 1."""
    if draw.chance():
        return shape
    kept = shape[draw.rng.randint(0, len(shape)) :]
    return tuple(1 if draw.chance(0.3) else d for d in kept)


def _attributes(row: Row, draw: Drawer, found: dict[str, Shape]) -> dict[str, Any]:
    values = {}
    for name, attribute in row.all_attributes.items():
        if attribute.implicit or (not attribute.required and draw.chance(0.6)):
            continue
        value = _value(attribute, draw, found)
        if value is not None:
            values[name] = value
    return values


def _value(attribute: Attribute, draw: Drawer, found: dict[str, Shape]) -> Any:
    """A random value for `attribute`; None to leave it at its default."""
    if isinstance(attribute, Axis | Axes):
        rank = len(found[attribute.of])
        if isinstance(attribute, Axis):
            return draw.rng.randrange(rank) if rank else None
        return tuple(sorted(draw.rng.sample(range(rank), draw.rng.randint(0, rank))))
    if isinstance(attribute, Flag):
        return draw.chance()
    if isinstance(attribute, F32):
        return abs(draw.number())
    if isinstance(attribute, Int):
        return draw.rng.randint(attribute.low, min(attribute.high, attribute.low + 5))
    if isinstance(attribute, Enum):
        return draw.rng.choice(list(attribute.choices))
    if isinstance(attribute, Reg):
        return draw.rng.choice(registers(attribute.classes))
    if isinstance(attribute, ScalarValue):
        return _scalar(attribute, draw)
    return None


def _scalar(attribute: ScalarValue, draw: Drawer) -> int | float | Register:
    if draw.chance(0.5):
        return draw.rng.choice([draw.rng.randint(-3, 3), draw.rng.randint(-(2**63), 2**63 - 1)])
    if "f" in attribute.classes and draw.chance():
        return draw.rng.choice([draw.rng.uniform(-4, 4), 1e300, 2.0, -0.5])
    return draw.rng.choice(registers(attribute.classes))


def registers(classes: str) -> list[Register]:
    """The registers of the given classes that random instructions read and write: others steer loops and addresses."""
    names = {"s": [f"s{i}" for i in range(8, 16)], "f": [f"f{i}" for i in range(8)], "p": [f"p{i}" for i in range(4)]}
    return [BY_NAME[name] for prefix in classes for name in names[prefix]]


def sized(shape: Shape) -> tuple[int, ...]:
    """A shape at its bounds."""
    return tuple(bound_of(d) for d in shape)
