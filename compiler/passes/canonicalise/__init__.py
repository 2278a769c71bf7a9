"""Canonicalisation: exporters' many spellings of one operation become one node each.

Each file holds the rules of one family; `passes.rewrite` applies them until none fits.
"""

from __future__ import annotations

from dla.compiler.graph import Graph
from dla.compiler.passes.canonicalise import (
    activations,
    arithmetic,
    attention,
    indices,
    masks,
    norms,
    products,
    rotary,
    softmax,
    views,
)
from dla.compiler.passes.canonicalise.share import share
from dla.compiler.passes.rewrite import Rule, rewrite

FAMILIES = (views, arithmetic, indices, activations, softmax, norms, rotary, attention, products, masks)
"""In the order in which their rules are tried on a node."""

RULES: dict[str, list[Rule]] = {
    op: [rule for family in FAMILIES for rule in family.RULES.get(op, ())]
    for op in dict.fromkeys(op for family in FAMILIES for op in family.RULES)
}


def run(graph: Graph) -> Graph:
    """`graph` in canonical form."""
    return share(rewrite(share(graph), RULES))
