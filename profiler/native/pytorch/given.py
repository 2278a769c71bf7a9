"""Operands as torch tensors: `Given` as this library's kernels want it."""

from __future__ import annotations

import torch

from dla.profiler.native import given

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
"""One tensor per output that the instruction has, in order; a single one alone."""


class Given(given.Given[torch.Tensor]):
    """With what a result needs to become an output."""

    def typed(self, result: torch.Tensor, name: str | None = None) -> torch.Tensor:
        """`result` with the type and shape of output `name`, the first one if None; a copy only where these differ."""
        out = self.out if name is None else self.tensors[name]
        if result.shape != out.shape:
            result = result.expand(out.shape).contiguous()
        return result if result.dtype == out.dtype else result.to(out.dtype)

    @property
    def one_type(self) -> bool:
        """Whether all floats of the instruction have one type."""
        return len({t.dtype for t in self.tensors.values() if t.dtype.is_floating_point}) <= 1
