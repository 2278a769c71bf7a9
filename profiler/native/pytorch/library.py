"""PyTorch as a library of native kernels: cuBLAS, cuDNN, scaled_dot_product_attention ... on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from dla.isa.dtypes import Array, DType
from dla.isa.program import Instruction
from dla.profiler.native.clock import Clock
from dla.profiler.native.given import Action, Call, Rounding, several
from dla.profiler.native.library import BETWEEN_RANKS
from dla.profiler.native.pytorch import data, matrix, networks, pointwise
from dla.profiler.native.pytorch.clock import clock_for
from dla.profiler.native.pytorch.convert import from_numpy, to_numpy
from dla.profiler.native.pytorch.given import Given
from dla.profiler.native.pytorch.moved import Moved

KERNELS: dict[str, Callable[[Given], Call]] = {
    "COPY": data.copy, "FILL": data.fill, "IOTA": data.iota, "PAD": data.pad, "GATHER": data.gather,
    "SCATTER": data.scatter, "ACT": pointwise.act, "EW": pointwise.ew, "SELECT": pointwise.select,
    "REDUCE": pointwise.reduce, "SCAN": pointwise.scan, "GEMM": matrix.gemm, "CONV": matrix.conv,
    "POOL": networks.pool, "NORM": networks.norm, "SOFTMAX": networks.softmax, "ATTENTION": matrix.attention,
    "ROPE": networks.rope, "RNN": networks.rnn, "TOPK": networks.topk,
}  # fmt: skip
WHY_NOT: dict[str, str] = {
    "RESIZE": "PyTorch resamples by a rule (torch.nn.functional.interpolate), not by a table of indices and weights",
    **BETWEEN_RANKS,
}
"""Rows without a counterpart. Together with KERNELS, every tensor instruction: a test holds that."""

_TYPES = {
    DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.I8: torch.int8,
    DType.U8: torch.uint8, DType.I32: torch.int32, DType.I64: torch.int64, DType.BOOL: torch.bool,
}  # fmt: skip


class PyTorch:
    """On the processor that a machine is measured on: "gpu" or "golden"."""

    name, instead = "PyTorch", ""
    why_not: Mapping[str, str] = WHY_NOT
    refusals: tuple[type[Exception], ...] = (RuntimeError, NotImplementedError)

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._device = "cuda" if machine == "gpu" else "cpu"
        self.suffix = ", on the CPU" * (self._device == "cpu")

    def clock(self) -> Clock:
        """Events around CUDA graphs on a GPU."""
        return clock_for(self._machine)

    @contextlib.contextmanager
    def asked(self, instruction: Instruction) -> Iterator[None]:
        """f32 products as exactly as the instruction asks, while the body runs; and convolutions that were tuned."""
        tf32 = instruction.attributes.get("math") == "tf32"
        backends = torch.backends
        cudnn = backends.cudnn
        before = (backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit)
        backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = tf32
        cudnn.benchmark, cudnn.benchmark_limit = True, 0  # 0: all of its kernels are tried, not the ten likely ones
        try:
            with torch.inference_mode():
                yield
        finally:
            backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit = before

    def run(self, instruction: Instruction, tensors: Mapping[str, torch.Tensor]) -> Action:
        """One kernel where PyTorch has one, others behind it."""
        return KERNELS[instruction.row.mnemonic](Given(instruction, tensors)).run

    def kernel(self, instruction: Instruction, tensors: Mapping[str, torch.Tensor]) -> str:
        """As its entry calls it."""
        return KERNELS[instruction.row.mnemonic](Given(instruction, tensors)).kernel

    def exact(self, instruction: Instruction, wide: Mapping[str, Array]) -> Callable[[Rounding | None], list[Array]]:
        """On the CPU, whatever the device."""
        tensors = {name: from_numpy(array) for name, array in wide.items()}
        call = KERNELS[instruction.row.mnemonic](Given(instruction, tensors, exact=True))

        def run(rounding: Rounding | None) -> list[Array]:
            with torch.no_grad(), contextlib.nullcontext() if rounding is None else Moved(rounding):
                made = call.run()
            return [to_numpy(tensor).copy() for tensor in several(made)]

        return run

    # -- tensors

    def empty(self, shape: Sequence[int], dtype: DType) -> torch.Tensor:
        """Room."""
        return torch.empty(tuple(shape), dtype=_TYPES[dtype], device=self._device)

    def normal(self, count: int, dtype: DType, seed: int) -> torch.Tensor:
        """Drawn where they are used."""
        return self.empty((count,), dtype).normal_(generator=self._generator(seed))

    def integers(self, count: int, dtype: DType, low: int, high: int, seed: int) -> torch.Tensor:
        """Drawn where they are used."""
        return self.empty((count,), dtype).random_(low, high, generator=self._generator(seed))

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(seed)

    def tensor(self, array: Array) -> torch.Tensor:
        """On the device."""
        return from_numpy(array, self._device)

    def strided(self, flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """A view."""
        return torch.as_strided(flat, tuple(shape), tuple(strides))

    def numpy(self, tensor: torch.Tensor) -> Array:
        """On the host."""
        return to_numpy(tensor)
