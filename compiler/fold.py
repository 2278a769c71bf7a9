"""Computing nodes whose inputs are all constant."""

from __future__ import annotations

from dla.compiler.dims import Expr
from dla.compiler.evaluate import node_results
from dla.compiler.graph import Node
from dla.isa.errors import Trap

SMALL = 4096
"""Elements: results up to this size are computed as soon as a node is made, so that shapes may depend on them."""


def fold_small(node: Node) -> bool:
    """Make the outputs of `node` constants if they follow from constants and are small. Returns whether it did."""
    read = sum(v.constant.size for v in node.present if v.constant is not None)
    made = [v.type.elements for v in node.outputs]
    small = read <= SMALL and all(isinstance(n, int) and n <= SMALL for n in made)
    return small and fold(node)


def fold(node: Node) -> bool:
    """Make the outputs of `node` constants if all its inputs are. Returns whether it did.

    What traps is left to the machine, which will trap where the program does.
    """
    symbolic = any(not isinstance(d, int) for v in node.outputs for d in v.dims)
    if symbolic or any(v.constant is None for v in node.present) or _has_symbols(node):
        return False
    try:
        results = node_results(node, [None if v is None else v.constant for v in node.inputs])
    except Trap:
        return False
    for value, array in zip(node.outputs, results, strict=False):
        array.flags.writeable = False
        value.constant, value.producer = array, None
    for value in node.present:
        value.users.remove(node)
    return True


def _has_symbols(node: Node) -> bool:
    """Whether an attribute is a symbolic size, or a list with one (where a SLICE starts)."""
    values = [v for a in node.attributes.values() for v in (a if isinstance(a, tuple | list) else (a,))]
    return any(isinstance(v, Expr) for v in values)
