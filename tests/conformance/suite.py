"""ONNX's conformance suite (onnx.backend.test): its cases, and what a backend makes of one of them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from dla.isa.errors import DlaError
from dla.onnx_backend import DlaBackend

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
DEVICES = {"golden": "CPU", "gpu": "CUDA"}


@dataclass(frozen=True)
class Case:
    """A model, and pairs of inputs and the outputs that it must have; tolerances are the suite's own."""

    name: str
    kind: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators; 0 where there are none."""
        return max((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=0)


@functools.cache
def _listed(kind: str) -> dict[str, Any]:
    """The suite's own records by name. Those of nodes are computed here, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes with NaN and overflows
        return {case.name: case for case in load_model_tests(kind=kind)}


def names(kind: str) -> list[str]:
    """The names of all cases of a kind."""
    return sorted(_listed(kind))


def case(kind: str, name: str) -> Case:
    """The case of that name."""
    record = _listed(kind)[name]
    if record.model is not None:
        data = [tuple([_array(x) for x in side] for side in pair) for pair in record.data_sets]
        return Case(name, kind, record.model, data, record.rtol, record.atol)
    folder = Path(record.model_dir)
    model = onnx.load(folder / "model.onnx")
    return Case(name, kind, model, list(_read(folder, model)), record.rtol, record.atol)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: Path, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """The data sets in the folder of a case."""
    for data in sorted(folder.glob("test_data_set_*")):
        sides: list[list[Any]] = []
        for side, declared in (("input", model.graph.input), ("output", model.graph.output)):
            count = len(list(data.glob(f"{side}_*.pb")))
            files = [data / f"{side}_{k}.pb" for k in range(count)]
            sides.append([_value(f.read_bytes(), v.type) for f, v in zip(files, declared, strict=False)])
        yield sides[0], sides[1]


def _value(data: bytes, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def failure(found: Case, backend: str) -> str | None:
    """Why `backend`, "golden" or "gpu", does not pass the case, in one line; None where it passes.

    Raises what is no DlaError: that is a defect.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            prepared = DlaBackend.prepare(found.model, DEVICES[backend])
            for inputs, expected in found.data:
                outputs = prepared.run(inputs)
                try:
                    Runner.assert_similar_outputs(expected, outputs, found.rtol, found.atol)
                except AssertionError as error:
                    return _difference(str(error))
    except DlaError as error:
        return str(error).splitlines()[0]
    return None


def _difference(message: str) -> str:
    """What NumPy says of arrays that differ, in one line."""
    facts = [line.strip() for line in message.splitlines() if line.startswith(("Mismatched", "Max", " ACTUAL"))]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "values differ: " + "; ".join(facts[:3] or lines[:3])
