"""ONNX models written as text, compiled, run on the golden machine and compared with ONNX's reference evaluator.

A model is `(inputs) => (outputs) { nodes }` in the syntax of `onnx.parser`; a dim with a name is symbolic.
"""

from __future__ import annotations

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
    model = parsed(text, opset)
    initialisers = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return compile_graph(import_model(model, initialisers, Options(bounds=BOUNDS, **options)))


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
