"""The same network elsewhere: right or wrong, with times, or with a word on why there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dla
from dla.emulator.onnxruntime_backend import Original
from dla.isa.errors import BackendError, InputError
from dla.profiler import whole

LINEAR = """
.program linear
.input  x : f32[n <= 8, 4]
.const  w : f32[4, 3] = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
.output y : f32[n, 3]
main:
    GEMM y, x, w
    HALT
"""
NETWORKS = """
import torch

class Linear(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.w = torch.nn.Parameter(factor * torch.arange(1.0, 13.0).reshape(4, 3))

    def forward(self, x):
        return x @ self.w

def right():
    return Linear(1), torch.zeros(5, 4)

def wrong():
    return Linear(1.5), (torch.zeros(5, 4),)

def other():
    return Linear(1), (torch.ones(2, 4),)

def failing():
    raise RuntimeError("no weights here")

def nothing():
    return None

def refusing():
    return Linear(1), (torch.zeros(5, 7),)

constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of networks."""
    path = tmp_path / "nets.py"
    path.write_text(NETWORKS)
    return path


@pytest.fixture
def judge() -> whole.Judge:
    """Of the linear layer on random inputs."""
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    return whole.Judge(dla.assemble(LINEAR), {"x": x}, {"n": 5}, {})


def test_outputs_are_judged_by_the_bounds_of_the_program(judge: whole.Judge) -> None:
    """Rounding is allowed, anything else is not."""
    exact = judge.inputs["x"] @ np.arange(1.0, 13.0).reshape(4, 3)
    assert judge({"y": exact.astype(np.float32)}) is True
    assert judge({"y": (exact * 1.001).astype(np.float32)}) is False
    assert judge({"y": exact[:2].astype(np.float32)}) is False
    assert judge({}) is False


def test_large_programs_are_not_judged(judge: whole.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference would take longer than anything that is measured."""
    monkeypatch.setattr(whole, "MOST_FLOPS", 10)
    assert judge({"y": np.zeros((5, 3), np.float32)}) is None


@pytest.mark.parametrize(("name", "agrees", "note"), [
    ("right", True, ""), ("wrong", False, ""), ("other", None, "on its own example inputs"),
])  # fmt: skip
def test_a_module_is_timed_and_judged(
    file: Path, judge: whole.Judge, name: str, agrees: bool | None, note: str
) -> None:  # fmt: skip
    """On the program's inputs where they fit, and on the CPU as the golden machine is; what needs a GPU says so."""
    pytest.importorskip("torch")
    eager, graph, compiled = whole.of_torch(whole.factory(f"{file}:{name}"), judge, 3, "golden")
    assert (eager.name, eager.agrees, eager.note) == ("PyTorch, CPU, eager", agrees, note)
    assert eager.time is not None
    assert eager.first is not None
    assert 0 < eager.time < 1
    assert eager.first > 0
    for missing in (graph, compiled):
        assert (missing.time, missing.note) == (None, "needs a GPU")


BAD: dict[str, tuple[str, str]] = {
    "no function": ("nets.py", "names no function"),
    "no file": ("none.py:right", "there is no file 'none.py'"),
    "no such function": ("nets.py:left", "has no function left"),
    "not a function": ("nets.py:constant", "has no function constant"),
    "fails": ("nets.py:failing", "failed: RuntimeError: no weights here"),
    "gives nothing": ("nets.py:nothing", "does not give"),
    "refuses its inputs": ("nets.py:refusing", "the module failed: RuntimeError"),
    "no Python": ("notes.txt:right", "is no Python file"),
    "broken": ("broken.py:right", "failed: SyntaxError"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_files_are_one_message(
    what: str, file: Path, judge: whole.Judge, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Whatever is wrong with what --torch names."""
    pytest.importorskip("torch")
    monkeypatch.chdir(file.parent)
    Path("notes.txt").write_text("Dear diary\n")
    Path("broken.py").write_text("def right(:\n")
    spec, message = BAD[what]
    with pytest.raises(InputError, match="--torch") as error:
        whole.of_torch(whole.factory(spec), judge, 1, "golden")
    assert message in str(error.value)


def test_a_model_is_timed_on_onnxruntime(tmp_path: Path) -> None:
    """The time until the first result has loading in; its outputs are judged by the program's bounds."""
    onnx: Any = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 3]), ("y", [2, 3])))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    program = dla.compile_model(path).program
    judge = whole.Judge(program, {"x": np.ones((2, 3), np.float32)}, {}, {})
    found = whole.of_onnxruntime(lambda: Original(path, program, ({"x": "x"}, {"y": "y"}), {}, gpu=True), judge, 3)
    assert found.name.startswith("onnxruntime, ")
    assert found.agrees
    assert found.time is not None
    assert found.first is not None
    assert 0 < found.time < found.first


def test_without_onnxruntime_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, judge: whole.Judge) -> None:
    """As `dla compare` says it."""
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(BackendError, match="needs the package onnxruntime"):
        whole.of_onnxruntime(lambda: Original(Path("m.onnx"), judge.program, ({}, {}), {}), judge, 1)
