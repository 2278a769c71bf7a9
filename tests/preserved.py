"""Shared by tests of passes: a pass may change how a graph computes, never what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Graph
from dla.isa.dtypes import Array


def preserved(b: GraphBuilder, run: Callable[[Graph], Graph], *, rtol: float = 1e-5, **inputs: Array) -> Counter[str]:
    """Run a pass over what was built, check that outputs stay, and count the nodes that are left by name."""
    before = evaluate(b.graph, inputs)
    types = {name: value.type for name, value in b.graph.outputs.items()}
    graph = run(b.graph)
    assert {name: value.type for name, value in graph.outputs.items()} == types
    for name, value in evaluate(graph, inputs).items():
        np.testing.assert_allclose(value.astype(float), before[name].astype(float), rtol=rtol, atol=rtol)
    return Counter(n.name for n in graph.nodes)


def normal(*shape: int, seed: int = 0) -> Array:
    """Numbers from a normal distribution, f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
