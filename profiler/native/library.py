"""What a library of native kernels is: PyTorch, or the array library of the machine where there is no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dla.isa.dtypes import Array, DType
from dla.isa.errors import BackendError
from dla.isa.program import Instruction
from dla.profiler.native.clock import Clock
from dla.profiler.native.given import Action, Rounding

INSTALL = "pip install 'dla[native]'"
"""How to get PyTorch."""

BETWEEN_RANKS = dict.fromkeys(
    ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BROADCAST", "PERMUTE"),
    "it works between ranks, and the machine that is measured is the only one",
)
"""By mnemonic, why no library has a kernel for it here."""


class Library(Protocol):
    """Tensors on the processor that a machine is measured on, and kernels that take them."""

    name: str  # "PyTorch"
    instead: str  # why it is not PyTorch, where it is not
    suffix: str  # of all kernels' names: where they run
    why_not: Mapping[str, str]  # by mnemonic, of rows without a counterpart
    refusals: tuple[type[Exception], ...]  # what its kernels raise for shapes and types that they do not take

    def clock(self) -> Clock:
        """That times its kernels."""
        ...

    def asked(self, instruction: Instruction) -> AbstractContextManager[Any]:
        """While it is open, kernels compute as exactly as `instruction` asks."""
        ...

    def run(self, instruction: Instruction, tensors: Mapping[str, Any]) -> Action:
        """What computes the outputs of a settled instruction on these operands. It and this may raise NoNativeError."""
        ...

    def kernel(self, instruction: Instruction, tensors: Mapping[str, Any]) -> str:
        """What to call that."""
        ...

    def exact(self, instruction: Instruction, wide: Mapping[str, Array]) -> Callable[[Rounding | None], list[Array]]:
        """The same in f64 on the host, each kernel's result moved by a rounding: what gives new outputs, in order."""
        ...

    # -- tensors

    def empty(self, shape: Sequence[int], dtype: DType) -> Any:
        """Room."""
        ...

    def normal(self, count: int, dtype: DType, seed: int) -> Any:
        """Floats of a normal distribution, in one row."""
        ...

    def integers(self, count: int, dtype: DType, low: int, high: int, seed: int) -> Any:
        """Integers from `low` on and below `high`, in one row."""
        ...

    def tensor(self, array: Array) -> Any:
        """A copy of an array of the host."""
        ...

    def strided(self, flat: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The elements of a row, seen in a layout; strides count elements."""
        ...

    def numpy(self, tensor: Any) -> Array:
        """`tensor` on the host; bf16 as ml_dtypes has it."""
        ...


def library_for(machine: str) -> Library:
    """PyTorch on the processor that `machine` ("gpu" or "golden") is measured on; without it CuPy there, or NumPy."""
    missing = _without_torch(machine)
    if missing is None:
        from dla.profiler.native.pytorch.library import PyTorch  # slow to import

        return PyTorch(machine)
    from dla.profiler.native.arrays.library import cupy_library, numpy_library

    instead = f"{missing.message} ({missing.hint})"
    return cupy_library(instead) if machine == "gpu" else numpy_library(instead)


def require_torch(option: str, machine: str) -> None:
    """Raise BackendError where there is no PyTorch for `option`: on the processor that `machine` is measured on."""
    missing = _without_torch(machine)
    if missing is not None:
        raise BackendError(f"{option} needs PyTorch: {missing.message}", hint=missing.hint)


def _without_torch(machine: str) -> BackendError | None:
    """Why there is no PyTorch for the processor that `machine` is measured on, and how to get it."""
    try:
        import torch
    except ImportError as error:
        return BackendError(f"PyTorch cannot be imported: {error}", hint=INSTALL)
    if machine == "gpu" and not torch.cuda.is_available():
        return BackendError(f"this PyTorch ({torch.__version__}) does not see the GPU",
                            hint="install PyTorch for CUDA: https://pytorch.org")  # fmt: skip
    return None
