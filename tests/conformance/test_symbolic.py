"""The suite's cases with their first axis left open: one program for all sizes up to a bound gives the same outputs.

What cannot be compiled for open sizes is refused as ever; what can be must be right at the size that the case has.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra `dev`)")

from onnx.backend.test.runner import Runner  # noqa: E402

from conformance import suite  # noqa: E402  (it needs onnx)
from dla.compiler.api import compile_model  # noqa: E402
from dla.compiler.onnx import signature  # noqa: E402
from dla.compiler.onnx.context import NeedsValue  # noqa: E402
from dla.compiler.pipeline import Compiled  # noqa: E402
from dla.emulator.api import Machine  # noqa: E402
from dla.isa.descriptor import Segment  # noqa: E402
from dla.isa.errors import ModelError  # noqa: E402

CHUNKS = 4
SPARE = 2  # sizes beyond the case's own that the program is for, too


def opened(case: suite.Case) -> tuple[onnx.ModelProto, int]:
    """The case's model with the first axis of its first input called n, as any other first axis of that size; the size.

    0 where there is no such axis.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    size = 0
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        size = size or (dims[0].dim_value if dims else 0)
        if dims and size and dims[0].dim_value == size:
            dims[0].dim_param = "n"
    for value in (*model.graph.output, *model.graph.value_info):
        value.type.tensor_type.ClearField("shape")
    return model, size


def compiled(model: onnx.ModelProto, size: int, arrays: dict[str, np.ndarray]) -> tuple[Compiled, list[str]]:
    """The program, and the names of its inputs: those of `arrays` whose values need not be known. Raises ModelError."""
    values: dict[str, np.ndarray] = {}
    while True:
        try:
            made = compile_model(model, bounds={"n": size + SPARE}, values=values, substitute=True)
        except NeedsValue as error:
            if error.source not in arrays or error.source in values:
                raise
            values[error.source] = arrays[error.source]
        else:
            return made, [name for name in arrays if name not in values]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_open_sizes_change_nothing(chunk: int) -> None:
    """Every case of a node that passes with its own sizes."""
    scores = json.loads((Path(__file__).parent / "golden.json").read_text())
    if scores["versions"]["onnx"] != onnx.__version__:
        pytest.skip(f"the scoreboard is of onnx {scores['versions']['onnx']}, and {onnx.__version__} is installed")
    names = [n for n in scores["tests"]["node"]["passed"] if not n.endswith("_expanded")]
    machine, ran, refused = Machine("golden"), 0, dict[str, str]()
    for name in names[chunk::CHUNKS]:
        case = suite.case("node", name)
        model, size = opened(case)
        if not size or case.opset < 12:
            continue
        arrays = dict(zip((given.name for given in signature.inputs(model.graph)), case.data[0][0], strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                made, given = compiled(model, size, arrays)
            except ModelError as error:
                refused[name] = str(error)
                continue
        places = dict(zip(given, made.program.in_segment(Segment.INPUT), strict=True))
        feed = {place.name: arrays[n].astype(place.descriptor.dtype.numpy) for n, place in places.items()}
        wanted = case.data[0][1]
        found = [
            a.astype(w.dtype) for a, w in zip(machine.run(made.program, feed).outputs.values(), wanted, strict=True)
        ]
        Runner.assert_similar_outputs(wanted, found, case.rtol, case.atol, name)
        ran += 1
    assert ran > 10 * len(refused)
    assert [reason for reason in refused.values() if "please report" in reason] == []
