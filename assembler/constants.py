"""Values of constants: literals, hexadecimal bytes, tensors in `.safetensors` and `.npy` files."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from lark import Token

from dla.assembler.source import suggestion
from dla.assembler.syntax import Literals, Source, problem, unquote
from dla.assembler.tensorfiles import TensorFileError, read_npy, read_safetensors
from dla.isa.dtypes import Array, DType, convert
from dla.isa.errors import InputError

_BOOLEANS = {"true": True, "false": False, "0": False, "1": True}


def value_of(
    source: Source, dtype: DType, shape: tuple[int, ...], folder: Path | None, *, any_shape: bool = False
) -> Array:
    """The bytes that `source` gives a tensor of `dtype` and `shape`, as a flat u8 array. Raises SyntaxProblem.

    With `any_shape`, a file may hold the elements, in row-major order, in another shape.
    """
    if source.kind == "literal":
        array = _literal(source, dtype, shape)
    elif source.kind == "hex":
        return _hex(source, dtype, shape)
    else:
        array = _from_file(source.value, dtype, shape, folder, any_shape=any_shape)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _literal(source: Source, dtype: DType, shape: tuple[int, ...]) -> Array:
    if isinstance(source.value, Token):
        return np.full(shape, scalar(source.value, dtype))
    flat: list[Token] = []
    _flatten(source.value, shape, 0, flat)
    return scalars(flat, dtype).reshape(shape)


def _flatten(value: Token | Literals, shape: tuple[int, ...], axis: int, flat: list[Token]) -> None:
    """Append the tokens of nested lists, whose lengths must be `shape[axis:]`."""
    if axis == len(shape):
        if isinstance(value, Literals):
            raise problem(value.at, f"a list is nested too deep for a tensor of {len(shape)} dims")
        flat.append(value)
        return
    if not isinstance(value, Literals):
        raise problem(value, f"a list of {shape[axis]} is needed here, for dim {axis}",
                      "write nested lists of the tensor's shape, or a single number to fill it")  # fmt: skip
    if len(value.items) != shape[axis]:
        raise problem(value.at, f"this list has {len(value.items)} elements; dim {axis} has {shape[axis]}")
    if axis + 1 == len(shape) and not any(isinstance(v, Literals) for v in value.items):
        flat += value.items
        return
    for item in value.items:
        _flatten(item, shape, axis + 1, flat)


def scalars(tokens: list[Token], dtype: DType) -> Array:
    """The numbers that `tokens` write, as a rank-1 array of `dtype`. Raises SyntaxProblem."""
    if dtype.is_float and all(t.type == "NUMBER" and "x" not in t and "X" not in t for t in tokens):
        values = convert(np.array(list(map(float, tokens)), dtype=np.float64), dtype)
        for index in np.flatnonzero(np.isinf(values)):
            _check_finite(tokens[index], dtype)
        return values
    return np.array([scalar(t, dtype) for t in tokens], dtype=dtype.numpy)


def scalar(token: Token, dtype: DType) -> Any:
    """The number that `token` writes, as a NumPy scalar of `dtype`. Raises SyntaxProblem."""
    if dtype is DType.BOOL:
        if str(token) not in _BOOLEANS:
            raise problem(token, f"{token} is not a bool", "write true or false")
        return np.bool_(_BOOLEANS[str(token)])
    value = number(token)
    if dtype.is_float:
        try:
            result = convert(np.array(float(value)), dtype)[()]
        except OverflowError:  # an integer beyond f64
            result = convert(np.array(math.inf), dtype)[()]
        if np.isinf(result):
            _check_finite(token, dtype)
        return result
    if isinstance(value, float):
        raise problem(token, f"{token} is not an integer, and the tensor is {dtype.text}",
                      "declare the tensor as f32, or write an integer")  # fmt: skip
    limits = np.iinfo(dtype.numpy)
    if not limits.min <= value <= limits.max:
        raise problem(token, f"{token} does not fit {dtype.text} ({limits.min} to {limits.max})")
    return dtype.numpy.type(value)


def _check_finite(token: Token, dtype: DType) -> None:
    if "inf" not in token:
        shown = token if len(token) < 40 else "this number"
        raise problem(token, f"{shown} is too large for {dtype.text}", "write inf, or a smaller number")


def number(token: Token) -> int | float:
    """The number that `token` writes: an int unless it has a point, an exponent, inf or nan. Raises SyntaxProblem."""
    text = str(token)
    try:
        if token.type != "NUMBER":
            raise ValueError
        if "x" in text or "X" in text:
            return int(text, 16)
        digits = text[1:] if text.startswith("-") else text
        return int(text) if digits.isdigit() else float(text)
    except ValueError:
        hint = suggestion(text, ("true", "false", "inf", "nan"))
        raise problem(token, f"{text if len(text) < 40 else 'this'} is not a number", hint) from None


def _hex(source: Source, dtype: DType, shape: tuple[int, ...]) -> Array:
    nbytes = math.prod(shape) * dtype.itemsize
    parts = []
    for token in source.value:
        try:
            parts.append(bytes.fromhex(token[1:-1]))
        except ValueError:
            raise problem(token, "this is not hexadecimal", "write two digits for each byte") from None
    data = b"".join(parts)
    if len(data) != nbytes:
        raise problem(source.at, f"{len(data)} bytes are given; the tensor has {nbytes}")
    array = np.frombuffer(data, dtype=np.uint8)
    if dtype is DType.BOOL and np.any(array > 1):
        raise problem(source.at, "a bool is the byte 00 or 01")
    return array


def _from_file(place: Token, dtype: DType, shape: tuple[int, ...], folder: Path | None, *, any_shape: bool) -> Array:
    name, _, key = unquote(place).partition("#")
    path = inside(place, name, folder)
    try:
        if name.endswith(".npy"):
            array = read_npy(path)
        elif name.endswith(".safetensors"):
            if not key:
                raise problem(place, "which tensor of the file?", f'write "{name}#key"')
            array = read_safetensors(path, key)
        else:
            raise problem(place, "constants come from .safetensors and .npy files", 'write "weights.safetensors#key"')
    except TensorFileError as error:
        raise problem(place, str(error), error.hint) from None
    except InputError as error:
        raise problem(place, error.message, "paths are relative to the folder of the source file") from None
    if dtype is DType.BF16 and array.dtype == np.dtype("V2"):  # what NumPy makes of bf16 in .npy files
        array = array.view(dtype.numpy)
    if array.dtype != dtype.numpy:
        held = array.dtype.name if array.dtype.isnative else f"big-endian {array.dtype.name}"
        raise problem(place, f"the file holds {held}, but the tensor is {dtype.numpy.name}",
                      "declare the type of the file and COPY to convert, or convert the file")  # fmt: skip
    if array.shape != shape and not (any_shape and array.size == math.prod(shape)):
        raise problem(place, f"the file holds shape {list(array.shape)}, but the tensor is {list(shape)}")
    return array


def inside(place: Token, name: str, folder: Path | None) -> Path:
    """The path of file `name` in `folder`. Raises SyntaxProblem if it lies outside, or there is no folder."""
    if folder is None:
        raise problem(place, "this text has no folder to look up files in", "assemble a file instead of a string")
    pure = Path(name)
    if not name or "\0" in name or pure.is_absolute() or ".." in pure.parts:
        raise problem(place, f"{name or 'an empty path'} leaves the folder of the source file",
                      "name a file in that folder or below it")  # fmt: skip
    root = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(root / pure))
    if not path.is_relative_to(root):
        raise problem(place, f"{name} is a link that leaves the folder of the source file",
                      "copy the file into that folder")  # fmt: skip
    return path
