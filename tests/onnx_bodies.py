"""ONNX models written as text, compiled, run on the golden machine and compared with ONNX's reference evaluator.

A model is `(inputs) => (outputs) { nodes }` in the syntax of `onnx.parser`; a dim with a name is symbolic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import parser
from onnx.reference import ReferenceEvaluator

from dla.compiler.onnx.importer import Options, import_model
from dla.compiler.pipeline import Compiled, compile_graph
from dla.emulator.api import Machine
from dla.isa.dtypes import Array

BOUNDS = {"B": 3, "S": 8, "P": 5}
OPSET = 21


def parsed(text: str, opset: int = OPSET) -> onnx.ModelProto:
    """The model that `text` is."""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> g {text}')


def compiled(text: str, opset: int = OPSET, **options: Any) -> Compiled:
    """`text` as a program. Symbolic dims have the bounds above."""
    return compiled_model(parsed(text, opset), **options)


def compiled_model(model: onnx.ModelProto, **options: Any) -> Compiled:
    """A model without initialisers as a program."""
    return compile_graph(import_model(model, {}, Options(bounds=BOUNDS, **options)))


def inputs_of(model: onnx.ModelProto, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """Random inputs: normal floats, integers from -2 to 2, bools."""
    made = {}
    for given in model.graph.input:
        kind = given.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        normal = rng.standard_normal(shape)
        values = normal > 0 if dtype == np.bool_ else normal if dtype.kind == "f" else rng.integers(-2, 3, shape)
        made[given.name] = np.asarray(values).astype(dtype)
    return made


def reference(model: onnx.ModelProto, inputs: Mapping[str, Array], *, runtime: bool) -> list[Array]:
    """What ONNX's reference evaluator gives, or onnxruntime, which knows recurrent layers and their like better."""
    if not runtime:
        return list(ReferenceEvaluator(model).run(None, dict(inputs)))
    import onnxruntime  # slow to load, and few tests need it

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def mutated(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A copy in which one input's shape or type, or one node's input or attribute, is another."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    given, node = rng.choice(result.graph.input).type.tensor_type, rng.choice(result.graph.node)
    sizes, attribute = given.shape.dim, rng.choice(node.attribute) if node.attribute else None
    match rng.randrange(5):
        case 0 if sizes:
            del sizes[rng.randrange(len(sizes))]
        case 1:
            sizes.add(dim_value=rng.choice((0, 1, 3)))
        case 2:
            given.elem_type = rng.choice((onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL))
        case 3 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(("", *node.input))
        case _ if attribute is not None:
            attribute.i, attribute.f, attribute.s = rng.choice((-9, -1, 0, 1, 9)), rng.choice((0.0, math.inf)), b"?"
            attribute.ints[:1] = [rng.choice((-9, -1, 0, 1, 9))] if attribute.ints else []
    return result


def check(
    text: str, *sizes: Mapping[str, int], opset: int = OPSET, rtol: float = 1e-5, atol: float = 1e-6,
    runtime: bool = False,
) -> Compiled:  # fmt: skip
    """Compile once, and compare with the reference for each of `sizes` (once where there are none)."""
    model, program = parsed(text, opset), compiled(text, opset)
    rng = np.random.default_rng(3)
    for given in sizes or ({},):
        inputs = inputs_of(model, given, rng)
        wanted = reference(model, inputs, runtime=runtime)
        found = Machine("golden").run(program.program, inputs).outputs
        assert len(found) == len(wanted)
        for got, want in zip(found.values(), wanted, strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    return program
