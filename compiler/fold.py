"""Computing nodes whose inputs are all constant."""

from __future__ import annotations

import math

from dla.compiler.dims import Expr
from dla.compiler.evaluate import node_results
from dla.compiler.graph import Node
from dla.isa.errors import Trap

SMALL = 4096
"""Elements: results up to this size are computed as soon as a node is made, so that shapes may depend on them."""

_OF_RANKS = ("SHARD", "ALLREDUCE")
"""Operators whose results ranks have together: one graph does not tell them."""
_GROWTH = 2**22  # elements that a constant may have more than what it is computed from
_TERMS = {"GEMM": 2**34, "CONV": 2**26, "POOL": 2**26}  # of all elements together; windows are laid out in memory


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
    if node.op in _OF_RANKS or symbolic or any(v.constant is None for v in node.present):
        return False
    if _has_symbols(node) or not _is_affordable(node):
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


def _is_affordable(node: Node) -> bool:
    """Whether computing `node` now neither makes much of little nor takes long: else the machine does it."""
    read = sum(v.constant.size for v in node.present if v.constant is not None)
    made = sum(n for v in node.outputs if isinstance(n := v.type.elements, int))
    summed = {"GEMM": _inner, "CONV": _kernel, "POOL": _window}.get(node.op)
    return made <= 4 * read + _GROWTH and (summed is None or made * summed(node) <= _TERMS[node.op])


def _inner(node: Node) -> int:
    """Terms of each element of a GEMM."""
    a = node.inputs[0]
    return 1 if a is None or a.constant is None else a.constant.shape[-1]


def _kernel(node: Node) -> int:
    """Terms of each element of a CONV."""
    w = node.inputs[1]
    return 1 if w is None or w.constant is None else math.prod(w.constant.shape[1:])


def _window(node: Node) -> int:
    """Terms of each element of a POOL."""
    return math.prod(node.attributes.get("window", ()))


def _has_symbols(node: Node) -> bool:
    """Whether an attribute is a symbolic size, or a list with one (where a SLICE starts)."""
    values = [v for a in node.attributes.values() for v in (a if isinstance(a, tuple | list) else (a,))]
    return any(isinstance(v, Expr) for v in values)
