"""onnxruntime as a backend: what it runs, and how its refusals are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_models import perceptron, relu, saved

import dla
from dla.emulator.onnxruntime_backend import Original


def original(folder: Path) -> Original:
    """The perceptron in `folder`, and its program for up to 4 rows."""
    path = saved(perceptron(), folder)
    program = dla.compile_model(path, bounds={"batch": 4}).program
    return Original(path, program, ({"x:0": "x_0"}, {"y:0": "y_0"}), {})


def test_it_takes_and_gives_tensors_by_the_names_of_the_program(tmp_path: Path) -> None:
    """The result is like that of any machine: outputs, dims, time, and who ran."""
    result = original(tmp_path).run({"x_0": np.ones((2, 3), np.float32)})
    assert result["y_0"].shape == (2, 5)
    assert result["y_0"].dtype == np.float32
    assert (result.backend, result.dims, result.state) == ("onnxruntime", {"batch": 2}, {})
    assert result.elapsed > 0


def test_inputs_are_checked_as_for_any_machine(tmp_path: Path) -> None:
    """A wrong type never reaches onnxruntime."""
    with pytest.raises(dla.InputError, match="input 'x_0' must be f32, not float64"):
        original(tmp_path).run({"x_0": np.ones((2, 3))})


def test_models_that_it_refuses_are_backend_errors(tmp_path: Path) -> None:
    """Whatever onnxruntime raises, the message is one line and says whose it is."""
    program = dla.compile_model(relu()).program
    path = tmp_path / "damaged.onnx"
    path.write_bytes(b"\x08\x08")
    with pytest.raises(dla.BackendError, match=r"onnxruntime does not load '.*damaged\.onnx': ") as refused:
        Original(path, program, ({"x": "x"}, {"y": "y"}), {})
    assert "\n" not in refused.value.message


def test_runs_that_fail_are_backend_errors(tmp_path: Path) -> None:
    """A constant that does not fit the model."""
    path = saved(perceptron(), tmp_path)
    program = dla.compile_model(path, values={"x:0": np.ones((2, 3), np.float32)}).program
    with pytest.raises(dla.BackendError, match="onnxruntime does not run the model: "):
        Original(path, program, ({}, {"y:0": "y_0"}), {"x:0": np.ones((2, 4), np.float32)}).run({})
