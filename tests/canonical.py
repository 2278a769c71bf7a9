"""Shared by tests of canonicalisation: run the pass, check that outputs stay for several sizes, count what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dla.compiler import dims
from dla.compiler.builder import GraphBuilder
from dla.compiler.evaluate import evaluate
from dla.compiler.graph import Graph
from dla.compiler.operators import VIEWS
from dla.compiler.passes import canonicalise
from dla.isa.dtypes import Array

SIZES = ({"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 4, "past": 0})
BATCH, SEQ, PAST = (dims.symbol(name, 8) for name in ("batch", "seq", "past"))


def canonical(b: GraphBuilder, *, rtol: float = 2e-5, sizes: Sequence[Mapping[str, int]] = SIZES) -> Counter[str]:
    """Names of the nodes that canonicalisation leaves, without views; outputs are compared on random inputs."""
    return Counter(n.name for n in canonical_graph(b, rtol=rtol, sizes=sizes).nodes if n.op not in VIEWS)


def canonical_graph(b: GraphBuilder, *, rtol: float = 2e-5, sizes: Sequence[Mapping[str, int]] = SIZES) -> Graph:
    """The canonical graph of what was built, after the same comparison."""
    given = [_inputs(b.graph, s) for s in (sizes if b.graph.symbols else sizes[:1])]
    before = [evaluate(b.graph, inputs) for inputs in given]
    graph = canonicalise.run(b.graph)
    for inputs, wanted in zip(given, before, strict=True):
        for name, value in evaluate(graph, inputs).items():
            assert value.dtype == wanted[name].dtype
            np.testing.assert_allclose(value.astype(float), wanted[name].astype(float), rtol=rtol, atol=rtol)
    return graph


def _inputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    found: dict[str, Array] = {}
    for name, value in graph.inputs.items():
        shape = [dims.evaluate(d, sizes) for d in value.dims]
        if value.dtype.is_float:
            found[name] = rng.standard_normal(shape).astype(value.dtype.numpy)
        else:
            found[name] = rng.integers(0, 2, shape).astype(value.dtype.numpy)
    return found
