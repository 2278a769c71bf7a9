"""Reading one tensor out of a `.safetensors` or `.npy` file, memory-mapped."""

from __future__ import annotations

import difflib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from dla.isa.dtypes import Array, DType
from dla.isa.files import map_file
from dla.isa.names import shown

MAX_HEADER_BYTES = 2**26
_DTYPES = {
    "F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16, "I8": DType.I8, "U8": DType.U8, "I32": DType.I32,
    "I64": DType.I64, "BOOL": DType.BOOL,
}  # fmt: skip


class TensorFileError(Exception):
    """The file is not what its name says, or lacks the tensor."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_safetensors(path: Path, key: str) -> Array:
    """Tensor `key` of the file at `path`, read-only. Raises TensorFileError, InputError."""
    data = map_file(path)
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, MAX_HEADER_BYTES):
        raise TensorFileError(f"{shown(path.name)} is not a safetensors file")
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError):
        raise TensorFileError(f"{shown(path.name)} is not a safetensors file") from None
    names = [n for n in header if n != "__metadata__"] if isinstance(header, dict) else []
    if key not in names:
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "it has " + ", ".join(map(shown, names[:8])) + " ..."
        raise TensorFileError(f"{shown(path.name)} has no tensor {shown(key)}", hint)
    return _tensor(header[key], data[8 + size :], shown(path.name))


def _tensor(entry: Any, data: memoryview, name: str) -> Array:
    try:
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        code = entry["dtype"]
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in (*shape, begin, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise TensorFileError(f"{name} is damaged: its header makes no sense") from None
    if code not in _DTYPES:
        raise TensorFileError(f"the tensor has type {shown(code)}, which dla does not have",
                              "convert the file to one of " + ", ".join(_DTYPES))  # fmt: skip
    dtype = _DTYPES[code]
    if end > len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise TensorFileError(f"{name} is damaged: the tensor does not lie inside the file")
    if dtype is DType.BOOL and np.any(np.frombuffer(data[begin:end], np.uint8) > 1):
        raise TensorFileError(f"{name} is damaged: a bool is neither 0 nor 1")
    return np.frombuffer(data[begin:end], dtype=np.uint8).view(dtype.numpy).reshape(shape)


def read_npy(path: Path) -> Array:
    """The array in the file at `path`. Raises TensorFileError, InputError."""
    data = map_file(path)
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, MemoryError, OverflowError):
        raise TensorFileError(f"{shown(path.name)} is not an .npy file of numbers") from None
    return np.asarray(array)
