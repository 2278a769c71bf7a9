"""Operands as arrays, and the functions of the library that they are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from dla.isa.dtypes import DType
from dla.profiler.native import given
from dla.profiler.native.given import NoNativeError

Seen = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""(name, function) -> what is called in its place."""

HALVES = (DType.F16.numpy, DType.BF16.numpy)


class _Own:
    """What libraries have as methods, or have not had for long."""

    @staticmethod
    def astype(array: Any, dtype: Any) -> Any:
        """In another type, where it is of another."""
        return array.astype(dtype, copy=False)


class Functions:
    """The functions of a library by name ("matmul", "maximum.accumulate"), each as `seen` makes it of the library's."""

    def __init__(self, library: str, modules: tuple[Any, ...], seen: Seen = lambda name, function: function) -> None:
        self.library = library
        self._modules, self._seen = (_Own, *modules), seen

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            try:
                function = attrgetter(name)(module)
            except AttributeError:
                continue
            found = self._seen(name, function)
            setattr(self, name, found)  # looked up once: it is timed
            return found
        raise NoNativeError(f"{self.library} has no {name}")


@dataclass(frozen=True)
class Given(given.Given[Any]):
    """All that computes goes through `xp`: its calls are what a kernel is named after, and what is moved in f64."""

    xp: Functions = field(kw_only=True)

    def typed(self, result: Any, name: str | None = None) -> Any:
        """`result` with the type and shape of output `name`, the first one if None."""
        out = self.out if name is None else self.tensors[name]
        if result.shape != out.shape:
            result = self.xp.copy(self.xp.broadcast_to(result, out.shape))
        return result if result.dtype == out.dtype else self.xp.astype(result, out.dtype)

    def single(self, x: Any) -> Any:
        """`x`, in f32 where it is of a half type: what is made of several calls would round in each."""
        return self.xp.astype(x, np.float32) if x.dtype in HALVES else x

    @property
    def on_host(self) -> bool:
        return self.xp.library == "NumPy"


def is_float(x: Any) -> bool:
    """Of a type that the machine calls a float, or f64."""
    return x.dtype.kind == "f" or x.dtype in HALVES
