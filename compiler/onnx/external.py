"""Tensors whose values lie in files beside an ONNX model.

The model says which file, so the file is hostile too: it lies in the model's folder or below it and nowhere else.
Paths with `..` and absolute ones are refused, and links that lead out of the folder. So is a file with a second name
(a hard link): no path shows that it is not also somebody's private file. ONNX's own loader refuses the same.
Format: https://onnx.ai/onnx/repo-docs/ExternalData.html.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dla.isa.errors import InputError, ModelError
from dla.isa.files import map_file
from dla.isa.names import shown
from dla.isa.weights import is_inside

if TYPE_CHECKING:
    import onnx

_MAX_MAPS = 256  # each holds a file open, and a process may have some 1000; what is beyond is read into memory
_NUMBER = re.compile(r"[0-9]{1,19}\Z")


class Folder:
    """The files beside one model, opened when first asked for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._files: dict[str, memoryview] = {}

    @property
    def files(self) -> dict[str, memoryview]:
        """The contents of the files that tensors were found in, by their paths from the folder."""
        return dict(self._files)

    def values(self, tensor: onnx.TensorProto, nbytes: int) -> memoryview:
        """The `nbytes` bytes of `tensor`, not copied. Raises ModelError."""
        where = f"tensor '{shown(tensor.name)}'"
        keys = [entry.key for entry in tensor.external_data]
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if len(entries) < len(keys) or not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise ModelError(f"{where}: the place of its external data is given twice, or is not text")
        if not entries.get("location"):
            raise ModelError(f"{where}: its data is external, but no location is given")
        offset = _number(where, "offset", entries.get("offset", "0"))
        length = _number(where, "length", entries.get("length", str(nbytes)))
        if length != nbytes:
            raise ModelError(f"{where} needs {nbytes:,} bytes, but its external data has length {length:,}")
        data = self._file(entries["location"], where)
        if offset + length > len(data):
            raise ModelError(
                f"{where}: bytes {offset:,} to {offset + length:,} of '{shown(entries['location'])}' are not there; "
                f"the file has {len(data):,}",
                hint="the file is truncated, or belongs to another model",
            )
        return data[offset : offset + length]

    def _file(self, location: str, where: str) -> memoryview:
        name = str(PurePosixPath(location))  # exporters write './weights.bin' too
        if name not in self._files:
            path = self._locate(name, where)
            try:
                data = map_file(path)
            except InputError as error:
                hint = "the model keeps its weights in files beside it: copy the files of its weights along"
                raise ModelError(f"{where}: {error.message}", hint=hint) from None
            if len(self._files) >= _MAX_MAPS:
                data = memoryview(bytes(data))
            self._files[name] = data
        return self._files[name]

    def _locate(self, name: str, where: str) -> Path:
        """The real path of `name`, which must stay in the folder."""
        if self._path is None:
            raise ModelError(f"{where} is in the file '{shown(name)}', but the model was not loaded from a file")
        if not is_inside(name):
            raise ModelError(f"{where}: the location '{shown(name)}' is not a relative path inside the model's folder")
        try:
            real = Path(os.path.realpath(self._path / name))
            names = real.stat().st_nlink if real.is_file() else 1
        except OSError as error:  # a name that is too long, a loop of links
            raise ModelError(f"{where}: cannot open '{shown(name)}': {error.strerror or error}") from None
        whole = "copy the model and its data, not links to them, into one folder"
        if not real.is_relative_to(os.path.realpath(self._path)):
            raise ModelError(f"{where}: '{shown(name)}' leads out of the model's folder through a link", hint=whole)
        if names > 1:
            raise ModelError(f"{where}: '{shown(name)}' is a hard link: the same file has another name", hint=whole)
        return real


def _number(where: str, what: str, text: str) -> int:
    if not _NUMBER.match(text):
        raise ModelError(f"{where}: the {what} of its external data is '{shown(text)}', not a size in bytes")
    return int(text)
