"""NumPy and CuPy as libraries of native kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np

from dla.isa.dtypes import Array, DType
from dla.isa.error_function import erf
from dla.isa.program import Instruction
from dla.profiler.native.arrays.given import Functions, Given
from dla.profiler.native.arrays.kernels import KERNELS, LACKS
from dla.profiler.native.clock import Clock, CpuClock
from dla.profiler.native.given import Action, Rounding, several
from dla.profiler.native.library import BETWEEN_RANKS, INSTALL

_EXACT = (
    "absolute", "arange", "astype", "broadcast_to", "clip", "concatenate", "copy", "copyto", "flip", "full_like", "max",
    "maximum", "maximum.accumulate", "min", "minimum", "minimum.accumulate", "negative", "pad", "stack", "take",
    "take_along_axis", "where",
)  # fmt: skip
"""Functions that only move numbers, or choose among them."""


class Arrays:
    """A library whose functions are those of NumPy, on the processor that it works on."""

    suffix = ""  # there is only one processor that it could be
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, OverflowError, RuntimeError, MemoryError)

    def __init__(self, name: str, instead: str, modules: tuple[Any, ...], clock: Callable[[], Clock]) -> None:
        self.name, self.instead, self.clock = name, instead, clock
        self._xp, self._modules = modules[0], modules
        self.why_not: Mapping[str, str] = {
            **{row: f"{name} has no {what}; for PyTorch's: {INSTALL}" for row, what in LACKS.items()},
            "RESIZE": f"{name} has no resampling", **BETWEEN_RANKS,
        }  # fmt: skip

    def asked(self, instruction: Instruction) -> AbstractContextManager[Any]:
        """Made-up numbers may overflow: nobody needs to be warned."""
        return np.errstate(all="ignore")

    def run(self, instruction: Instruction, tensors: Mapping[str, Any]) -> Action:
        """By the library's own functions, with nothing between."""
        xp = Functions(self.name, self._modules)
        return KERNELS[instruction.row.mnemonic](Given(instruction, tensors, xp=xp))

    def kernel(self, instruction: Instruction, tensors: Mapping[str, Any]) -> str:
        """The functions that it calls, each once, in order: "numpy.matmul, add"."""
        called: dict[str, None] = {}

        def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                called[name] = None
                return function(*args, **kwargs)

            return call

        KERNELS[instruction.row.mnemonic](Given(instruction, tensors, xp=Functions(self.name, self._modules, noted)))()
        return f"{self._xp.__name__}.{', '.join(called)}"

    def exact(self, instruction: Instruction, wide: Mapping[str, Array]) -> Callable[[Rounding | None], list[Array]]:
        """On the host by NumPy, for CuPy, too."""
        mover = _Mover()
        xp = Functions(self.name, (np, SimpleNamespace(erf=erf)), mover.seen)
        tensors = {name: array.copy() for name, array in wide.items()}
        compute = KERNELS[instruction.row.mnemonic](Given(instruction, tensors, exact=True, xp=xp))

        def run(rounding: Rounding | None) -> list[Array]:
            mover.rounding = rounding
            mover.generator = np.random.default_rng(rounding.seed if rounding else 0)
            with np.errstate(all="ignore"):
                return [np.array(array) for array in several(compute())]

        return run

    # -- tensors

    def empty(self, shape: Sequence[int], dtype: DType) -> Any:
        """Room."""
        return self._xp.empty(tuple(shape), dtype.numpy)

    def normal(self, count: int, dtype: DType, seed: int) -> Any:
        """Drawn where they are used, in f32."""
        return self._xp.random.default_rng(seed).standard_normal(count, dtype=np.float32).astype(dtype.numpy)

    def integers(self, count: int, dtype: DType, low: int, high: int, seed: int) -> Any:
        """Drawn where they are used."""
        return self._xp.random.default_rng(seed).integers(low, high, count).astype(dtype.numpy)

    def tensor(self, array: Array) -> Any:
        """On the device."""
        return self._xp.array(array)

    def strided(self, flat: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """A view."""
        steps = [stride * flat.dtype.itemsize for stride in strides]
        return self._xp.lib.stride_tricks.as_strided(flat, tuple(shape), steps)

    def numpy(self, tensor: Any) -> Array:
        """On the host."""
        return np.asarray(tensor if self._xp is np else self._xp.asnumpy(tensor))


class _Mover:
    """Moves every f64 that a function computes, and what products multiply: BLAS may round both."""

    rounding: Rounding | None = None
    generator: np.random.Generator

    def seen(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if name in _EXACT:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "matmul":
                args = tuple(self._move(a) for a in args)
            return self._move(function(*args, **kwargs))

        return call

    def _move(self, value: Any) -> Any:
        if self.rounding is None or np.asarray(value).dtype != np.float64:
            return value
        most, direction = self.rounding.roundoff, self.rounding.direction
        return value * (1 + (self.generator.uniform(-most, most, np.shape(value)) if direction is None
                             else direction * most))  # fmt: skip


def numpy_library(instead: str) -> Arrays:
    """On the CPU."""
    return Arrays("NumPy", instead, (np,), CpuClock)


def cupy_library(instead: str) -> Arrays:
    """On the GPU that CuPy uses. Raises BackendError where there is none."""
    from dla.emulator.device.build import import_cupy
    from dla.profiler.native.arrays.clock import CupyClock

    cupy = import_cupy()
    import cupyx.scipy.special

    return Arrays("CuPy", instead, (cupy, cupyx.scipy.special), lambda: CupyClock(cupy))
