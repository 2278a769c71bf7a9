"""The command line and .onnx models: `dla compile`, and models wherever a program is expected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from commandline import dla, files, process, write_programs
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, perceptron, relu

from dla.isa.container.layout import MAGIC
from dla.models import _MAX_CACHE_BYTES, _trim

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
BOUND = ("--bound", "batch=8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder with model.onnx and its input x.npy, and with a cache of its own, outside of it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DLA_CACHE", str(tmp_path / "cache"))
    onnx.save(perceptron(), "model.onnx")
    np.save("x.npy", X)
    return tmp_path


def expected() -> np.ndarray:
    """What the model computes for X, in f64."""
    w1, b1, w2 = (numpy_helper.to_array(t).astype(np.float64) for t in perceptron().graph.initializer)
    e = np.exp(np.maximum(X @ w1 + b1, 0) @ w2)
    return np.asarray(e / e.sum(axis=1, keepdims=True))


# -- dla compile


def test_a_model_becomes_a_program_in_the_current_folder() -> None:
    """MODEL.dlab runs and computes what the model does; the summary says what it holds and what is called otherwise."""
    result = dla("compile", "model.onnx", *BOUND)
    assert (result.exit_code, result.stderr) == (0, "wrote model.dlab\n")
    for text in ("GEMM", "SOFTMAX.soft", "weights", "x the lower bound", "at most 8", "x:0", "y:0"):
        assert text in result.stdout
    assert dla("run", "model.dlab", "-i", "x.npy", "-o", "y.npy").exit_code == 0
    np.testing.assert_allclose(np.load("y.npy"), expected(), rtol=1e-5)


def test_the_same_model_gives_the_same_bytes() -> None:
    """Nothing of a program depends on when, where or in which process it was compiled."""
    assert dla("compile", "model.onnx", *BOUND, "-o", "a.dlab").exit_code == 0
    with process("compile", "model.onnx", *BOUND, "-o", "b.dlab") as other:
        other.communicate()
    assert Path("a.dlab").read_bytes() == Path("b.dlab").read_bytes()


def test_weights_may_stand_beside_the_program() -> None:
    """--external keeps them in a .safetensors file, by names made from the model's."""
    from safetensors.numpy import load_file

    assert dla("compile", "model.onnx", *BOUND, "-o", "m.dlab", "--external", "m.safetensors").exit_code == 0
    assert {"layer.1_w", "layer.1_b", "layer.2_w"} == load_file("m.safetensors").keys()
    assert dla("run", "m.dlab", "-i", "x.npy").exit_code == 0


@pytest.mark.parametrize(
    ("output", "external"), [("model.onnx", "w.safetensors"), ("m.dlab", "model.onnx"), ("m.dlab", "m.dlab")]
)
def test_no_file_is_written_over_the_model_or_the_program(output: str, external: str) -> None:
    """Weights cannot stand in the program's own file, and neither of them in the model's."""
    before = Path("model.onnx").read_bytes()
    result = dla("compile", "model.onnx", *BOUND, "-o", output, "--external", external)
    assert result.exit_code == 2
    assert Path("model.onnx").read_bytes() == before
    assert files() == {"model.onnx", "x.npy"}


def test_values_have_the_sizes_that_are_fixed() -> None:
    """--fix batch=5 and a value of 6 rows contradict each other."""
    result = dla("compile", "model.onnx", "--fix", "batch=5", "--value", "x:0=x.npy")
    assert result.exit_code == 2
    assert "must have shape [5, 3], not [6, 3]" in result.stderr


def test_stdout_takes_the_bytecode_and_stderr_the_summary() -> None:
    """`dla compile model.onnx -o - | dla inspect -`."""
    result = dla("compile", "model.onnx", *BOUND, "-o", "-")
    assert result.stdout_bytes.startswith(MAGIC)
    assert "SOFTMAX.soft" in result.stderr
    assert files() == {"model.onnx", "x.npy"}


def test_explain_shows_the_graph_after_each_pass() -> None:
    """Every pass is named with its number of nodes; with a name, only that pass is shown."""
    shown = dla("compile", "model.onnx", *BOUND, "--explain").stdout
    assert shown.index("-- import: 5 nodes") < shown.index("-- epilogue: 3 nodes (-1 ACT.relu, -1 EW.add)")
    assert "-- dead: no change" in shown
    one = dla("compile", "model.onnx", *BOUND, "--explain", "epilogue").stdout
    assert "graph perceptron" in one
    assert "-- import" not in one


def test_a_pass_may_be_left_out() -> None:
    """Without `epilogue`, the bias and the activation are instructions of their own."""
    facts = json.loads(dla("compile", "model.onnx", *BOUND, "--skip", "epilogue", "--json").stdout)
    assert facts["mix"] == {"GEMM": 2, "EW.add": 1, "ACT.relu": 1, "SOFTMAX.soft": 1, "HALT": 1}


def test_weights_are_cut_for_ranks() -> None:
    """--tensor-parallel: a program for so many, which `dla run` runs on them; what is whole is said."""
    whole, cut = (
        dla("compile", "model.onnx", *BOUND, *extra, "-o", f"{name}.dlab")
        for name, extra in (("whole", ()), ("cut", ("--tensor-parallel", "2", "--external", "cut.safetensors")))
    )
    assert (whole.exit_code, cut.exit_code) == (0, 0), cut.stderr
    assert "bytes for each of 2 ranks" in cut.stdout
    assert "ISA 1.3, 2 ranks:" in dla("inspect", "cut.dlab").stdout
    np.save("x.npy", np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
    for name in ("whole", "cut"):
        run = dla("run", f"{name}.dlab", "-i", "x_0=x.npy", "-o", f"{name}.npy")
        assert run.exit_code == 0, run.stderr
    np.testing.assert_allclose(np.load("cut.npy"), np.stack([np.load("whole.npy")] * 2), rtol=1e-5)
    facts = json.loads(dla("compile", "model.onnx", *BOUND, "--tensor-parallel", "2", "--json").stdout)
    assert (facts["ranks"], facts["mix"]["ALLREDUCE.sum"]) == (2, 1)
    uneven = dla("compile", "model.onnx", *BOUND, "--tensor-parallel", "7")
    assert (uneven.exit_code, uneven.stdout) == (3, "")
    assert "nothing of the model can be cut for 7 ranks" in uneven.stderr


def test_json_has_what_the_summary_says() -> None:
    """Names, work, memory and passes, as one object."""
    facts = json.loads(dla("compile", "model.onnx", *BOUND, "--json").stdout)
    assert facts["mix"] == {"GEMM": 2, "SOFTMAX.soft": 1, "HALT": 1}
    assert (facts["inputs"], facts["outputs"]) == ({"x:0": "x_0"}, {"y:0": "y_0"})
    assert [(dim["name"], dim["bound"]) for dim in facts["dims"]] == [("batch", 8)]
    assert facts["scratch_lower_bound"] <= facts["scratch_bytes"] < 1024
    assert facts["passes"][0]["name"] == "import"
    assert facts["output"] == "model.dlab"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_network_may_be_computed_in_a_smaller_type(dtype: str) -> None:
    """--dtype halves the weights."""
    full, half = (
        json.loads(dla("compile", "model.onnx", *BOUND, "--json", *extra).stdout)["weight_bytes"]
        for extra in ((), ("--dtype", dtype))
    )
    assert half < full


def test_an_input_may_become_a_constant() -> None:
    """--value gives what shapes depend on; it is no input of the program then."""
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"], name="r")
    proto = model([reshape], inputs=("x",))
    proto.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    onnx.save(proto, "reshape.onnx")
    np.save("shape.npy", np.array([3, 2]))
    assert "--value shape=FILE.npy" in dla("compile", "reshape.onnx").stderr
    facts = json.loads(dla("compile", "reshape.onnx", "--value", "shape=shape.npy", "--json").stdout)
    assert facts["inputs"] == {"x": "x"}


# -- what can go wrong


def bad_inputs() -> dict[str, Callable[[], Result]]:
    """Name -> what is done wrong."""
    write_programs()
    whole = Path("model.onnx").read_bytes()
    Path("truncated.onnx").write_bytes(whole[: len(whole) // 2])
    nodes = [
        helper.make_node("NoSuch", ["x"], ["h"], name="first"),
        helper.make_node("Nor", ["h"], ["y"], name="second"),
    ]
    onnx.save(model(nodes), "unsupported.onnx")
    doubles = relu()
    for info in (doubles.graph.input[0], doubles.graph.output[0]):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    onnx.save(doubles, "doubles.onnx")
    return {
        "missing file": lambda: dla("compile", "none.onnx"),
        "a program": lambda: dla("compile", "double.dla"),
        "truncated": lambda: dla("compile", "truncated.onnx", *BOUND),
        "unsupported operators": lambda: dla("compile", "unsupported.onnx"),
        "unsupported type": lambda: dla("compile", "doubles.onnx"),
        "no bound": lambda: dla("compile", "model.onnx"),
        "unknown dim": lambda: dla("compile", "model.onnx", "--bound", "sequence=8"),
        "no number": lambda: dla("compile", "model.onnx", "--fix", "batch=many"),
        "bound and fixed": lambda: dla("compile", "model.onnx", *BOUND, "--fix", "batch=1"),
        "huge bound": lambda: dla("compile", "model.onnx", "--bound", f"batch={2**50}"),
        "unknown input": lambda: dla("compile", "model.onnx", *BOUND, "--value", "z=x.npy"),
        "value of another shape": lambda: dla("compile", "model.onnx", *BOUND, "--value", "x:0=long.npy"),
        "value of no input": lambda: dla("compile", "model.onnx", *BOUND, "--value", "x.npy"),
        "unknown pass": lambda: dla("compile", "model.onnx", *BOUND, "--skip", "magic"),
        "explain takes the model": lambda: dla("compile", "--explain", "model.onnx"),
        "asm: a model": lambda: dla("asm", "model.onnx"),
        "weights beside stdout": lambda: dla("compile", "model.onnx", *BOUND, "-o", "-", "--external", "w.safetensors"),
        "no such folder": lambda: dla("compile", "model.onnx", *BOUND, "-o", "none/m.dlab"),
        "run: no bound": lambda: dla("run", "model.onnx", "--random", "1"),
        "run: unknown input": lambda: dla("run", "model.onnx", "-i", "z=x.npy"),
        "run: bound of a program": lambda: dla("run", "double.dla", "-i", "y.npy", "--bound", "n=4"),
        "run: missing model": lambda: dla("run", "none.onnx"),
        "run: wrong shape": lambda: dla("run", "model.onnx", *BOUND, "-i", "long.npy"),
        "compare: unknown backend": lambda: dla("compare", "model.onnx", "--random", "1", "--backends", "golden,tpu"),
        "compare: nothing": lambda: dla("compare", "model.onnx", "--random", "1", "--backends", "golden"),
        "compare: a program": lambda: dla("compare", "double.dla", "--random", "1", "--backends", "golden,onnxruntime"),
    }  # fmt: skip


EXPECTED = {
    "missing file": (2, "error: there is no file 'none.onnx'"),
    "a program": (3, "error: double.dla: it is damaged, or no ONNX model"),
    "truncated": (3, "error: truncated.onnx: it is truncated or damaged"),
    "unsupported operators": (3, "error: operators that are not supported: NoSuch (node first); Nor (node second)"),
    "unsupported type": (3, "error: input x has element type double, which the machine lacks"),
    "no bound": (3, "error: these dims have no bound: batch\n  help: --bound batch=64"),
    "unknown dim": (2, "error: the model has no symbolic dim 'sequence'\n  help: its symbolic dims: batch"),
    "no number": (2, "error: --fix batch=many does not set a dim"),
    "bound and fixed": (2, "error: dim 'batch' has a bound and is fixed"),
    "huge bound": (2, "error: dim 'batch' cannot be"),
    "unknown input": (2, "error: the model has no input 'z'\n  help: its inputs: x:0"),
    "value of another shape": (2, "error: input 'x:0' must have shape [batch, 3], not [4]"),
    "value of no input": (2, "error: 'x.npy' does not say which input it is for"),
    "unknown pass": (2, "error: there is no pass 'magic'"),
    "explain takes the model": (2, "error: --explain: there is no pass 'model.onnx'"),
    "asm: a model": (3, "model.onnx:1:1: error: this is a model, not text\n  help: `dla compile` takes models"),
    "weights beside stdout": (2, "error: --external needs a file to stand beside"),
    "no such folder": (2, "error: cannot write 'none/m.dlab': No such file or directory"),
    "run: no bound": (3, "error: these dims have no bound: batch"),
    "run: unknown input": (2, "error: the program has no input 'z' (from 'z=x.npy')\n  help: its inputs: x:0"),
    "run: bound of a program": (2, "error: --bound is for .onnx models, and 'double.dla' is a program"),
    "run: missing model": (2, "error: there is no file 'none.onnx'"),
    "run: wrong shape": (2, "error: input 'x_0' must have shape [batch <= 8, 3], not [4]"),
    "compare: unknown backend": (2, "error: --backends golden,tpu: there is no backend 'tpu'"),
    "compare: nothing": (2, "error: --backends golden compares nothing"),
    "compare: a program": (2, "error: onnxruntime runs .onnx models, and this is a program"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_input_gets_its_exit_code_and_one_message(name: str) -> None:
    """Each mistake ends with its exit code, one clear message and no file that was not there before."""
    np.save("long.npy", np.ones(4, np.float32))
    cases = bad_inputs()
    assert cases.keys() == EXPECTED.keys()
    before = files()
    result = cases[name]()
    code, message = EXPECTED[name]
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stderr.count("error: ") == 1
    assert files() == before


@pytest.mark.parametrize(
    ("package", "command", "remedy"),
    [("onnx", ["compile", "model.onnx", *BOUND], "pip install 'dla[onnx]'"),
     ("onnxruntime", ["compare", "model.onnx", *BOUND, "--random", "1", "--backends", "golden,onnxruntime"],
      "pip install onnxruntime")],
)  # fmt: skip
def test_a_missing_package_is_named(
    package: str, command: list[str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Neither onnx nor onnxruntime is a must: without them there is one message, and exit code 6."""
    monkeypatch.setitem(sys.modules, package, None)
    result = dla(*command)
    assert result.exit_code == 6
    assert remedy in result.stderr


# -- models where programs are expected


def test_run_takes_a_model_and_its_own_names() -> None:
    """Open dims take their bounds from the inputs, and say so; inputs and outputs may be called as in the model."""
    result = dla("run", "model.onnx", "-i", "x:0=x.npy", "-o", "y:0=y.npy", "--backend", "golden")
    assert result.exit_code == 0, result.output
    assert "batch <= 6, as this run needs it" in result.stderr
    np.testing.assert_allclose(np.load("y.npy"), expected(), rtol=1e-5)
    same = dla("run", "model.onnx", "-i", "x_0=x.npy", "-o", "y_0=z.npy", "--backend", "golden")
    assert same.exit_code == 0, same.output
    assert Path("y.npy").read_bytes() == Path("z.npy").read_bytes()


def test_a_dim_that_is_set_is_its_own_bound() -> None:
    """--set batch=2 with made-up inputs needs no --bound."""
    result = dla("run", "model.onnx", "--random", "1", "--set", "batch=2", "--json", "--backend", "golden")
    assert json.loads(result.stdout)["dims"] == {"batch": 2}


def test_other_commands_take_models_too() -> None:
    """dis, inspect and verify; the text names the weights and does not list them."""
    text = dla("dis", "model.onnx", *BOUND).stdout
    assert ".input   x_0" in text
    assert "hex(" not in text
    assert json.loads(dla("inspect", "model.onnx", *BOUND, "--json").stdout)["mix"]["GEMM"] == 2
    assert dla("verify", "model.onnx", *BOUND).stdout == "model.onnx: ok, 4 instructions\n"


def compiled(*options: str) -> bool:
    """Whether `dla verify model.onnx` had to compile it."""
    result = dla("verify", "model.onnx", *options)
    assert result.exit_code == 0, result.output
    return "compiled model.onnx" in result.stderr


def test_a_model_is_compiled_once() -> None:
    """The second time it comes from the cache, unless the model or an option is another."""
    assert compiled(*BOUND)
    assert not compiled(*BOUND)
    assert compiled("--bound", "batch=9")
    assert compiled(*BOUND, "--dtype", "f16")
    assert compiled(*BOUND, "--math", "tf32")
    changed = perceptron()
    changed.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "layer.1/b"))
    onnx.save(changed, "model.onnx")
    assert compiled(*BOUND)
    assert not compiled(*BOUND)


def test_weights_beside_the_model_count_too() -> None:
    """A change of external data is a change of the model."""
    onnx.save(perceptron(external=True), "model.onnx")
    assert compiled(*BOUND)
    assert not compiled(*BOUND)
    data = bytearray(Path("weights.bin").read_bytes())
    data[0] ^= 1
    Path("weights.bin").write_bytes(data)
    assert compiled(*BOUND)


def test_a_damaged_entry_is_compiled_again(folder: Path) -> None:
    """Neither a truncated program nor other weights are believed."""
    assert compiled(*BOUND)
    for damaged in sorted((folder / "cache").iterdir()):
        damaged.write_bytes(damaged.read_bytes()[:-3] + b"abc")
        assert compiled(*BOUND)
        assert not compiled(*BOUND)


def test_without_a_cache_everything_works(folder: Path) -> None:
    """Where the folder cannot be made, the model is compiled each time."""
    (folder / "cache").write_text("a file")
    for _ in range(2):
        result = dla("run", "model.onnx", "-i", "x.npy", "--backend", "golden")
        assert result.exit_code == 0, result.output
        assert "compiled model.onnx; not kept: " in result.stderr


def test_processes_may_compile_at_once(folder: Path) -> None:
    """Each finds a whole entry or makes one: all get the same result."""
    running = [process("run", "model.onnx", "-i", "x.npy", "--backend", "golden") for _ in range(3)]
    results = {p.communicate()[0] for p in running}
    assert [p.returncode for p in running] == [0, 0, 0]
    assert len(results) == 1
    assert {path.suffix for path in (folder / "cache").iterdir()} == {".dlab", ".safetensors"}


def test_what_was_not_used_for_longest_goes_first(folder: Path) -> None:
    """The cache has a limit; files that are not its own stay."""
    import os

    for age, name in enumerate(("new", "old")):
        path = folder / f"{name}-{'0' * 32}.dlab"
        with path.open("wb") as file:
            file.truncate(_MAX_CACHE_BYTES * 2 // 3)  # a hole: takes no space
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder / "notes.dlab").touch()
    _trim(folder)
    assert sorted(p.name for p in folder.glob("*.dlab")) == [f"new-{'0' * 32}.dlab", "notes.dlab"]


# -- onnxruntime beside the reference


def test_onnxruntime_is_within_the_bounds_of_the_reference() -> None:
    """The original model and the compiled program agree, for any batch."""
    result = dla("compare", "model.onnx", "-i", "x.npy", "--backends", "golden,golden-f32,onnxruntime", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)["comparisons"]
    assert [(f["backend"], f["name"], f["ok"]) for f in facts] == [
        ("golden-f32", "y_0", True), ("onnxruntime", "y_0", True)
    ]  # fmt: skip
    assert facts[1]["max_error"] > 0  # f32 against f64: it did run


def test_a_comparison_of_nan_is_warned_of() -> None:
    """Made-up inputs may lead to NaN everywhere, which is equal and tells nothing."""
    onnx.save(model([helper.make_node("Log", ["x"], ["y"], name="l")]), "log.onnx")
    result = dla("compare", "log.onnx", "--random", "1", "--backends", "golden,onnxruntime")
    assert result.exit_code == 0, result.output
    assert "warning: output 'y' has NaN elements" in result.stderr


def test_inputs_that_are_constants_reach_onnxruntime() -> None:
    """The program has no such input any more; the model has."""
    proto = model([helper.make_node("Add", ["x", "z"], ["y"], name="a")], inputs=("x", "z"))
    onnx.save(proto, "add.onnx")
    np.save("z.npy", np.full((2, 3), 7, np.float32))
    result = dla("compare", "add.onnx", "--value", "z=z.npy", "--random", "1", "--backends", "golden,onnxruntime")
    assert result.exit_code == 0, result.output


def test_onnxruntime_gets_the_types_of_the_model() -> None:
    """A model of f64, held as f32: its inputs are widened, its outputs rounded."""
    proto = relu()
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    onnx.save(proto, "doubles.onnx")
    result = dla("compare", "doubles.onnx", "--substitute-types", "--random", "1", "--backends", "golden,onnxruntime")
    assert result.exit_code == 0, result.output


@pytest.mark.gpu
def test_three_machines_agree() -> None:
    """The GPU and onnxruntime beside the reference."""
    result = dla("compare", "model.onnx", "-i", "x.npy", "--backends", "golden,gpu,onnxruntime")
    assert result.exit_code == 0, result.output
