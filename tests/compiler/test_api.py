"""`dla.compile_model`: every form of a model, its options, and how much memory it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import mlp, perceptron, saved

import dla
from dla.compiler.passes import PASSES
from dla.isa.dtypes import DType


def outputs(compiled: dla.Compiled, **inputs: np.ndarray) -> np.ndarray:
    """The only output of a run on the golden machine."""
    (array,) = dla.Machine("golden").run(compiled.program, inputs).outputs.values()
    return array


def test_files_and_models_give_the_same_program(tmp_path: Path) -> None:
    """A path, as text or as Path, and a ModelProto: all but the name of the source is alike."""
    path = saved(perceptron(), tmp_path)
    x = np.ones((2, 3), np.float32)
    found = [outputs(dla.compile_model(m, bounds={"batch": 4}), x_0=x) for m in (path, str(path), perceptron())]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_graph_that_was_built_compiles() -> None:
    """The builder's graph, or the builder itself."""
    for pick in (lambda b: b, lambda b: b.graph):
        b = dla.GraphBuilder("double")
        x = b.input("x", DType.F32, (dla.symbol("n", 4),))
        b.output("y", b.ew("add", x, x))
        x_ = np.array([1, 2, 3], np.float32)
        np.testing.assert_array_equal(outputs(dla.compile_model(pick(b)), x=x_), [2, 4, 6])


def test_tensors_in_attributes_and_subgraphs_have_their_values(tmp_path: Path) -> None:
    """A Constant, and an initialiser of an If's branch, whose bytes stay in the mapped file."""
    k = numpy_helper.from_array(np.array([10, 20, 30], np.float32), "k")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Add", ["h", "k"], ["b"])], "then", [], [b], initializer=[k])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([1, 2, 3], np.float32))),
        helper.make_node("Add", ["x", "c"], ["h"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=[yes])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = dla.compile_model(saved(proto, tmp_path))
    np.testing.assert_array_equal(outputs(compiled, x=np.zeros(3, np.float32)), [11, 22, 33])


def test_sizes_may_be_named_as_the_model_names_them() -> None:
    """A dim called `batch*2` is `batch_2` in the program; either name is understood, and so is a nameless one's."""
    for name in ("batch*2", "batch_2"):
        compiled = dla.compile_model(perceptron(dim="batch*2"), bounds={name: 4})
        assert [dim.name for dim in compiled.program.dims] == ["batch_2"]
    proto = perceptron()
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert [d.name for d in dla.compile_model(proto, bounds={"x:0_dim_0": 4}).program.dims] == ["x_0_dim_0"]
    assert dla.compile_model(perceptron(dim="2nd"), bounds={"2nd": 4}).program.dims[0].name == "d_2nd"


def test_a_graph_whose_name_is_no_text_has_another(tmp_path: Path) -> None:
    """Protobuf gives such names as bytes."""
    path = tmp_path / "model.onnx"
    path.write_bytes(perceptron().SerializeToString().replace(b"perceptron", b"\xffperceptro"))
    assert dla.compile_model(path, bounds={"batch": 4}).program.name == "model"


def test_a_fixed_size_is_no_dim_of_the_program() -> None:
    """--fix specialises."""
    assert dla.compile_model(perceptron(), fixed={"batch": 3}).program.dims == ()


@pytest.mark.parametrize("skipped", PASSES)
def test_any_pass_may_be_left_out(skipped: str) -> None:
    """The program is another, its results are not: a convolution with batch norm, and what follows it."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "scale": (4,), "bias": (4,), "mean": (4,), "v": (4, 5)}
    tensors = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    tensors.append(numpy_helper.from_array(np.full(4, 2, np.float32), "var"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    image = rng.standard_normal((2, 3, 6, 6)).astype(np.float32)
    whole, less = (outputs(dla.compile_model(proto, bounds={"n": 2}, skip=s), x=image) for s in ([], [skipped]))
    np.testing.assert_allclose(less, whole, rtol=1e-4, atol=1e-5)


def test_progress_names_each_step() -> None:
    """What a spinner shows: reading, importing, the passes, lowering, verifying."""
    steps: list[str] = []
    dla.compile_model(perceptron(), bounds={"batch": 1}, progress=steps.append)
    assert steps[:2] == ["reading the model", "importing"]
    assert "pass fold" in steps
    assert steps[-2:] == ["lowering", "verifying"]


def test_sources_are_in_the_program(tmp_path: Path) -> None:
    """The debug section names the model's file, and each instruction's node."""
    debug = dla.compile_model(saved(perceptron(), tmp_path), bounds={"batch": 1}).program.debug
    assert debug is not None
    assert debug.file == "model.onnx"
    assert any("fc2" in text for _, _, text in debug.comments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "f64"}, "computed in f32, f16, bf16, not in f64"),
        ({"dtype": DType.I8}, "not in i8"),
        ({"bounds": {"batch": "64"}}, "dim 'batch' cannot be '64'"),
        ({"bounds": {"n": 1}}, "no symbolic dim 'n'"),
        ({"bounds": {"batch": -1}}, "cannot be -1"),
        ({"values": {"z": 1}}, "no input 'z'"),
        ({"values": {"x:0": np.ones((2, 3), np.int64)}}, "input 'x:0' must be float32, not int64"),
        ({"values": {"x:0": np.ones((2, 4), np.float32)}}, r"must have shape \[batch, 3\], not \[2, 4\]"),
        ({"bounds": {"batch": 1}, "skip": ["x"]}, "there is no pass 'x'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    """Each with an InputError of its own."""
    with pytest.raises(dla.InputError, match=message):
        dla.compile_model(perceptron(), **options)


def test_a_graph_has_its_sizes_already() -> None:
    """Options for ONNX models do not fit it."""
    with pytest.raises(dla.InputError, match="for ONNX models"):
        dla.compile_model(dla.GraphBuilder("g"), bounds={"batch": 1})


def test_the_api_needs_no_onnx_for_graphs() -> None:
    """`import dla` and the builder work without the package."""
    code = (
        "import sys; sys.modules['onnx'] = None; import dla; from dla.isa.dtypes import DType\n"
        "b = dla.GraphBuilder('g'); b.output('y', b.ew('add', b.input('x', DType.F32, (4,)), 1.0))\n"
        "print(len(dla.compile_model(b).program.instructions))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "2\n"


def test_compiling_takes_less_than_three_times_the_weights(tmp_path: Path) -> None:
    """Of memory beyond what an empty process with the same modules has, from the model to the finished file."""
    rows = 4096
    tensors = [numpy_helper.from_array(np.full((rows, 2048), i, np.float32), f"w{i}") for i in range(2)]  # 64 MiB
    nodes = [
        helper.make_node("Gemm", ["x", "w0"], ["h"], transB=1),  # a transposed weight may be copied
        helper.make_node("MatMul", ["h", "w1"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2048])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2048])
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "model.onnx")
    onnx.save(mlp(), tmp_path / "small.onnx")
    code = """
import resource, sys, dla
from dla.cli import main
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
dla.compile_model("small.onnx")
before = peak()
try: main(["compile", "model.onnx"])
except SystemExit as end: assert end.code == 0
print(peak() - before, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert int(done.stderr.splitlines()[-1]) < 3 * rows * 2048 * 4 * 2


def test_what_is_no_model_or_no_program_is_refused(tmp_path: Path) -> None:
    """The likely slips: something else than a model, and what `compile_model` gives instead of its program."""
    with pytest.raises(dla.InputError, match="not a int"):
        dla.compile_model(3)
    compiled = dla.compile_model(mlp())
    with pytest.raises(dla.InputError, match="this is a Compiled") as error:
        dla.Machine("golden").run(compiled, {})
    assert "compile_model(...).program" in str(error.value)
    with pytest.raises(dla.InputError, match="this is a Compiled"):
        dla.save(compiled, tmp_path / "x.dlab")
    assert not list(tmp_path.iterdir())
