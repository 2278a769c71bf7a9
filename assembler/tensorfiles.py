"""Reading one tensor out of a `.safetensors` or `.npy` file, memory-mapped."""

from __future__ import annotations

import difflib
import io
import math
from pathlib import Path

import numpy as np

from dla.isa.dtypes import Array, DType
from dla.isa.errors import ContainerError
from dla.isa.files import map_file
from dla.isa.names import shown
from dla.isa.weights import open_weights

_DTYPES = {d.name: d for d in DType}  # safetensors calls types as dla does, in capitals

MAX_NPY_HEADER_BYTES = 2**16


class TensorFileError(Exception):
    """The file is not what its name says, or lacks the tensor."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_safetensors(path: Path, key: str) -> Array:
    """Tensor `key` of the file at `path`, read-only. Raises TensorFileError, InputError."""
    try:
        weights = open_weights(path)
        names = sorted(n for n in weights.header if n != "__metadata__")
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            listed = ", ".join(map(shown, names[:8])) + (", ..." if len(names) > 8 else "")
            hint = f"did you mean {near[0]}?" if near else f"it has {listed}"
            raise TensorFileError(f"{shown(path.name)} has no tensor {shown(key)}", hint)
        code, shape, data = weights.entry(key)
    except ContainerError as error:
        raise TensorFileError(error.message, error.hint) from None
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise TensorFileError(f"the tensor has type {shown(code)}, which dla does not have",
                              "convert the file to one of " + ", ".join(_DTYPES))  # fmt: skip
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise TensorFileError(f"{shown(path.name)} is damaged: the tensor's size does not fit its shape")
    array = np.frombuffer(data, dtype=np.uint8)
    if dtype is DType.BOOL and np.any(array > 1):
        raise TensorFileError(f"{shown(path.name)} is damaged: a bool is neither 0 nor 1")
    return array.view(dtype.numpy).reshape(shape)


def read_npy(path: Path) -> Array:
    """The array in the file at `path`, read-only. Raises TensorFileError, InputError."""
    data = map_file(path)
    stream = io.BytesIO(data[:MAX_NPY_HEADER_BYTES])
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, is_fortran, dtype = readers[np.lib.format.read_magic(stream)](stream)
    except (KeyError, ValueError, EOFError):
        raise TensorFileError(f"{shown(path.name)} is not an .npy file of numbers") from None
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.itemsize == 0 or nbytes > len(data) - stream.tell():
        raise TensorFileError(f"{shown(path.name)} is not an .npy file of numbers, or is cut short")
    flat = np.frombuffer(data[stream.tell() : stream.tell() + nbytes], dtype=np.uint8)
    return flat.view(dtype).reshape(shape, order="F" if is_fortran else "C")
