"""The exported networks are what they claim to be: valid ONNX that onnxruntime runs as torch does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from networks.conftest import Exported

TOLERANCE = 1e-4  # of the largest output; both sides compute in f32 and differ in the order of sums


def test_is_valid_onnx(network: Exported) -> None:
    """The checker accepts the file, and its ends have the names that the runs use."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra `dev`)")
    onnx.checker.check_model(str(network.path), full_check=True)
    graph = onnx.load(network.path).graph
    assert tuple(value.name for value in graph.input) == network.input_names
    assert tuple(value.name for value in graph.output) == network.output_names


def test_onnxruntime_agrees_with_torch(network: Exported) -> None:
    """At the exported sizes and, where axes are symbolic, at others."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `dev`)")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the newer exporter declares sizes of recurrent outputs that are not so
    session = onnxruntime.InferenceSession(str(network.path), options, providers=["CPUExecutionProvider"])
    assert len(network.runs) == (2 if network.case.dynamic else 1)
    for run in network.runs:
        results = session.run(list(run.expected), dict(run.inputs))
        for (name, expected), result in zip(run.expected.items(), results, strict=True):
            assert result.shape == expected.shape, name
            assert np.abs(result - expected).max() <= TOLERANCE * np.abs(expected).max(), name


def test_activations_neither_vanish_nor_explode(network: Exported) -> None:
    """Outputs spread over both signs at a size where a wrong layer shows."""
    for run in network.runs:
        for name, expected in run.expected.items():
            assert np.isfinite(expected).all(), name
            assert 0.05 < expected.std() < 20, name


def test_an_unknown_exporter_is_refused(tmp_path: Path) -> None:
    """Before anything is exported."""
    torch = pytest.importorskip("torch", reason="networks are built by torch, which is not installed (extra `dev`)")
    from networks.export import export

    with pytest.raises(ValueError, match="unknown exporter 'jit': one of torchscript, dynamo"):
        export(torch.nn.ReLU(), (torch.zeros(2),), tmp_path / "model.onnx", exporter="jit")
    assert not list(tmp_path.iterdir())
