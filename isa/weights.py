"""Weights beside a program: tensors of the const segment that stay in a `.safetensors` file.

The file lies in the program's folder or below it and nowhere else. Its header is parsed here, with limits, and its
tensors are memory-mapped; type, shape, size and SHA-256 must be what the program says.
Format: https://github.com/huggingface/safetensors (u64 header size, JSON header, data).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import Array, DType
from dla.isa.errors import ContainerError, InputError
from dla.isa.files import Chunk, map_file
from dla.isa.names import is_text, shown
from dla.isa.npy import is_possible
from dla.isa.program import ConstBlock, ExternalConst, Program, Tensor

MAX_HEADER_BYTES = 2**21  # as Python objects, at most 30 times that
_DTYPES = {dtype.name: dtype for dtype in DType}  # the format calls types as dla does, in capitals


@dataclass(frozen=True)
class Weights:
    """A mapped `.safetensors` file: its data, and its header as JSON has it (entries are checked when asked for)."""

    name: str
    header: Mapping[str, Any]
    data: memoryview

    def keys(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self.header.keys() - {"__metadata__"})

    def entry(self, key: str) -> tuple[str, tuple[int, ...], memoryview]:
        """Type name (safetensors'), shape and bytes of tensor `key`. Raises ContainerError."""
        entry = self.header.get(key)
        if not isinstance(entry, dict) or key == "__metadata__":
            raise ContainerError(f"{self.name} holds no tensor {shown(key)}")
        dtype, shape, span = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
        if not isinstance(dtype, str) or shape is None or span is None or len(span) != 2:
            raise ContainerError(f"{self.name}: the header of tensor {shown(key)} is not valid")
        if not 0 <= span[0] <= span[1] <= len(self.data):
            raise ContainerError(f"{self.name}: tensor {shown(key)} lies outside the file")
        return dtype, shape, self.data[span[0] : span[1]]

    def array(self, key: str) -> Array:
        """Tensor `key`, read-only, not copied. Raises ContainerError if it is damaged or of a type that dla lacks."""
        code, shape, data = self.entry(key)
        if code not in _DTYPES:
            raise ContainerError(f"{self.name}: tensor {shown(key)} has type {shown(code)}, which dla does not have",
                                 hint="convert the file to one of " + ", ".join(_DTYPES))  # fmt: skip
        dtype = _DTYPES[code]
        if len(data) != math.prod(shape) * dtype.itemsize or not is_possible(shape, dtype.itemsize):
            raise ContainerError(f"{self.name} is damaged: the size of tensor {shown(key)} does not fit its shape")
        array = np.frombuffer(data, np.uint8)
        if dtype is DType.BOOL and np.any(array > 1):
            raise ContainerError(f"{self.name} is damaged: a bool of tensor {shown(key)} is neither 0 nor 1")
        return array.view(dtype.numpy).reshape(shape)


def _sizes(value: Any) -> tuple[int, ...] | None:
    """`value` if it is a list of sizes."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 2**63 for item in value):
        return None
    return tuple(value)


def open_weights(path: Path) -> Weights:
    """Map a `.safetensors` file. Raises ContainerError if its header is not one, InputError if it cannot be read."""
    data = map_file(path)
    name = shown(path.name)
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ContainerError(f"{name} is not a safetensors file: its header does not fit")
    try:
        header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        raise ContainerError(f"{name} is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ContainerError(f"{name} is not a safetensors file: its header is not a JSON object")
    return Weights(name, header, data[8 + size :])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def is_inside(file: str) -> bool:
    """Whether `file` is written as a path that stays in its folder: relative, with / only, without `..`."""
    if not file or not is_text(file) or "\\" in file or ":" in file or len(file) > 1024:
        return False
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts and str(path) == file


def locate(folder: Path, file: str) -> Path:
    """The real path of `file` in `folder`. Raises ContainerError if it is, or leads, outside."""
    if not is_inside(file):
        raise ContainerError(f"external weights {shown(file)} are not a relative path inside the program's folder")
    real = Path(os.path.realpath(folder / file))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ContainerError(f"external weights {shown(file)} lead out of the program's folder through a link")
    return real


def blocks(program: Program) -> tuple[ConstBlock, ...]:
    """Every constant of `program` by offset: those in the file and those beside it, memory-mapped, not copied.

    Raises InputError or ContainerError if external weights are missing or do not fit.
    """
    beside = [ConstBlock(e.offset, np.frombuffer(data, np.uint8)) for e, data in _find(program)]
    return tuple(sorted((*program.constants, *beside), key=lambda block: block.offset))


def check(program: Program) -> None:
    """Find every external constant and compare its SHA-256. Raises InputError or ContainerError."""
    for entry, data in _find(program):
        if hashlib.sha256(data).digest() != entry.sha256:
            raise ContainerError(
                f"tensor {shown(entry.key)} in {shown(entry.file)} is not the one that the program was made with",
                hint="assemble the program again, or restore the weights file",
            )


def with_digests(program: Program) -> tuple[ExternalConst, ...]:
    """`program.external` with every SHA-256 filled in (from the files, where it was not known yet)."""
    if all(len(entry.sha256) == 32 for entry in program.external):
        return program.external
    return tuple(dataclasses.replace(e, sha256=hashlib.sha256(data).digest()) for e, data in _find(program))


def _find(program: Program) -> list[tuple[ExternalConst, memoryview]]:
    """The bytes of each external constant, after checks of key, type, shape and size."""
    if not program.external:
        return []
    if program.folder is None:
        raise InputError("the program's weights are in files beside it, but it was not loaded from a file")
    opened: dict[str, Weights] = {}
    declared = {t.descriptor.offset: t for t in program.in_segment(Segment.CONST)}
    found = []
    for entry in program.external:
        if entry.file not in opened:
            opened[entry.file] = _opened(program.folder, entry.file)
        data = _matching(opened[entry.file], entry, declared.get(entry.offset))
        found.append((entry, data))
    return found


def _opened(folder: Path, file: str) -> Weights:
    """The weights file `file` of a program in `folder`."""
    path = locate(folder, file)
    try:
        return open_weights(path)
    except InputError as error:
        raise InputError(
            f"the program's weights cannot be read: {error.message}",
            hint="they belong beside the program; assemble or compile it again to make them",
        ) from None


def _matching(weights: Weights, entry: ExternalConst, tensor: Tensor | None) -> memoryview:
    dtype, shape, data = weights.entry(entry.key)
    if len(data) != entry.nbytes:
        raise ContainerError(f"{weights.name}: tensor {shown(entry.key)} has {len(data)} bytes, "
                             f"but the program needs {entry.nbytes}")  # fmt: skip
    if tensor is not None:
        expected = tensor.descriptor.dtype.name, tensor.descriptor.bounds
        if (dtype, shape) != expected:
            raise ContainerError(
                f"{weights.name}: tensor {shown(entry.key)} is {shown(dtype)}{list(shape)}, "
                f"but the program declares {tensor.name} as {expected[0]}{list(expected[1])}"
            )
    return data


def move_out(program: Program, folder: Path, file: str) -> tuple[Program, list[Chunk]]:
    """`program` with its named constants in the weights file `file` of `folder`, and what to write there.

    Tensors that overlap an earlier one, or that no single block gives, stay inline. Raises InputError for a bad name.
    """
    if "/" in file or not is_inside(file):
        raise InputError(f"the weights file must lie in the program's own folder, not at '{shown(file)}'")
    moved: list[tuple[Tensor, Array]] = []
    end = 0
    for tensor in sorted(program.in_segment(Segment.CONST), key=lambda t: t.descriptor.offset):
        data = _given(program.constants, tensor.descriptor)
        if data is not None and tensor.descriptor.offset >= end:
            moved.append((tensor, data))
            end = tensor.descriptor.offset + tensor.descriptor.span
    entries = [
        ExternalConst(t.descriptor.offset, data.nbytes, file, t.name, hashlib.sha256(data.data).digest())
        for t, data in moved
    ]
    external = tuple(sorted((*program.external, *entries), key=lambda e: e.offset))
    rest = tuple(piece for block in program.constants for piece in _outside(block, entries))
    return dataclasses.replace(program, constants=rest, external=external, folder=folder), _safetensors(moved)


def _given(constants: Sequence[ConstBlock], descriptor: Descriptor) -> Array | None:
    """The bytes of a const tensor if one block holds them all."""
    for block in constants:
        start = descriptor.offset - block.offset
        if descriptor.span and start >= 0 and start + descriptor.span <= block.data.nbytes:
            return block.data[start : start + descriptor.span]
    return None


def _outside(block: ConstBlock, entries: Sequence[ExternalConst]) -> list[ConstBlock]:
    """What is left of `block` without `entries` (sorted by offset) and without pieces that are all zero."""
    pieces, position, end = [], block.offset, block.offset + block.data.nbytes
    for entry in (e for e in entries if block.offset <= e.offset < end):
        pieces.append((position, entry.offset))
        position = entry.offset + entry.nbytes
    pieces.append((position, end))
    views = [ConstBlock(a, block.data[a - block.offset : b - block.offset]) for a, b in pieces if a < b]
    return [view for view in views if view.data.any()]


def _safetensors(tensors: Sequence[tuple[Tensor, Array]]) -> list[Chunk]:
    """A `.safetensors` file of `tensors`, each given as its bytes."""
    header, position = {}, 0
    for tensor, data in tensors:
        header[tensor.name] = {
            "dtype": tensor.descriptor.dtype.name,
            "shape": list(tensor.descriptor.bounds),
            "data_offsets": [position, position + data.nbytes],
        }
        position += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(d).data for _, d in tensors)]
