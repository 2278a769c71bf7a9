"""The passes, in the order in which they run. Each is a file, takes a graph, and gives a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.passes import canonicalise, dead, fold, layout, precision, tensor_parallel, unflatten
from dla.compiler.passes.fuse import batch_norm, concats, epilogue, glu, rotations, siblings

PASSES: dict[str, Callable[..., Any]] = {
    "dead": dead.run,
    "fold": fold.run,
    "unflatten": unflatten.run,
    "canonicalise": canonicalise.run,
    "layout": layout.run,
    "batch_norm": batch_norm.run,
    "glu": glu.run,
    "epilogue": epilogue.run,
    "siblings": siblings.run,
    "rotations": rotations.run,
    "concats": concats.run,
    "precision": precision.run,
    "tensor_parallel": tensor_parallel.run,
}
