"""Random graphs that lowering and passes must keep the meaning of: odd views, shared values, states, symbolic sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from growing_graphs import F32, I64, Growing
from random_operations import OPERATIONS

from dla.compiler import dims
from dla.compiler.graph import Graph, Value
from dla.isa.dtypes import Array


@dataclass
class Case:
    """A graph with inputs and the results that they must lead to; states after the run are called `state NAME`."""

    graph: Graph
    inputs: dict[str, Array]
    states: dict[str, Array]
    expected: dict[str, Array]


def random_case(seed: int) -> Case:
    """The case of `seed`: the same one every time, in a new graph."""
    g = Growing(random.Random(seed))
    g.sizes = {"n": g.rng.randint(1, 5), "m": g.rng.randint(1, 4)}
    if g.chance(0.03):
        g.sizes["n"] = 0
    held = {}
    for name in ("a", "b", "c", "d")[: g.rng.randint(1, 4)]:
        shape = [g.dim() for _ in range(g.rng.choice([1, 2, 2, 3, 3, 4, 4]))]
        dtype = g.rng.choice([F32, F32, F32, I64])
        is_state = g.chance(0.3) and all(isinstance(d, int) for d in shape)
        value = (g.b.state if is_state else g.b.input)(name, dtype, shape)
        held[name] = g.known[id(value)] = g.array(shape, dtype)
        g.exact.add(id(value))
        g.add(value)
    for name, bound in (("n", 5), ("m", 4)):  # every symbol gets its size from some input
        value = g.b.input(f"{name}_axis", F32, (dims.symbol(name, bound), 2))
        held[f"{name}_axis"] = g.known[id(value)] = g.array(value.dims, F32)
        g.exact.add(id(value))
        g.add(value)
    for _ in range(g.rng.randint(1, 16)):
        g.step(OPERATIONS)
    return _finished(g, held)


def _finished(g: Growing, held: dict[str, Array]) -> Case:
    expected: dict[str, Array] = {}
    used: list[Value] = []
    for k in range(g.rng.randint(1, 4)):
        value = g.rng.choice(used) if used and g.chance(0.15) else g.pick()
        used.append(value)
        g.b.output(f"y{k}", value)
        expected[f"y{k}"] = g.of(value)
    for name, state in g.b.graph.states.items():
        fits = [v for v in g.values if v.type == state.before.type]
        if g.chance(0.8):
            g.b.set_state(name, fits[-1 - int(len(fits) * g.rng.random() ** 2)])
        expected[f"state {name}"] = g.of(g.b.graph.states[name].after)
    states = {name: held[name] for name in g.b.graph.states}
    return Case(g.b.graph, {n: x for n, x in held.items() if n not in states}, states, expected)


def tolerance(expected: Array) -> float:
    """How far from `expected` a result may be: a few roundings of its largest element, carried on by what follows."""
    return 3e-4 * max(1.0, float(np.max(np.abs(expected), initial=0.0))) if expected.dtype.kind == "f" else 0.0


def is_near(expected: Array, found: Array) -> bool:
    """Whether `found` is what was expected, of the same shape and type."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    limit = tolerance(expected)
    return bool(np.allclose(found.astype(float), expected.astype(float), rtol=0, atol=limit, equal_nan=True))
