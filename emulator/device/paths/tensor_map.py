"""Tensor maps: what the copy engine of a Hopper GPU has to know of a tensor; encoded when a program is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the copy engine sees it (CUDA driver API, cuTensorMapEncodeTiled). Filled in with the GEMM path."""

    address: int

    def encode(self) -> bytes:
        """The 128 bytes that the kernel uses. Raises BackendError where the driver refuses."""
        raise NotImplementedError
