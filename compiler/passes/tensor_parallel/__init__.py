"""Tensor parallelism: the weights of a Transformer's layers are cut into pieces, one for each rank.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019). The
first product of a block is cut by columns, that of queries, keys and values by heads; everything up to the block's
last product then works on parts. The last one is cut by rows: each rank has a sum over its rows, and one ALLREDUCE adds
them up. Biases and residuals of that product are added once, after it. Caches of keys and values are cut by heads, too.

Nothing here knows what a layer looks like: `plan` follows each product's columns through whatever comes after it.
"""

from __future__ import annotations

from dla.compiler.graph import Graph
from dla.compiler.passes.tensor_parallel.cut import carried_out
from dla.compiler.passes.tensor_parallel.plan import plan
from dla.isa.errors import ModelError


def run(graph: Graph, ranks: int = 1) -> Graph:
    """`graph` for each of `ranks` ranks; as it is for one. Raises ModelError where nothing can be cut."""
    if ranks == 1:
        return graph
    graph.sweep()
    found = plan(graph, ranks)
    if not found.added:
        reasons = "\n  ".join(f"{name}: {reason}" for name, reason in found.whole[:8])
        raise ModelError(
            f"nothing of the model can be cut for {ranks} ranks" + (f":\n  {reasons}" if reasons else ""),
            hint="two products with constant weights, one after the other, can, if their sizes divide by the ranks",
        )
    new = carried_out(graph, found)
    new.sweep()
    return new
