"""dla as a backend of ONNX: what goes in and out, sizes and values known only when it runs, old models, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra `dev`)")

from dla import onnx_backend  # noqa: E402  (it needs onnx)
from dla.isa.errors import BackendError, InputError, ModelError  # noqa: E402

FLOAT, DOUBLE, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64


def tensor(name: str, number: int, shape: list[Any] | None) -> Any:
    """The declaration of an input or output."""
    return onnx.helper.make_tensor_value_info(name, number, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 17) -> Any:
    """A model of `nodes`; the newest file format is not what matters here."""
    graph = onnx.helper.make_graph(nodes, "test", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def added(number: int = FLOAT, shape: tuple[Any, Any] = (["n", 2], ["n", 2]), opset: int = 17) -> Any:
    """Z = x + y."""
    node = onnx.helper.make_node("Add", ["x", "y"], ["z"])
    return model([node], [tensor("x", number, shape[0]), tensor("y", number, shape[1])],
                 [tensor("z", number, None)], opset)  # fmt: skip


def test_outputs_are_named_and_numbered() -> None:
    """Inputs come in order or by name; the result takes both, too."""
    ready = onnx_backend.prepare(added())
    x, y = np.ones((3, 2), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    for result in (ready.run([x, y]), ready.run({"y": y, "x": x})):
        assert np.array_equal(result[0], x + y)
        assert np.array_equal(result["z"], x + y)


def test_sizes_may_change_from_run_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set of shapes is compiled once."""
    compiled = []
    compile_model = onnx_backend.compile_model
    monkeypatch.setattr(onnx_backend, "compile_model", lambda *a, **k: compiled.append(k) or compile_model(*a, **k))
    ready = onnx_backend.prepare(added())
    for n in (1, 5, 1, 5):
        x = np.full((n, 2), n, np.float32)
        assert np.array_equal(ready.run([x, x])[0], 2 * x)
    assert [options["fixed"] for options in compiled] == [{"n": 1}, {"n": 5}]


def test_values_that_decide_shapes_are_taken_from_the_run() -> None:
    """A Reshape's target is an input here, and changes."""
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    ready = onnx_backend.prepare(
        model([node], [tensor("x", FLOAT, [2, 6]), tensor("shape", INT64, [2])], [tensor("y", FLOAT, None)])
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for shape in ([3, 4], [-1, 2], [3, 4]):
        assert np.array_equal(ready.run([x, np.array(shape)])[0], x.reshape(shape))


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.uint16, np.uint32, np.uint64])
def test_types_that_machines_lack_go_in_and_come_out(dtype: type) -> None:
    """They are held in others meanwhile."""
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.array([[1, 2], [3, 4]], dtype)
    (z,) = onnx_backend.run_model(added(number), [x, x])
    assert z.dtype == dtype
    assert np.array_equal(z, x + x)


def test_integers_wrap_as_the_declared_type_does() -> None:
    """i32 stands for u16, and the sum leaves u16."""
    x = np.full((1, 2), 65535, np.uint16)
    (z,) = onnx_backend.run_model(added(onnx.TensorProto.UINT16), [x, x])
    assert np.array_equal(z, np.full((1, 2), 65534, np.uint16))


def test_a_single_node_runs() -> None:
    """Types come from the arrays; attributes stay."""
    node = onnx.helper.make_node("Concat", ["a", "b"], ["c"], axis=1)
    a, b = np.ones((2, 1), np.float32), np.zeros((2, 3), np.float32)
    (c,) = onnx_backend.run_node(node, [a, b])
    assert np.array_equal(c, np.concatenate([a, b], 1))
    assert c.dtype == np.float32


def test_older_operator_sets_are_rewritten() -> None:
    """In opset 6 a PRelu has a slope per channel, and what is added is broadcast only where a node says so."""
    node = onnx.helper.make_node("PRelu", ["x", "slope"], ["y"])
    old = model([node], [tensor("x", FLOAT, [1, 3, 3]), tensor("slope", FLOAT, [3])], [tensor("y", FLOAT, [1, 3, 3])],
                opset=6)  # fmt: skip
    x, slope = -np.ones((1, 3, 3), np.float32), np.array([1, 2, 3], np.float32)
    assert np.array_equal(onnx_backend.run_model(old, [x, slope])[0], x * slope[:, None])


def test_what_cannot_be_rewritten_is_refused() -> None:
    """One error, which names the operator set: whether a sum broadcasts is not known without shapes."""
    node = onnx.helper.make_node("Add", ["x", "y"], ["z"], broadcast=1, axis=0)
    old = model([node], [tensor("x", FLOAT, None), tensor("y", FLOAT, None)], [tensor("z", FLOAT, None)], opset=6)
    with pytest.raises(ModelError, match=r"opset 6 is older than 12, and onnx\.version_converter cannot rewrite it"):
        onnx_backend.prepare(old)


def test_what_is_no_tensor_of_numbers_is_refused() -> None:
    """Sequences, optionals and strings."""
    given = tensor("x", FLOAT, [2])
    sequence = onnx.helper.make_tensor_sequence_value_info("s", FLOAT, [2])
    optional = onnx.helper.make_value_info("o", onnx.helper.make_optional_type_proto(given.type))
    text = tensor("t", onnx.TensorProto.STRING, [2])
    for kind, what in ((sequence, "s is a sequence, not"), (optional, "o is an optional, not"), (text, "type string")):
        node = onnx.helper.make_node("Identity", [kind.name], ["y"])
        with pytest.raises(ModelError, match=what):
            onnx_backend.prepare(model([node], [kind], [tensor("y", FLOAT, None)]))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((2, 2), np.float32), np.ones((3, 2), np.float32), r"input y must have shape \[n, 2\], not \[3, 2\]"),
        (np.ones((2, 3), np.float32), np.ones((2, 2), np.float32), r"input x must have shape \[n, 2\], not \[2, 3\]"),
        (np.ones(2, np.float32), np.ones((2, 2), np.float32), r"input x must have shape \[n, 2\], not \[2\]"),
        (np.ones((2, 2)), np.ones((2, 2), np.float32), "input x must be float32, not float64"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    """Before anything is compiled for them."""
    with pytest.raises(InputError, match=message):
        onnx_backend.prepare(added()).run([x, y])


def test_inputs_that_are_missing_or_unknown_are_refused() -> None:
    """By their names, or by their number."""
    ready, x = onnx_backend.prepare(added()), np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match="the model has 2 inputs, and 1 are given"):
        ready.run([x])
    with pytest.raises(InputError, match="input y is missing"):
        ready.run({"x": x})
    with pytest.raises(InputError, match="input w is not the model's"):
        ready.run({"x": x, "y": x, "w": x})


@pytest.mark.parametrize(
    ("number", "value", "held"),
    [(DOUBLE, np.array([[1e300]]), "f32"), (onnx.TensorProto.UINT64, np.array([[2**63]], np.uint64), "i64")],
)
def test_values_beyond_the_type_that_stands_in_are_refused(number: int, value: np.ndarray, held: str) -> None:
    """Rather than becoming infinite or negative."""
    with pytest.raises(InputError, match=f"input x has a value beyond {held}"):
        onnx_backend.run_model(added(number, ([1, 1], [1, 1])), [value, value])


def test_what_cannot_be_compiled_is_known_when_it_is_prepared() -> None:
    """Where no size is open."""
    node = onnx.helper.make_node("Det", ["x"], ["y"])
    with pytest.raises(ModelError, match="Det"):
        onnx_backend.prepare(model([node], [tensor("x", FLOAT, [2, 2])], [tensor("y", FLOAT, [])]))


def test_devices() -> None:
    """The processor always; others only where they are."""
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("TPU")
    assert not onnx_backend.supports_device("CUDA:7")
    with pytest.raises(BackendError, match="no device 'TPU': dla has 'CPU' and 'CUDA'"):
        onnx_backend.prepare(added(), device="TPU")


@pytest.mark.gpu
def test_the_gpu_is_the_device_cuda() -> None:
    """The same interface, another machine."""
    x = np.ones((3, 2), np.float32)
    assert np.array_equal(onnx_backend.run_model(added(), [x, x], device="CUDA")[0], 2 * x)
