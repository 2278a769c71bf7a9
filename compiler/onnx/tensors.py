"""Values of ONNX tensors as arrays: read-only, not copied where the file holds them as they are in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from dla.compiler.onnx.external import Folder
from dla.isa.dtypes import Array
from dla.isa.errors import ModelError
from dla.isa.names import shown
from dla.isa.npy import is_possible

if TYPE_CHECKING:
    import onnx

# By field of typed values (which hold what raw_data does not): names of TensorProto.DataType and element types.
_TYPES_BY_FIELD: dict[str, dict[str, Any]] = {
    "float_data": {"FLOAT": np.float32},
    "double_data": {"DOUBLE": np.float64},
    "int64_data": {"INT64": np.int64},
    "uint64_data": {"UINT32": np.uint32, "UINT64": np.uint64},
    "int32_data": {
        "INT32": np.int32, "INT16": np.int16, "INT8": np.int8, "UINT16": np.uint16, "UINT8": np.uint8,
        "BOOL": np.bool_, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16,
        "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "FLOAT8E5M2": ml_dtypes.float8_e5m2, "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "INT4": ml_dtypes.int4, "UINT4": ml_dtypes.uint4, "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
        "INT2": ml_dtypes.int2, "UINT2": ml_dtypes.uint2,
    },
}  # fmt: skip
_TYPES = {name: (np.dtype(t), field) for field, types in _TYPES_BY_FIELD.items() for name, t in types.items()}
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}  # several elements to a byte
_MAX_EMBEDDED = 2**28
_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


@dataclass(frozen=True)
class _Layout:
    """What a tensor must hold: `units` values of `field`, or as many of `dtype` in raw data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    field: str
    bits: int  # of an element; less than 8 where a unit has several elements

    @property
    def units(self) -> int:
        elements = math.prod(self.shape)
        return elements if self.bits >= 8 else -(-elements * self.bits // 8)

    @property
    def nbytes(self) -> int:
        return self.units * self.dtype.itemsize


class Values:
    """Where the values of a model's tensors are: in its mapped file, in its protobuf, and in files beside it."""

    def __init__(self, data: memoryview, folder: Path | None) -> None:
        self._data = data
        self._folder = Folder(folder)
        self._embedded = 0

    @property
    def files(self) -> dict[str, memoryview]:
        """What the model is read from: its own file, called "", and those of external data by their paths."""
        return {"": self._data, **self._folder.files}

    def check(self, tensor: onnx.TensorProto) -> None:
        """Raise ModelError unless `tensor` has a known type, a possible shape, and values of just that size."""
        self._raw(tensor, _layout(tensor))

    def embed(self, tensor: onnx.TensorProto) -> None:
        """`check`, and take external data of `tensor` into the protobuf."""
        raw = self._raw(tensor, _layout(tensor))
        if raw is not None and tensor.data_location == tensor.EXTERNAL:
            self._embedded += len(raw)
            if self._embedded > _MAX_EMBEDDED:  # many attributes may name one file
                raise ModelError(f"attributes have more than {_MAX_EMBEDDED:,} bytes of external data",
                                 hint="make them initialisers")  # fmt: skip
            tensor.raw_data = bytes(raw)
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The values of `tensor`: an array of its shape, read-only. Elements of 2 and 4 bits take a byte each.

        Not copied from a mapped file (so perhaps not aligned); copied from a protobuf. Raises ModelError.
        """
        layout = _layout(tensor)
        raw = self._raw(tensor, layout)
        if raw is None:
            units = _from_field(tensor, layout)
        else:
            units = np.frombuffer(raw, np.uint8 if layout.bits < 8 else _stored(layout.dtype))
        if layout.bits < 8:
            units = _unpacked(units, layout)
        elif layout.dtype == np.bool_ and np.any(units > 1):
            raise ModelError(f"{_where(tensor)}: a bool is neither 0 nor 1")
        array = units.view(layout.dtype).reshape(layout.shape)
        array.flags.writeable = False
        return array

    def _raw(self, tensor: onnx.TensorProto, layout: _Layout) -> memoryview | bytes | None:
        """The bytes of `tensor`, after a check of their number; None if its values are in the field of its type."""
        raw = tensor.HasField("raw_data") or tensor.HasField("segment")
        external = tensor.data_location == tensor.EXTERNAL
        filled = [field for field in _FIELDS if len(getattr(tensor, field))]
        if raw + external + len(filled) > 1:
            raise ModelError(f"{_where(tensor)} has its values in more than one place")
        if external:
            return self._folder.values(tensor, layout.nbytes)
        if not raw:
            found, needed, unit = len(getattr(tensor, layout.field)), layout.units, f"values in {layout.field}"
        else:
            found = tensor.segment.end - tensor.segment.begin if tensor.HasField("segment") else len(tensor.raw_data)
            needed, unit = layout.nbytes, "bytes"
        if found != needed:
            raise ModelError(f"{_where(tensor)} of shape {list(layout.shape)} needs {needed:,} {unit}, "
                             f"but has {found:,}")  # fmt: skip
        if not raw:
            return None
        if tensor.HasField("segment"):
            if not 0 <= tensor.segment.begin <= tensor.segment.end <= len(self._data):
                raise ModelError(f"{_where(tensor)} is split into segments, which dla does not read")
            return self._data[tensor.segment.begin : tensor.segment.end]
        return tensor.raw_data


def _where(tensor: onnx.TensorProto) -> str:
    return f"tensor '{shown(tensor.name)}'"


def _layout(tensor: onnx.TensorProto) -> _Layout:
    names = {code: name for name, code in tensor.DataType.items()}
    name = names.get(tensor.data_type, str(tensor.data_type))
    if name not in _TYPES:
        raise ModelError(f"{_where(tensor)} has elements of type {name}, which dla does not read")
    dtype, field = _TYPES[name]
    shape = tuple(tensor.dims)
    if not is_possible(shape, dtype.itemsize):
        raise ModelError(f"{_where(tensor)} has the shape {shown(list(shape))}, which no array has")
    return _Layout(shape, dtype, field, _PACKED_BITS.get(name, dtype.itemsize * 8))


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type to read elements as: integers of the same size where a value may be no valid element, or not NumPy's."""
    return dtype if dtype.kind in "iuf" else np.dtype(f"u{dtype.itemsize}")


def _from_field(tensor: onnx.TensorProto, layout: _Layout) -> Array:
    """The values in the field of the tensor's type, as `_stored` elements."""
    wide = {"float_data": np.float32, "double_data": np.float64, "int32_data": np.int32, "int64_data": np.int64}
    values = np.asarray(getattr(tensor, layout.field), dtype=wide.get(layout.field, np.uint64))
    if layout.field not in ("int32_data", "uint64_data"):
        return values
    # Floats are in int32_data by their bits, which some writers extend by their sign.
    is_integer = layout.dtype.kind in "iu" and layout.bits >= 8
    stored = layout.dtype if is_integer else np.dtype(f"u{layout.dtype.itemsize}")
    limits = np.iinfo(stored)
    lowest = limits.min if is_integer else -(limits.max // 2) - 1
    if values.size and not (lowest <= int(values.min()) and int(values.max()) <= limits.max):
        raise ModelError(f"{_where(tensor)}: a value in {layout.field} is beyond its type")
    return values.astype(stored)


def _unpacked(units: Array, layout: _Layout) -> Array:
    """One byte per element from bytes of several, the first element in the lowest bits."""
    bits, elements = layout.bits, math.prod(layout.shape)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (units.view(np.uint8)[:, None] >> shifts & np.uint8(2**bits - 1)).reshape(-1)[:elements]
