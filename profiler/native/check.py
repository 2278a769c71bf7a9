"""Whether a native kernel is right: its result beside what the instruction means, by the bounds of both.

The instruction's bound is its row's. A kernel of PyTorch may be several ones, each of which rounds to the type that
tensors are stored in, where the instruction rounds once. How far that moves the result depends on the data, so it is
measured, as in `dla.emulator.compare`: the same call in f64, in which the result of each kernel (and what a product
multiplies) is moved by up to one rounding of the stored type. The bound is the row's tolerance and three times the
spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dla.emulator.compare import SAFETY
from dla.emulator.golden.execution import widen
from dla.emulator.tolerance import close, same
from dla.isa.dtypes import Array, convert
from dla.isa.program import Instruction
from dla.isa.table import Out, Role, result_arrays
from dla.profiler.native import NATIVE
from dla.profiler.native.given import Given, Tensors, operands
from dla.profiler.native.operands import part, to_numpy

WORK = 5e8
"""Operations that are checked of an instruction, about: they are computed in f64 on the host, several times over."""
_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_DIRECTIONS = (*[None] * 8, 1.0, -1.0)
"""Samples: eight move results at random, one all away from zero, and one all toward it."""


def judged(
    instruction: Instruction, tensors: Mapping[str, torch.Tensor], result: Tensors, work: float = WORK
) -> tuple[bool, float]:
    """(whether `result` is right, its largest error as a share of what is allowed) for a settled instruction.

    `tensors` are its inputs. Integers must be equal, and chosen elements equal to those that should have been chosen.
    """
    outputs = [name for name, role, _ in operands(instruction) if role is Role.OUT]
    got = dict(zip(outputs, result if isinstance(result, tuple) else (result,), strict=True))
    cut, sample = part(instruction, {**tensors, **got}, work)
    sample = {name: tensor.cpu() for name, tensor in sample.items()}
    moved = spread(cut, sample)
    values = {name: to_numpy(tensor) for name, tensor in sample.items()}
    checks = [_output(cut, name, values, moved.get(name, 0.0)) for name in outputs]
    return all(ok for ok, _ in checks), max((error for _, error in checks), default=0.0)


def _output(
    instruction: Instruction, name: str, values: Mapping[str, Array], moved: Array | float
) -> tuple[bool, float]:
    row = instruction.row
    dtypes = {n: d.dtype for n, _, d in operands(instruction)}
    inputs = {
        spec.name: widen(values[spec.name], dtypes[spec.name], np.dtype(np.float64), raw=row.raw)
        if spec.name in dtypes else None
        for spec in row.inputs
    }  # fmt: skip
    attributes = row.with_defaults(instruction.attributes) | ({"sub": instruction.sub} if row.subs else {})
    first = row.outputs[0].name
    assert row.semantics is not None, "only tensor instructions have natives"
    results = result_arrays(row, row.semantics(Out(values[first].shape, dtypes[first]), **inputs, **attributes))
    exact = np.asarray(dict(zip((o.name for o in row.outputs), results, strict=True))[name])
    got = values[name]
    if not dtypes[name].is_float or row.error.slack is None:
        equal = same(convert(exact, dtypes[name]), got)
        if (row.mnemonic, name) == ("TOPK", "indices") or instruction.sub in ("argmax", "argmin"):
            equal |= _tied(instruction, exact, got, values["x"])
        return bool(equal.all()), 0.0 if equal.all() else np.inf
    tolerance = row.error.tolerance(exact, dtypes[name], inputs, attributes) + moved
    wide = exact.astype(np.float64)
    right = close(wide, got, tolerance, dtypes[name])
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - wide)
        share = np.where(off == 0, 0.0, off / tolerance)
        share = np.where(np.isfinite(share), share, np.where(right, 0.0, np.inf))  # the same infinity, or NaN
    return bool(right.all()), float(np.max(share, initial=0.0))


def _tied(instruction: Instruction, exact: Array, got: Array, x: Array) -> Array:
    """Where other indices than those expected are of equal elements: PyTorch does not say which of these it takes."""
    if not exact.size:
        return np.zeros(exact.shape, np.bool_)
    rows = instruction.row.mnemonic == "TOPK"
    axis = -1 if rows else instruction.attributes["axes"][0]
    keep = rows or instruction.attributes.get("keepdims", False)
    inside = (got >= 0) & (got < x.shape[axis])
    chosen, wanted = ((a if keep else np.expand_dims(a, axis)) for a in (np.where(inside, got, 0), exact))
    equal = same(np.take_along_axis(x, chosen.astype(np.int64), axis), np.take_along_axis(x, wanted, axis))
    return np.asarray((equal if keep else equal.squeeze(axis)) & inside)


# -- how far the roundings of several kernels move a result


def spread(instruction: Instruction, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, Any]:
    """By float output: SAFETY times how far it moves if every kernel's result moves by a rounding; f64 arrays."""
    floats = [t.dtype for t in tensors.values() if t.dtype in _ROUNDOFF]
    names = [name for name, role, d in operands(instruction) if role is Role.OUT and d.dtype.is_float]
    if not floats or not names:
        return {}
    wide = {name: t.double() if t.dtype in _ROUNDOFF else t.clone() for name, t in tensors.items()}
    roundoff = max(_ROUNDOFF[dtype] for dtype in floats)
    call = NATIVE[instruction.row.mnemonic](Given(instruction, wide, exact=True))
    outputs = [name for name, role, _ in operands(instruction) if role is Role.OUT]

    def run() -> dict[str, Array]:
        with torch.no_grad():
            made = call.run()
        tuple_of = made if isinstance(made, tuple) else (made,)
        return {n: to_numpy(t).copy() for n, t in zip(outputs, tuple_of, strict=True)}

    still = run()
    moved = {name: np.zeros(still[name].shape) for name in names}
    for number, direction in enumerate(_DIRECTIONS):
        with _Moved(roundoff, direction, seed + number):
            sample = run()
        for name in names:
            with np.errstate(invalid="ignore"):
                distance = np.abs(sample[name] - still[name])
            moved[name] = np.fmax(moved[name], np.where(np.isfinite(distance), distance, 0.0))
    return {name: SAFETY * np.maximum(m, np.median(m) if m.size else 0.0) for name, m in moved.items()}


class _Moved(TorchDispatchMode):
    """Moves every f64 that a kernel computes by up to `roundoff` of itself; views and copies stay."""

    def __init__(self, roundoff: float, direction: float | None, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints for it
        self._roundoff, self._direction = roundoff, direction
        self._generator = torch.Generator().manual_seed(seed)

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
