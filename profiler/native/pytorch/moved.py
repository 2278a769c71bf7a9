"""Kernels in f64, whose results are moved as if each were rounded to a type that is stored."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dla.profiler.native.given import Rounding


class Moved(TorchDispatchMode):
    """Moves every f64 that a kernel computes; views and copies stay."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints for it
        self._roundoff, self._direction = rounding.roundoff, rounding.direction
        self._generator = torch.Generator().manual_seed(rounding.seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _SUMMING:
            args = [self._move(a) for a in args]
        result = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns) or func in _EXACT:
            return result
        if isinstance(result, tuple | list):
            return type(result)(self._move(r) for r in result)
        return self._move(result)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64 or not value.numel():
            return value
        if self._direction is not None:
            return value * (1 + self._direction * self._roundoff)
        noise = torch.empty_like(value).uniform_(-self._roundoff, self._roundoff, generator=self._generator)
        return value + value * noise


_aten = torch.ops.aten
_EXACT = {
    _aten.clone.default, _aten.index_select.default, _aten.where.self, _aten.flip.default, _aten.cat.default,
    _aten.constant_pad_nd.default, _aten.relu.default, _aten.abs.default, _aten.neg.default, _aten.maximum.default,
    _aten.minimum.default, _aten.full_like.default, _aten.empty_like.default, _aten.stack.default,
}  # fmt: skip
"""Kernels that only move numbers, or choose among them."""
_SUMMING = {
    _aten.mm, _aten.addmm, _aten._addmm_activation, _aten.bmm, _aten.baddbmm, _aten.convolution,
    _aten._scaled_dot_product_flash_attention_for_cpu, _aten._scaled_dot_product_attention_math,
}  # fmt: skip
"""Kernels that may add up parts of a sum in the stored type, or scale operands in it first: operands move, too."""
