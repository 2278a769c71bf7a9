"""No damaged ONNX model does anything but be refused, or become a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
FUZZ = Path(__file__).parent / "fuzz_models.py"
MUTATIONS = 750  # in each of two processes
MIB = 2**20


@pytest.fixture(scope="module")
def counts() -> list[dict[str, Any]]:
    """What became of the mutations."""
    runs = [
        subprocess.Popen(
            [sys.executable, str(FUZZ), "--mutations", str(MUTATIONS), "--first", str(k * MUTATIONS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    outputs = [run.communicate() for run in runs]
    for run, (_, problem) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, problem
    return [json.loads(printed) for printed, _ in outputs]


def test_damaged_models_are_refused_or_run(counts: list[dict[str, Any]]) -> None:
    """Whatever is done to a model, compiling and running it raise nothing but DlaError, soon and in little memory."""
    assert [each["problems"] for each in counts] == [{}, {}]
    for each in counts:
        assert each["ran"] > 100
        assert each["refused"] > 100
        assert each["memory_growth"] < 300 * MIB
