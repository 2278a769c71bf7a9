"""The command line: profile and bench, on the golden machine."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import dla, files, write_programs

from dla import measuring
from dla.profiler.profile import Ceilings
from dla.profiler.stand import GoldenStand

TRAPS_LATE = """\
.program late
.input x : f32[4]
.output y : f32[4]
main:
    ACT.exp y, x
    MOV    p0, 0
    ASSERT p0 "on purpose"
    HALT
"""
NETWORK = """
import torch

def build():
    return (lambda x: x + x), torch.zeros(3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with ceilings that cost no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GoldenStand, "ceilings", lambda self: Ceilings(1e10, {"f32": 1e11}))
    write_programs()
    Path("late.dla").write_text(TRAPS_LATE)
    Path("net.py").write_text(NETWORK)
    return tmp_path


def facts(*arguments: str) -> Any:
    """What `--json` prints."""
    return json.loads(dla(*arguments, "--backend", "golden", "--json").stdout)


PROFILE = ("profile", "double.dla", "-i", "x.npy", "--repeat", "2")


def test_profile_shows_where_the_time_goes() -> None:
    """The result is on stdout, and which machine it was on stderr."""
    result = dla(*PROFILE, "--backend", "golden")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("profile of double on golden (NumPy), n=3\n")
    assert "EW.add" in result.stdout
    assert "double.dla:5" in result.stdout
    assert "backend: golden" in result.stderr


def test_json_has_everything_on_stdout() -> None:
    """One object; times name their unit."""
    found = facts(*PROFILE)
    assert (found["program"], found["machine"], found["dims"]) == ("double", "golden", {"n": 3})
    assert len(found["runs_us"]) == 2
    add, halt = found["instructions"]
    assert (add["name"], add["text"], add["calls"], halt["name"]) == ("EW.add", "EW.add y, x, x", 1, "HALT")
    assert found["ceilings"] == {"bytes_per_s": 1e10, "flops_per_s": {"f32": 1e11}}


def test_random_inputs_and_set_dims_as_with_run() -> None:
    """The options of `dla run`."""
    assert facts("profile", "double.dla", "--random", "1", "--set", "n=2", "--repeat", "1")["dims"] == {"n": 2}


def test_state_in_is_where_each_run_starts() -> None:
    """Traced and timed runs leave nothing to each other."""
    np.savez("s.npz", n=np.array(5))
    once = Path("counting.dla").read_text().replace("    HALT", "    LOADS s8, n\n    CMP.eq p0, s8, 6\n"
                                                    "    ASSERT p0\n    HALT")  # fmt: skip
    Path("once.dla").write_text(once)
    assert facts("profile", "once.dla", "--state-in", "s.npz", "--repeat", "3")["trap"] is None
    assert facts("profile", "once.dla", "--repeat", "3")["trap"].startswith("trap[assert]")


def test_reports_are_written_to_files() -> None:
    """A page, a Perfetto trace, and JSON, beside the table."""
    result = dla(*PROFILE, "--backend", "golden", "--html", "r.html", "--trace", "r.trace", "--json", "r.json")
    assert result.exit_code == 0, result.output
    assert Path("r.html").read_text().lower().startswith("<!doctype html")
    assert Path("r.trace").stat().st_size > 100
    assert json.loads(Path("r.json").read_text())["program"] == "double"
    assert "wrote r.html" in result.stderr


def test_one_instruction_alone() -> None:
    """Its figures; the reports that show the run keep all of it."""
    found = facts(*PROFILE, "--instruction", "1", "--html", "r.html")
    assert [one["index"] for one in found["instructions"]] == [1]
    assert "EW.add" in Path("r.html").read_text()
    wrong = dla(*PROFILE, "--instruction", "2")
    assert (wrong.exit_code, wrong.stderr) == (2, "error: --instruction 2: the program has instructions 0 to 1\n")


def test_native_kernels_stand_beside_instructions() -> None:
    """PyTorch's, checked."""
    pytest.importorskip("torch")
    add, halt = facts(*PROFILE, "--native")["instructions"]
    assert add["native"]["kernel"].startswith("torch.add")
    assert add["native"]["agrees"] is True
    assert (halt["native"], halt["why_no_native"]) == (None, None)


def test_a_network_stands_beside_the_program() -> None:
    """`--torch FILE.py:NAME`, judged by the program's bounds."""
    pytest.importorskip("torch")
    first, *_ = facts(*PROFILE, "--torch", "net.py:build")["wholes"]
    assert first["name"] == "PyTorch, CPU, eager"
    assert first["agrees"] is True
    assert first["time_us"] > 0


@pytest.mark.parametrize("torch", [True, False])
def test_a_model_stands_beside_onnxruntime(torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --native; a program that was compiled from it is compared with it. That needs no PyTorch."""
    onnx: Any = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    if not torch:
        monkeypatch.setitem(sys.modules, "torch", None)
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "m.onnx")
    (whole,) = facts("profile", "m.onnx", "--random", "1", "--native", "--repeat", "2")["wholes"]
    assert whole["name"].startswith("onnxruntime")
    assert whole["agrees"] is True


def test_a_model_that_onnxruntime_cannot_be_given_costs_nothing_else() -> None:
    """NumPy has no bf16, in which it would take inputs: a note says so, and the profile is there."""
    onnx: Any = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    x, y = (onnx.helper.make_tensor_value_info(n, t, [2, 3]) for n, t in (("x", onnx.TensorProto.BFLOAT16), ("y", 1)))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Cast", ["x"], ["y"], to=1)], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "m.onnx")
    result = dla("profile", "m.onnx", "--random", "1", "--native", "--repeat", "1", "--backend", "golden")
    assert result.exit_code == 0, result.output
    assert "without onnxruntime: onnxruntime takes no input of type tensor(bfloat16)" in result.stderr
    assert result.stdout.startswith("profile of ")


def test_a_trap_midway_keeps_the_profile_of_what_ran() -> None:
    """Exit code 4, the table of what ran before, and the trap in every report."""
    result = dla("profile", "late.dla", "--random", "1", "--backend", "golden", "--html", "r.html")
    assert result.exit_code == 4
    assert "trap[assert] at instruction 2 (late.dla:7): assertion failed, code 0: on purpose" in result.stderr
    assert "ACT.exp" in result.stdout
    assert "on purpose" in Path("r.html").read_text()
    found = facts("profile", "late.dla", "--random", "1")
    assert [one["calls"] for one in found["instructions"]] == [1, 1, 0, 0]
    assert "on purpose" in found["trap"]


BAD = {
    "no GPU": (("--backend", "gpu"), 6, "error: no GPU: "),
    "no folder": (("--html", "none/r.html"), 2, "error: cannot write 'none/r.html': there is no folder 'none'"),
    "a folder": (("--trace", "."), 2, "error: cannot write '.': it is a folder"),
    "the program": (("--html", "double.dla"), 2, "error: --html 'double.dla' would overwrite the program"),
    "one file twice": (("--html", "a", "--trace", "./a"), 2, "error: --trace 'a' would overwrite the file of --html"),
    "no JSON": (("--json", "late.dla"), 2, "error: --json 'late.dla': a JSON file's name ends in .json"),
    "no network": (("--torch", "net.py:none"), 2, "error: --torch: 'net.py' has no function none"),
    "no repeats": (("--repeat", "0"), 2, "Error: Invalid value for '--repeat'"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_options_are_one_message_and_an_exit_code(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is written."""
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "cupy", None)
    before = files()
    arguments, code, message = BAD[what]
    result = dla("profile", "double.dla", "-i", "x.npy", *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert files() == before


def test_without_pytorch_its_modules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured, with the way to get it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = dla(*PROFILE, "--torch", "net.py:build")
    assert result.exit_code == 6
    assert result.stderr.startswith("error: --torch needs PyTorch")
    assert "help: pip install 'dla[native]'" in result.stderr


LAYERS = """\
.program layers
.input  x : f32[n <= 8, 4, 4, 3]
.input  w : {0}[48, 10]
.input  k : f32[2, 1, 1, 3]
.scratch c : f32[n, 4, 4, 2]
.scratch h : {0}[n, 48]
.scratch s : {0}[n, 10]
.output y : {0}[n, 10]
.output best : i64[n]
main:
    CONV         c, x, k
    COPY         h, x.reshape(n, 48)
    GEMM         s, h, w act=relu
    SOFTMAX.soft y, s axis=1
    REDUCE.argmax best, y axes=[1]
    HALT
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_without_pytorch_natives_are_numpys(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked, and named after its functions; a reason says how to get PyTorch's, and every report whose these are."""
    monkeypatch.setitem(sys.modules, "torch", None)
    Path("layers.dla").write_text(LAYERS.format(dtype))
    arguments = ("profile", "layers.dla", "--random", "1", "--repeat", "1", "--native", "--backend", "golden")
    result = dla(*arguments, "--json", "r.json", "--html", "r.html")
    assert result.exit_code == 0, result.output
    assert "native kernels are NumPy's: PyTorch cannot be imported: " in result.stderr
    assert "(pip install 'dla[native]')" in result.stderr
    assert "\nnative kernels are NumPy's\n" in result.stdout
    assert "NumPy's kernel alone" in " ".join(Path("r.html").read_text().replace("&#x27;", "'").split())
    found = json.loads(Path("r.json").read_text())
    assert found["natives"] == "NumPy"
    conv, *others, halt = found["instructions"]
    assert conv["why_no_native"] == "NumPy has no convolution of channels; for PyTorch's: pip install 'dla[native]'"
    assert (halt["native"], halt["why_no_native"]) == (None, None)
    half = dtype != "f32"
    assert [one["native"]["kernel"] for one in others] == [
        "numpy.copyto",
        "numpy.astype, matmul, maximum" if half else "numpy.matmul, maximum",
        "numpy." + "astype, " * half + "max, subtract, exp, sum, divide",
        "numpy.argmax",
    ]
    assert all(one["native"]["agrees"] and one["native"]["cold_us"] > 0 for one in others)


@pytest.mark.parametrize("option", ["--html", "--trace", "--json"])
def test_a_full_disk_leaves_nothing_partial(option: str) -> None:
    """A file that cannot be written whole is not written at all."""
    before = files()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        result = dla(*PROFILE, "--backend", "golden", option, "report.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == 2, result.output
    assert "error: cannot write 'report.json': " in result.stderr
    assert files() == before


@pytest.mark.parametrize("program", ["double.dla", "late.dla"])
def test_a_report_that_cannot_be_written_costs_no_other(program: str) -> None:
    """Minutes of measuring are not lost with one disk: other files and the table are there, and the error is last."""
    arguments = ("profile", program, "--random", "1", "--backend", "golden", "--repeat", "1", "--html", "/dev/full")
    result = dla(*arguments, "--trace", "t.pftrace", "--json", "t.json")
    assert result.exit_code == 2
    assert "profile of " in result.stdout
    assert {"t.pftrace", "t.json"} <= {Path(file).name for file in files()}
    assert result.stderr.split("\n")[-3] == "error: cannot write '/dev/full': No space left on device"
    assert ("on purpose" in result.stderr) == (program == "late.dla")
    only = dla(*arguments, "--json")
    assert json.loads(only.stdout)["error"]["message"] == "cannot write '/dev/full': No space left on device"


def test_a_module_that_fails_costs_nothing_else() -> None:
    """It fails when all else is measured: tables and files are there, and the error is last."""
    pytest.importorskip("torch")
    Path("bad.py").write_text("def build():\n    raise ValueError('boom')\n")
    result = dla(*PROFILE, "--backend", "golden", "--torch", "bad.py:build", "--html", "r.html")
    assert result.exit_code == 2
    assert "profile of double" in result.stdout
    assert Path("r.html").exists()
    assert result.stderr.endswith("error: --torch: bad.py:build failed: ValueError: boom\n")


@pytest.mark.parametrize(("program", "arguments", "code"), [
    ("double.dla", ("--html", "/dev/full"), 2), ("late.dla", (), 4),
])  # fmt: skip
def test_nobody_reads_the_tables(
    program: str, arguments: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of what went wrong, not of `head`, which closed the pipe."""

    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(measuring, "print_profile", closed)
    result = dla("profile", program, "--random", "1", "--backend", "golden", "--repeat", "1", *arguments)
    assert result.exit_code == code


# -- bench


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--duration", "--warmup"])
def test_bench_ends(option: str, value: str) -> None:
    """Infinity would never be over, and nothing is longer than NaN."""
    result = dla("bench", "double.dla", "-i", "x.npy", "--backend", "golden", option, value)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '{option}': {value} is no time" in result.stderr


def test_bench_tells_latencies_and_throughput() -> None:
    """Percentiles, and in which surroundings they were measured."""
    arguments = ("bench", "double.dla", "-i", "x.npy", "--warmup", "1", "--duration", "0", "--iterations", "12")
    result = dla(*arguments, "--backend", "golden")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("double on golden (NumPy), n=3: 12 runs after ")
    assert "throughput" in result.stdout
    assert "99 %" in result.stdout
    found = facts(*arguments)
    assert found["iterations"] == 12
    assert found["latency_s"].keys() == {"least", "most", "mean", "p50", "p90", "p95", "p99"}
    assert found["throughput_per_s"] == pytest.approx(1 / found["latency_s"]["mean"])


def test_bench_has_no_cold_cache_on_the_golden_machine() -> None:
    """A label that is not true is refused."""
    result = dla("bench", "double.dla", "-i", "x.npy", "--backend", "golden", "--cold")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --cold flushes a GPU's cache\n")


def test_bench_ends_with_a_trap() -> None:
    """As a run does."""
    result = dla("bench", "trapping.dla", "--backend", "golden")
    assert result.exit_code == 4
    assert "trap[assert]" in result.stderr
