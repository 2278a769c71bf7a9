"""A graph that is computed while it grows, so that each next operation fits its values.

Comparisons and indices take only what is exact, and nothing is used on that became large or is no number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.evaluate import node_results
from dla.compiler.graph import Value
from dla.isa.dtypes import Array, DType
from dla.isa.errors import ModelError, Trap

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
LARGEST = 3e3  # elements; a run of one case takes milliseconds
_WIDEST = 1e3  # magnitude of what is used on
_MOVES = ("RESHAPE", "TRANSPOSE", "SLICE", "EXPAND", "CONCAT", "WRITE", "COPY", "GATHER", "PAD", "FILL", "IOTA")


@dataclass
class Growing:
    """A graph in the making, with what its values are for one set of inputs."""

    rng: random.Random
    b: GraphBuilder = field(default_factory=lambda: GraphBuilder("random"))
    sizes: dict[str, int] = field(default_factory=dict)
    known: dict[int, Array] = field(default_factory=dict)
    exact: set[int] = field(default_factory=set)  # ids of values that no rounding can change
    values: list[Value] = field(default_factory=list)
    evaluated: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.randrange(2**32))

    # -- choosing

    def chance(self, probability: float = 0.5) -> bool:
        """Whether something happens."""
        return self.rng.random() < probability

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value that `fits`, mostly a late one. Raises LookupError."""
        found = [v for v in self.values if fits(v)]
        if not found:
            raise LookupError
        return found[-1 - int(len(found) * self.rng.random() ** 2)]

    def floats(self, rank: int | None = None, least: int = 0) -> Value:
        """A value of floats, of some rank."""
        return self.pick(lambda v: v.dtype is F32 and v.rank >= least and rank in (None, v.rank))

    def axis(self, x: Value) -> int:
        """An axis of x."""
        return self.rng.randrange(x.rank)

    def dim(self) -> Dim:
        """A size."""
        named = [dims.symbol(name, bound) for name, bound in (("n", 5), ("m", 4))]
        return self.rng.choice([*named, *range(1, 7), 2, 3, 4]) if self.chance(0.97) else 0

    def array(self, shape: Sequence[Dim], dtype: DType) -> Array:
        """Few different numbers, which sums and products of a few keep exact."""
        size = [dims.evaluate(d, self.sizes) for d in shape]
        drawn = self.numbers.integers(-8, 9, size)
        if dtype is F32:
            return (drawn / 4).astype(np.float32)
        return (drawn % 2 if dtype is BOOL else drawn).astype(dtype.numpy)

    def constant(self, shape: Sequence[int], dtype: DType = F32) -> Value:
        """A constant with random elements."""
        return self.add(self.b.constant(self.array(shape, dtype)))

    # -- growing

    def add(self, value: Value) -> Value:
        """Compute what is new, and use `value` from now on."""
        for node in self.b.graph.nodes[self.evaluated :]:
            results = node_results(node, [None if v is None else self.of(v) for v in node.inputs], self.sizes)
            for made, array in zip(node.outputs, results, strict=True):
                self.known[id(made)] = array
            if _is_exact(node.op, node.sub) and all(self.is_exact(v) for v in node.present):
                self.exact |= {id(v) for v in node.outputs}
        self.evaluated = len(self.b.graph.nodes)
        array = self.of(value)
        fine = bool(np.all(np.abs(array.astype(float)) <= _WIDEST))  # not of NaN
        if fine and array.size <= LARGEST and value.rank <= 6:
            self.values.append(value)
        return value

    def of(self, value: Value) -> Array:
        """What `value` is."""
        return self.known[id(value)] if value.constant is None else value.constant

    def is_exact(self, value: Value) -> bool:
        """Whether every way to compute it gives the same bits."""
        return value.dtype is not F32 or value.constant is not None or id(value) in self.exact

    def step(self, operations: Sequence[Callable[[Growing], None]]) -> None:
        """One of `operations` more, if it fits."""
        before = len(self.b.graph.nodes)
        try:
            self.rng.choice(operations)(self)
        except (LookupError, ModelError, Trap):
            # What was made of it before it failed is not used; its values are not known.
            for node in self.b.graph.nodes[before:]:
                for value in node.present:
                    value.users.remove(node)
            del self.b.graph.nodes[before:]
            self.evaluated = min(self.evaluated, before)
            self.values = [v for v in self.values if v.producer is None or v.producer in self.b.graph.nodes]


def _is_exact(op: str, sub: str) -> bool:
    simple = {"ACT": ("neg", "abs", "relu"), "EW": ("add", "sub", "min", "max", "eq", "lt", "ge"), "SCATTER": ("set",),
              "REDUCE": ("max", "min"), "TOPK": ("",), "SELECT": ("",)}  # fmt: skip
    return op in _MOVES or sub in simple.get(op, ())
