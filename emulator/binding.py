"""Binding of a user's tensors to a program, before any machine starts: names, dtypes, shapes, named dims."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dla.isa.descriptor import Dim, Dynamic, Segment
from dla.isa.dtypes import BY_NUMPY, Array, DType
from dla.isa.errors import InputError
from dla.isa.names import shown
from dla.isa.program import Program, Tensor

_ML_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Bound:
    """Tensors and dims that fit the program.

    `arrays` holds every input by name: a NumPy array in native byte order, or the device array that was passed.
    """

    arrays: Mapping[str, Any]
    dims: Mapping[str, int]


def bind(program: Program, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Bound:
    """Check `inputs` and `dims` against `program` and work out the named dims. Raises InputError.

    Nothing is cast: an input has exactly the declared dtype and, but for named dims, the declared shape.
    """
    tensors = {t.name: t for t in program.in_segment(Segment.INPUT)}
    _check_names(program, tensors, inputs)
    arrays = {name: as_array(inputs[name], f"input '{name}'") for name in tensors}
    for name, tensor in tensors.items():
        _check_dtype(tensor, arrays[name], "input")
        _check_shape(program, tensor, arrays[name], "input")
    return Bound(arrays, _resolve_dims(program, tensors.values(), arrays, dict(dims or {})))


def bind_state(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check tensors meant for the state segment; they have the declared shape at its bounds. Raises InputError."""
    tensors = {t.name: t for t in program.in_segment(Segment.STATE)}
    arrays = {}
    for name, value in values.items():
        if name not in tensors:
            raise InputError(f"the program has no state tensor '{shown(name)}'", hint=suggest(name, tensors))
        array = as_array(value, f"state '{name}'")
        _check_dtype(tensors[name], array, "state")
        bounds = tensors[name].descriptor.bounds
        if tuple(array.shape) != bounds:
            raise InputError(f"state '{name}' must have shape {list(bounds)}, not {list(array.shape)}")
        arrays[name] = array
    return arrays


def as_array(value: Any, what: str) -> Any:
    """`value` as an array: CuPy arrays as they are, anything else as a NumPy array in native byte order.

    Takes NumPy arrays and scalars, Python numbers and nested lists, and any object with `__dlpack__`; memory of
    another device than the CPU must come as a CuPy array. Raises InputError.
    """
    if isinstance(value, np.ndarray | np.generic) or is_device_array(value):
        return _native(value)
    try:
        if hasattr(value, "__dlpack__"):
            return _from_dlpack(value)
        array = np.asarray(value)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:
        raise InputError(f"{what} cannot be read as an array: {error}") from error
    if array.dtype == object:
        raise InputError(f"{what} cannot be read as an array: {type(value).__name__} has no element type")
    return array


def is_device_array(value: Any) -> bool:
    """Whether `value` is a CuPy array (asked without importing CuPy)."""
    return hasattr(value, "__cuda_array_interface__") and type(value).__module__.split(".")[0] == "cupy"


def to_host(array: Any) -> Array:
    """`array` (NumPy or CuPy) in host memory."""
    return np.asarray(array.get() if is_device_array(array) else array)


def _native(value: Any) -> Any:
    if is_device_array(value):
        return value
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


_DLPACK_CPU = 1


def _from_dlpack(value: Any) -> Any:
    """A host view of a DLPack object, or, where it lies on a GPU, a copy of it (through CuPy) on the host."""
    if value.__dlpack_device__()[0] == _DLPACK_CPU:
        return np.from_dlpack(value)
    try:
        import cupy  # optional: only arrays that live on a GPU need it
    except ImportError:
        raise BufferError("it lives on a GPU, and CuPy, which could read it there, is not installed") from None
    return cupy.from_dlpack(value)


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known ones, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return "it has " + ", ".join(f"'{n}'" for n in names) if names else "it has none"


def _check_names(program: Program, tensors: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> None:
    for name in inputs:
        if name not in tensors:
            raise InputError(f"the program has no input '{shown(name)}'", hint=suggest(name, tensors))
    missing = [t for name, t in tensors.items() if name not in inputs]
    if missing:
        names = ", ".join(f"'{t.name}'" for t in missing)
        first = missing[0]
        raise InputError(
            f"missing input{'s' if len(missing) > 1 else ''} {names}",
            hint=f"give {first.name}: {first.descriptor.dtype.text}{_shape_text(program, first)}, "
            f"e.g. --input {first.name}=FILE.npy, or make it up: --random 1",
        )


def _check_dtype(tensor: Tensor, array: Any, role: str) -> None:
    wanted = tensor.descriptor.dtype
    if array.dtype == wanted.numpy:
        return
    given = BY_NUMPY.get(np.dtype(array.dtype))
    name = given.text if given else str(array.dtype)
    raise InputError(
        f"{role} '{tensor.name}' must be {wanted.text}, not {name}", hint=f"convert it: x.astype({_spelled(wanted)})"
    )


def _spelled(dtype: DType) -> str:
    return "ml_dtypes.bfloat16" if dtype is DType.BF16 else f"numpy.{dtype.numpy.name}"


def _shape_text(program: Program, tensor: Tensor) -> str:
    names = {symbol.register: symbol.name for symbol in program.dims}

    def one(dim: Dim) -> str:
        return f"{names.get(dim.register, f's{dim.register}')} <= {dim.bound}" if isinstance(dim, Dynamic) else str(dim)

    return "[" + ", ".join(one(d) for d in tensor.descriptor.dims) + "]"


def _check_shape(program: Program, tensor: Tensor, array: Any, role: str) -> None:
    dims, shape = tensor.descriptor.dims, tuple(array.shape)
    fits = len(shape) == len(dims) and all(
        n <= d.bound if isinstance(d, Dynamic) else n == d for n, d in zip(shape, dims, strict=True)
    )
    if not fits:
        hint = None
        if len(shape) == len(dims) - 1 and dims[1:] == shape:
            hint = "a single sample needs a leading axis: x[None]"
        raise InputError(
            f"{role} '{tensor.name}' must have shape {_shape_text(program, tensor)}, not {list(shape)}", hint=hint
        )


def _resolve_dims(
    program: Program, tensors: Iterable[Tensor], arrays: Mapping[str, Any], given: dict[str, int]
) -> dict[str, int]:
    """Every named dim's value. Raises InputError where one is unknown, missing, out of range, or contradicted."""
    values = checked_dims(program, given)
    came_from = dict.fromkeys(values, "the value that was set")
    by_register = {symbol.register: symbol.name for symbol in program.dims}
    for tensor in tensors:
        for dim, size in zip(tensor.descriptor.dims, arrays[tensor.name].shape, strict=True):
            if not isinstance(dim, Dynamic) or dim.register not in by_register:
                continue
            name = by_register[dim.register]
            if values.setdefault(name, size) != size:
                raise InputError(
                    f"dim '{name}' is {size} in input '{tensor.name}', but {values[name]} in {came_from[name]}",
                    hint=f"inputs that share '{name}' need the same size there",
                )
            came_from.setdefault(name, f"input '{tensor.name}'")
    for symbol in program.dims:
        name = symbol.name
        if name not in values:
            raise InputError(
                f"dim '{name}' has no value, and no input's shape gives it",
                hint=f"set it, to at most {symbol.bound}: --set {name}=N, or dims={{'{name}': N}}",
            )
    return values


def checked_dims(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """`given`, values of named dims, each of which the program has and allows. Raises InputError."""
    symbols = {symbol.name: symbol for symbol in program.dims}
    for name, value in given.items():
        if name not in symbols:
            raise InputError(f"the program has no dim '{shown(name)}'", hint=suggest(name, symbols))
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"dim '{name}' must be an integer, not {shown(value)}")
        if not 0 <= value <= symbols[name].bound:
            raise InputError(f"dim '{name}' must be from 0 to {symbols[name].bound}, not {value}")
    return {name: int(value) for name, value in given.items()}
