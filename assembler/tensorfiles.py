"""Reading one tensor out of a `.safetensors` or `.npy` file, memory-mapped."""

from __future__ import annotations

import difflib
import io
from pathlib import Path

from dla.isa.dtypes import Array
from dla.isa.errors import ContainerError
from dla.isa.files import map_file
from dla.isa.names import shown
from dla.isa.npy import read_header
from dla.isa.weights import open_weights

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
        names = weights.keys()
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            listed = ", ".join(map(shown, names[:8])) + (", ..." if len(names) > 8 else "")
            hint = f"did you mean {near[0]}?" if near else f"it has {listed}"
            raise TensorFileError(f"{shown(path.name)} has no tensor {shown(key)}", hint)
        return weights.array(key)
    except ContainerError as error:
        raise TensorFileError(error.message, error.hint) from None


def read_npy(path: Path) -> Array:
    """The array in the file at `path`, read-only. Raises TensorFileError, InputError."""
    data = map_file(path)
    stream = io.BytesIO(data[:MAX_NPY_HEADER_BYTES])
    try:
        header = read_header(stream)
    except ValueError:
        raise TensorFileError(f"{shown(path.name)} is not an .npy file of numbers") from None
    start = stream.tell()
    if header.dtype.hasobject or start + header.nbytes > len(data):
        raise TensorFileError(f"{shown(path.name)} is not an .npy file of numbers, or is cut short")
    return header.array(data[start : start + header.nbytes])
