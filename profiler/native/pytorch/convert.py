"""Tensors to NumPy and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from dla.isa.dtypes import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """A copy of `tensor` on the host; bf16 as ml_dtypes has it."""
    host = tensor.detach().cpu()
    if host.dtype is torch.bfloat16:
        return np.asarray(host.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(host.numpy())


def from_numpy(array: Any, device: str = "cpu") -> torch.Tensor:
    """A tensor with the elements of `array`, which may be bf16."""
    array = np.array(array, order="C")  # a copy, which may be written
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)
