"""Values of tensors: every type by either way of storing it, and sizes that lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved, with_tensor

from dla.compiler.onnx.loader import from_proto, load
from dla.isa.errors import ModelError

VALUES: Mapping[str, tuple[list[float], Any]] = {
    "FLOAT": ([0.5, -1.5, np.inf], np.float32),
    "DOUBLE": ([0.5, -1.5, 1e300], np.float64),
    "FLOAT16": ([0.5, -1.5, 65504.0], np.float16),
    "BFLOAT16": ([0.5, -1.5, 2.0**100], ml_dtypes.bfloat16),
    "FLOAT8E4M3FN": ([0.5, -1.5, 448.0], ml_dtypes.float8_e4m3fn),
    "FLOAT8E5M2": ([0.5, -1.5, 57344.0], ml_dtypes.float8_e5m2),
    "INT8": ([-128, 0, 127], np.int8),
    "UINT8": ([0, 1, 255], np.uint8),
    "INT16": ([-(2**15), 0, 2**15 - 1], np.int16),
    "UINT16": ([0, 1, 2**16 - 1], np.uint16),
    "INT32": ([-(2**31), 0, 2**31 - 1], np.int32),
    "UINT32": ([0, 1, 2**32 - 1], np.uint32),
    "INT64": ([-(2**63), 0, 2**63 - 1], np.int64),
    "UINT64": ([0, 1, 2**64 - 1], np.uint64),
    "BOOL": ([1, 0, 1], np.bool_),
    "INT4": ([-8, 0, 7], ml_dtypes.int4),
    "UINT4": ([0, 1, 15], ml_dtypes.uint4),
}


@pytest.mark.parametrize("name", VALUES)
def test_raw_data_of_every_type(tmp_path: Path, name: str) -> None:
    """From a file and from memory: equal, read-only, of the right type."""
    values, dtype = VALUES[name]
    expected = np.array(values, dtype)
    proto = with_tensor(numpy_helper.from_array(expected, "w"))
    assert proto.graph.initializer[0].HasField("raw_data")
    for model in (load(saved(proto, tmp_path)), from_proto(proto)):
        array = model.initialisers()["w"]
        assert array.dtype == dtype
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", VALUES)
def test_typed_data_of_every_type(name: str) -> None:
    """Values in the field of their type, as onnx.helper writes them."""
    values, dtype = VALUES[name]
    tensor = helper.make_tensor("w", TensorProto.DataType.Value(name), [3, 1], np.array(values, dtype))
    assert not tensor.HasField("raw_data")
    array = from_proto(with_tensor(tensor)).initialisers()["w"]
    assert array.dtype == dtype
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, np.array(values, dtype).reshape(3, 1))


def test_scalars_and_tensors_without_elements() -> None:
    """Shapes [] and [0, 2**40]."""
    scalar = helper.make_tensor("w", TensorProto.FLOAT, [], [2.0])
    assert from_proto(with_tensor(scalar)).initialisers()["w"] == np.float32(2)
    empty = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 2**40])
    assert from_proto(with_tensor(empty)).initialisers()["w"].shape == (0, 2**40)


def test_floats_whose_bits_were_extended_by_their_sign() -> None:
    """Some writers put bits of f16 into int32_data as if they were an i16."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[1], int32_data=[-(2**14)])
    assert from_proto(with_tensor(tensor)).initialisers()["w"][0] == np.float16(-2)


# -- lies


def tensor(**fields: Any) -> TensorProto:
    """An initialiser `w` of f32 and shape [2, 3] unless `fields` say otherwise."""
    return TensorProto(**({"name": "w", "data_type": TensorProto.FLOAT, "dims": [2, 3]} | fields))


def segmented() -> TensorProto:
    """A tensor that claims to be a part of one."""
    return tensor(segment=TensorProto.Segment(begin=0, end=24))


REFUSED: Mapping[str, tuple[Callable[[], TensorProto], str]] = {
    "too few bytes": (lambda: tensor(raw_data=bytes(20)), "tensor 'w' of shape [2, 3] needs 24 bytes, but has 20"),
    "too many bytes": (lambda: tensor(raw_data=bytes(25)), "tensor 'w' of shape [2, 3] needs 24 bytes, but has 25"),
    "too few values": (lambda: tensor(float_data=[1.0]), "needs 6 values in float_data, but has 1"),
    "no values": (tensor, "needs 6 values in float_data, but has 0"),
    "values of another type": (lambda: tensor(int32_data=[1] * 6), "needs 6 values in float_data, but has 0"),
    "values in two places": (lambda: tensor(raw_data=bytes(24), float_data=[0.0] * 6), "more than one place"),
    "odd 4-bit elements": (
        lambda: tensor(data_type=TensorProto.INT4, dims=[5], raw_data=bytes(2)), "needs 3 bytes, but has 2"
    ),
    "a huge shape": (lambda: tensor(dims=[2**31, 2**20]), "needs 2,251,799,813,685,248 values in float_data"),
    "an overflowing shape": (lambda: tensor(dims=[2**40, 2**40]), "which no array has"),
    "a product that wraps to 0": (lambda: tensor(dims=[2**32, 2**32]), "which no array has"),
    "a negative dim": (lambda: tensor(dims=[-1, 3]), "has the shape [-1, 3], which no array has"),
    "too many dims": (lambda: tensor(dims=[1] * 65, float_data=[1.0]), "which no array has"),
    "no type": (lambda: tensor(data_type=0), "has elements of type UNDEFINED, which dla does not read"),
    "an unknown type": (lambda: tensor(data_type=99), "has elements of type 99, which dla does not read"),
    "strings": (
        lambda: tensor(data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]),
        "tensor 'w' has elements of type STRING, which dla does not read",
    ),
    "complex numbers": (
        lambda: tensor(data_type=TensorProto.COMPLEX64, dims=[1], raw_data=bytes(8)), "elements of type COMPLEX64"
    ),
    "segments": (segmented, "is split into segments"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_and_types_that_lie(tmp_path: Path, case: str) -> None:
    """Refused on loading, before any value is asked for; in a file and in memory."""
    make, message = REFUSED[case]
    proto = with_tensor(make())
    path = saved(proto, tmp_path)
    for read in (lambda: load(path), lambda: from_proto(proto)):
        with pytest.raises(ModelError) as caught:
            read()
        assert message in caught.value.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_type": TensorProto.BOOL, "raw_data": b"\x02"}, "a bool is neither 0 nor 1"),
        ({"data_type": TensorProto.BOOL, "int32_data": [2]}, "a bool is neither 0 nor 1"),
        ({"data_type": TensorProto.INT8, "int32_data": [128]}, "a value in int32_data is beyond its type"),
        ({"data_type": TensorProto.UINT8, "int32_data": [-1]}, "a value in int32_data is beyond its type"),
        ({"data_type": TensorProto.FLOAT16, "int32_data": [2**16]}, "a value in int32_data is beyond its type"),
        ({"data_type": TensorProto.UINT32, "uint64_data": [2**32]}, "a value in uint64_data is beyond its type"),
    ],
)
def test_values_beyond_their_type(fields: dict[str, Any], message: str) -> None:
    """Found when the values are asked for."""
    model = from_proto(with_tensor(tensor(dims=[1], **fields)))
    with pytest.raises(ModelError) as caught:
        model.initialisers()
    assert caught.value.message == f"tensor 'w': {message}"


def test_control_characters_in_the_name() -> None:
    """A message drives no terminal."""
    with pytest.raises(ModelError) as caught:
        from_proto(with_tensor(tensor(name="\x1b[2J")))
    assert caught.value.message.startswith(r"tensor '\x1b[2J' of shape")


def test_initialisers_of_a_graph_inside_a_node(tmp_path: Path) -> None:
    """Their values are asked for one by one."""
    proto = with_tensor(numpy_helper.from_array(np.ones((2, 3), np.float32), "w"))
    inside = onnx.GraphProto(initializer=[numpy_helper.from_array(np.arange(5), "k")])
    proto.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=inside))
    found = load(saved(proto, tmp_path))
    np.testing.assert_array_equal(found.array(found.proto.graph.node[1].attribute[0].g.initializer[0]), np.arange(5))
