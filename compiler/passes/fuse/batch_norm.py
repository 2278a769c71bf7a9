"""Batch normalisation moves into the weights of the product before it.

(x w + b - mean) s + beta = x (w s) + (b - mean) s + beta, with s = gain / sqrt(var + eps).
"""

from __future__ import annotations

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.graph import Graph, Node
from dla.compiler.operators import full_attributes, source
from dla.compiler.passes.match import constant_array
from dla.compiler.passes.rewrite import Replacement, rewrite
from dla.isa.dtypes import Array


def run(graph: Graph) -> Graph:
    """`graph` without batch normalisations that follow a product with constant weights."""
    return rewrite(graph, {"NORM": [into_product]})


def _scale_and_shift(node: Node) -> tuple[Array, Array] | None:
    """The factor and the term of each channel in f64, for NORM.batch with constants only."""
    if node.sub != "batch" or any(v is not None and v.constant is None for v in node.inputs[1:]):
        return None
    gain, bias, mean, var = (None if v is None else np.asarray(v.constant, np.float64) for v in node.inputs[1:])
    assert mean is not None, "NORM.batch has statistics"
    assert var is not None, "NORM.batch has statistics"
    scale = (1.0 if gain is None else gain) / np.sqrt(var + full_attributes(node)["eps"])
    return scale, (0.0 if bias is None else bias) - mean * scale


def into_product(node: Node, b: GraphBuilder) -> Replacement:
    """A convolution or a matrix product with constant weights, and nothing but a bias after it."""
    affine, x = _scale_and_shift(node), source(node)
    product = x.producer
    if affine is None or product is None or product.op not in ("CONV", "GEMM"):
        return None
    if b.graph.only_user(x) is not node or node.output.dtype is not x.dtype or product.sub:
        return None
    weights, bias_at = source(product, 1), 2 if product.op == "CONV" else 3
    array, bias = constant_array(weights), product.inputs[bias_at]
    if array is None or product.attributes.get("steps", ()) not in ((), ("bias",)):
        return None
    if bias is not None and (bias.constant is None or bias.rank > 1):
        return None
    if product.op == "GEMM" and (weights.rank != 2 or product.inputs[2] is not None):
        return None
    scale, shift = affine
    per_output = scale.reshape(-1, *(1,) * (weights.rank - 1)) if product.op == "CONV" else scale
    new_weights = b.constant(np.asarray(array, np.float64) * per_output, weights.dtype, weights.name)
    old_bias = 0.0 if bias is None else np.asarray(bias.constant, np.float64)
    name = bias.name if bias is not None else weights.name and f"{weights.name}.bias"
    new_bias = b.constant(old_bias * scale + shift, x.dtype, name)
    inputs = list(product.inputs)
    inputs[1], inputs[bias_at] = new_weights, new_bias
    attributes = {**product.attributes, "steps": ("bias",)}
    return b.node(product.op, inputs, dtype=x.dtype, **attributes).output
