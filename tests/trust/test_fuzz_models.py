"""No damaged ONNX model does anything but be refused, or become a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
FUZZ = Path(__file__).parent / "fuzz_models.py"
MUTATIONS = 1500
MIB = 2**20


def test_damaged_models_are_refused_or_run() -> None:
    """Whatever is done to a model, compiling and running it raise nothing but DlaError, soon and in little memory.

    In one process, as it takes seconds until onnx has made the models that are damaged.
    """
    command = [sys.executable, str(FUZZ), "--mutations", str(MUTATIONS), "--first", "0"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout)
    assert counts["problems"] == {}
    assert counts["ran"] > 300
    assert counts["refused"] > 800
    assert counts["memory_growth"] < 300 * MIB
