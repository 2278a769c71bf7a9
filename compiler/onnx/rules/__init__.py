"""What each ONNX operator becomes: one function per operator, in one file per family.

A rule gets the node's `Context` and returns its outputs in order: one value, or a tuple of them. Operators are named as
ONNX names them; `domain::Name` for those outside ai.onnx. Attributes and defaults: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dla.compiler.onnx.context import Context, Item
from dla.compiler.onnx.rules import (
    attention,
    constants,
    control,
    einsum,
    fourier,
    grids,
    indexing,
    linear,
    normalisation,
    optimisers,
    pads,
    pointwise,
    pools,
    quantisation,
    recurrent,
    reductions,
    regions,
    resize,
    sequences,
    shapes,
    windows,
)

Rule = Callable[[Context], Item | tuple[Any, ...]]

RULES: dict[str, Rule] = {
    **attention.RULES,
    **constants.RULES,
    **control.RULES,
    **einsum.RULES,
    **fourier.RULES,
    **grids.RULES,
    **indexing.RULES,
    **linear.RULES,
    **normalisation.RULES,
    **optimisers.RULES,
    **pads.RULES,
    **pointwise.RULES,
    **pools.RULES,
    **quantisation.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **regions.RULES,
    **resize.RULES,
    **sequences.RULES,
    **shapes.RULES,
    **windows.RULES,
}
"""Every operator that has a rule. Those without are expanded if ONNX defines them as functions of others."""
