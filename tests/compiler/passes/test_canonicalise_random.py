"""Random graphs keep what they compute, whatever rules meet in them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from canonical import BATCH, SEQ, canonical_graph

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Value
from dla.compiler.shapes import broadcast
from dla.isa.dtypes import DType
from dla.isa.errors import ModelError

GRAPHS, NODES = 40, 25
BOOL, F32, I64 = DType.BOOL, DType.F32, DType.I64
NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 6.0)
UNARY = ("neg", "identity", "sigmoid", "tanh", "erf", "softplus", "relu", "abs")
BINARY = ("add", "sub", "mul", "min", "max")


class Drawer:
    """Appends random nodes to a graph; values of three types, each with a few shapes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = GraphBuilder()
        shapes = [(BATCH, SEQ, 4), (BATCH, 1, 4), (4,), (BATCH, 2, SEQ, 4), (1,)]
        self.values = [self.b.input(f"x{k}", F32, s) for k, s in enumerate(shapes)]
        self.values += [self.b.input("i", I64, (BATCH, SEQ, 1)), self.b.iota((SEQ, 1), I64), self.b.iota((SEQ,), I64)]
        self.values += [self.b.input("m", BOOL, (BATCH, 1, SEQ, 1))]

    def pick(self, *types: DType) -> Value:
        """One of the latest values of the given types."""
        found = [v for v in self.values if v.dtype in types]
        return self.rng.choice(found[-8:])

    def grow(self) -> None:
        """One more node, or a few that belong together; what does not fit is left."""
        step = self.rng.choice([
            self.unary, self.binary, self.binary, self.with_number, self.with_number, self.compare, self.choose,
            self.transpose, self.reshape, self.part, self.join, self.expand, self.cast, self.reduce, self.product,
            self.standardise,
        ])  # fmt: skip
        try:
            made = step()
        except ModelError:
            return
        if made.rank <= 5 and made.constant is None:
            self.values.append(made)

    def unary(self) -> Value:
        """A function of floats."""
        return self.b.act(self.rng.choice(UNARY), self.pick(F32))

    def binary(self) -> Value:
        """Two values of a type."""
        dtype = self.rng.choice([F32, F32, I64, BOOL])
        kind = self.rng.choice(("and", "or", "xor") if dtype is BOOL else BINARY)
        return self.b.ew(kind, self.pick(dtype), self.pick(dtype))

    def with_number(self) -> Value:
        """A value and a number, on either side."""
        x, number = self.pick(F32, I64), self.rng.choice(NUMBERS)
        if self.rng.random() < 0.2:
            return self.b.ew("pow", self.b.act("abs", self.pick(F32)), number)
        operands = (x, number) if self.rng.random() < 0.7 else (number, x)
        return self.b.ew(self.rng.choice(BINARY), *operands)

    def compare(self) -> Value:
        """A comparison, perhaps negated."""
        dtype = self.rng.choice([F32, I64])
        kind = self.rng.choice(("eq", "lt", "le", "gt", "ge"))
        found = self.b.ew(kind, self.pick(dtype), self.pick(dtype))
        return self.b.act("not", found) if self.rng.random() < 0.4 else found

    def choose(self) -> Value:
        """SELECT."""
        other = self.rng.choice([self.pick(F32), self.rng.choice(NUMBERS)])
        return self.b.select(self.pick(BOOL), self.pick(F32), other)

    def transpose(self) -> Value:
        """Axes in another order."""
        x = self.pick(F32, BOOL, I64)
        return self.b.transpose(x, self.rng.sample(range(x.rank), x.rank))

    def reshape(self) -> Value:
        """Two axes merged, the last one split, or an axis of size 1 put in."""
        x, kind = self.pick(F32, BOOL), self.rng.randrange(3)
        if kind == 0 and x.rank > 1:
            k = self.rng.randrange(x.rank - 1)
            return self.b.reshape(x, (*x.dims[:k], x.dims[k] * x.dims[k + 1], *x.dims[k + 2 :]))
        if kind == 1 and x.rank and x.dims[-1] == 4:
            return self.b.reshape(x, (*x.dims[:-1], 2, 2))
        return self.b.unsqueeze(x, self.rng.randrange(x.rank + 1))

    def part(self) -> Value:
        """A slice, perhaps with steps."""
        x = self.pick(F32)
        axes = [k for k, d in enumerate(x.dims) if isinstance(d, int) and d > 1]
        if not axes:
            return x
        axis = self.rng.choice(axes)
        size = int(str(x.dims[axis]))
        start, step = self.rng.randrange(size), self.rng.choice((1, 1, 2))
        return self.b.slice(x, {axis: start}, {axis: (size - start + step - 1) // step}, {axis: step})

    def join(self) -> Value:
        """Two values of the same shape, or a value's parts."""
        x = self.pick(F32)
        if self.rng.random() < 0.5 and x.rank and x.dims[-1] == 4:
            return self.b.concat([self.b.part(x, -1, 0, 1), self.b.part(x, -1, 1, 3)], -1)
        return self.b.concat([x, self.b.act("neg", x)], x.rank - 1)

    def expand(self) -> Value:
        """A value broadcast with another."""
        x = self.pick(F32, BOOL, I64)
        return self.b.expand(x, broadcast([x.dims, self.pick(F32).dims]))

    def cast(self) -> Value:
        """Another type and perhaps back."""
        x = self.pick(BOOL, F32)
        wide = self.b.cast(x, F32 if x.dtype is BOOL else self.rng.choice([BOOL, F32]))
        return self.b.cast(wide, x.dtype) if self.rng.random() < 0.5 else wide

    def reduce(self) -> Value:
        """A mean or a maximum along the last axis."""
        kind = self.rng.choice(("mean", "max", "sum"))
        return self.b.reduce(kind, self.pick(F32), [-1], keepdims=True)

    def product(self) -> Value:
        """A scaled product with a constant, or with a transposed value."""
        x = self.pick(F32)
        w = self.b.constant(np.random.default_rng(1).standard_normal((4, 4)) / 4, F32)
        other = w if self.rng.random() < 0.6 else self.b.swap(x)
        return self.b.mul(self.b.matmul(x, other), self.rng.choice((0.125, 1.0)))

    def standardise(self) -> Value:
        """Take x - mean(x), divided by its spread or not; or a softmax."""
        x = self.pick(F32)
        d = self.b.sub(x, self.b.reduce("mean", x, [-1], keepdims=True))
        if self.rng.random() < 0.3:
            return self.b.softmax(d)
        square = self.b.reduce("mean", self.b.mul(d, d), [-1], keepdims=True)
        return self.b.div(d, self.b.act("sqrt", self.b.add(square, self.rng.choice((1.0, 0.5)))))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # powers overflow
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_graphs_keep_their_values(seed: int) -> None:
    """Some of the latest values are outputs."""
    drawer = Drawer(seed)
    for _ in range(NODES):
        drawer.grow()
    for k, value in enumerate(drawer.values[-3:]):
        drawer.b.output(f"y{k}", value)
    canonical_graph(drawer.b, rtol=1e-3)
