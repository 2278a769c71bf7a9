"""benchmarks/native_check.py: what a plain script says of a profile's native times, on the CPU."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dla
from dla.profiler import run
from dla.profiler.facts import facts

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "native_check.py"
TEXT = """
.program p
.input   x : f32[4, 16]
.input   q : f32[1, 2, 8, 4]
.input   m : f32[1, 6, 6, 4]
.const   w : f32[16, 16] = 0.5
.const   k : f32[4, 3, 3, 4] = 0.25
.const   b : f32[16] = 1
.output  y : f32[4, 16]
.output  z : f32[1, 2, 8, 4]
.output  v : f32[1, 6, 6, 4]
main:
    GEMM       y, x, w
    GEMM       y, x, w.T bias=b
    SOFTMAX    y, x axis=-1
    NORM.layer y, x, b, b
    NORM.rms   y, x, b
    EW.add     y, x, x
    ATTENTION  z, q, q, q causal
    CONV       v, m, k pads=[1, 1, 1, 1] act=relu
    CONV       v, m, k pads=[1, 1, 1, 1]
    HALT
"""
Check = Callable[[dict[str, Any], float], tuple[int, str]]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Check]:
    """`checked(profile, within)`: the script's exit code and what it prints; in this process, which has torch."""

    def run_script(profile: dict[str, Any], within: float) -> tuple[int, str]:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(profile))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(path), str(within)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        printed, problem = capfd.readouterr()
        assert not problem
        return int(ended.value.code or 0), printed

    cudnn = torch.backends.cudnn
    flags = [(cudnn, name) for name in ("benchmark", "benchmark_limit", "allow_tf32")]
    flags += [(torch.backends.cuda.matmul, "allow_tf32")]
    before = [getattr(where, flag) for where, flag in flags]
    yield run_script
    for (where, flag), value in zip(flags, before, strict=True):  # the script sets them
        setattr(where, flag, value)


def test_times_are_compared(checked: Check) -> None:
    """Each kind of work that the script knows; a time that is far off fails, and so does a profile without natives."""
    rng = np.random.default_rng(0)
    program = dla.assemble(TEXT)
    inputs = {name: rng.standard_normal(shape, np.float32) for name, shape in
              (("x", (4, 16)), ("q", (1, 2, 8, 4)), ("m", (1, 6, 6, 4)))}  # fmt: skip
    plain = run.profile(program, inputs, backend="golden", repeat=1)
    profile = facts(run.with_natives(plain))
    code, text = checked(profile, 1e6)
    assert code == 0, text
    assert text.startswith("no GPU, or no profile of one: on the CPU")
    assert "8 kinds of work compared, 0 differ" in text
    first, _, far_off = profile["instructions"][:3]
    far_off["native"]["cold_us"] *= 1e9
    code, text = checked(profile | {"instructions": [first, far_off]}, 1e6)
    assert (code, "2 kinds of work compared, 1 differ" in text) == (1, True), text
    assert checked(facts(plain), 1e6)[0] == 1
