"""onnxruntime as something to compare with: it runs the ONNX model that a program was compiled from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dla.emulator.binding import bind
from dla.emulator.result import Result
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array, DType, convert
from dla.isa.errors import BackendError, InputError
from dla.isa.names import shown
from dla.isa.program import Program

_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64, "tensor(bool)": np.bool_,
    **{f"tensor({name})": np.dtype(name) for name in
       ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}  # fmt: skip
"""By onnxruntime's names; there is no way to hand it NumPy arrays of bf16."""
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_ERRORS_ONLY = 3  # onnxruntime's log level: it warns of initialisers that it drops, and the like


class Original:
    """The model in an ONNX file, loaded by onnxruntime; in and out go the tensors of the `program` compiled from it.

    `names` are the program's names of the model's inputs and of its outputs; `values` those inputs of the model that
    are constants in the program. It runs on the CPU, or with `gpu` on the GPU if this onnxruntime can. Raises
    BackendError where onnxruntime is missing or does not take the model.
    """

    def __init__(
        self, path: Path, program: Program, names: tuple[Mapping[str, str], Mapping[str, str]],
        values: Mapping[str, Array], *, gpu: bool = False,
    ) -> None:  # fmt: skip
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendError(f"the onnxruntime backend needs the package onnxruntime: {error}",
                               hint="pip install onnxruntime") from None  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        state = onnxruntime.capi.onnxruntime_pybind11_state
        kinds = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        self._refusals: tuple[type[Exception], ...] = (*kinds, RuntimeError, ValueError)  # its own have no common base
        self._program, self._values = program, values
        self._inputs, self._outputs = names
        try:
            providers = [p for p in (_CUDA, _CPU) if p == _CPU or (gpu and p in onnxruntime.get_available_providers())]
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except self._refusals as error:
            raise BackendError(f"onnxruntime does not load '{shown(path)}': {_first_line(error)}") from None

    @property
    def provider(self) -> str:
        """Which of onnxruntime's execution providers has the first choice."""
        return str(self._session.get_providers()[0])

    def run(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> Result:
        """One run on the program's inputs, given as to any machine; its outputs in the program's types.

        Raises InputError if they do not fit, BackendError where onnxruntime fails.
        """
        bound = bind(self._program, inputs, dims)
        given = {name: bound.arrays[ours] for name, ours in self._inputs.items()} | dict(self._values)
        wanted = {item.name: item.type for item in self._session.get_inputs()}
        feed = {name: _as_type(given[name], kind, name) for name, kind in wanted.items() if name in given}
        start = time.perf_counter()
        try:
            made = self._session.run(list(self._outputs), feed)
        except self._refusals as error:
            raise BackendError(f"onnxruntime does not run the model: {_first_line(error)}") from None
        elapsed = time.perf_counter() - start
        types = {t.name: t.descriptor.dtype for t in self._program.in_segment(Segment.OUTPUT)}
        outputs = {ours: _machine_type(array, types[ours])
                   for ours, array in zip(self._outputs.values(), made, strict=True)}  # fmt: skip
        return Result(outputs, {}, {}, "onnxruntime", elapsed, bound.dims)


def _as_type(array: Array, kind: str, name: str) -> Array:
    """`array` in the type that the model declares: the program may hold it in another (--substitute-types)."""
    if kind not in _TYPES:
        raise InputError(f"onnxruntime takes no input of type {shown(kind)} from NumPy: '{shown(name)}'")
    return np.asarray(array, _TYPES[kind])


def _machine_type(array: Any, dtype: DType) -> Array:
    found = np.asarray(array)
    return found if found.dtype == dtype.numpy else convert(found, dtype)


def _first_line(error: Exception) -> str:
    return shown((str(error).splitlines() or [type(error).__name__])[0])
