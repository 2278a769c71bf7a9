"""Whether a native kernel is right: its result beside what the instruction means, by the bounds of both.

The instruction's bound is its row's. A library's kernel may be several ones, each of which rounds to the type that
tensors are stored in, where the instruction rounds once. How far that moves the result depends on the data, so it is
measured, as in `dla.emulator.compare`: the same call in f64, in which the result of each kernel (and what a product
multiplies) is moved by up to one rounding of the stored type. The bound is the row's tolerance and three times the
spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dla.emulator.compare import SAFETY
from dla.emulator.golden.execution import widen
from dla.emulator.tolerance import close, same
from dla.isa.dtypes import Array, DType, convert
from dla.isa.program import Instruction
from dla.isa.table import Out, Role, result_arrays
from dla.profiler.native.given import Rounding, operands, several
from dla.profiler.native.library import Library
from dla.profiler.native.operands import part

WORK = 5e8
"""Operations that are checked of an instruction, about: they are computed in f64 on the host, several times over."""
_ROUNDOFF = {DType.F32.numpy: 2.0**-24, DType.F16.numpy: 2.0**-11, DType.BF16.numpy: 2.0**-8}
_DIRECTIONS = (*[None] * 8, 1.0, -1.0)
"""Samples: eight move results at random, one all away from zero, and one all toward it."""


def judged(
    library: Library, instruction: Instruction, tensors: Mapping[str, Any], result: Any, work: float = WORK
) -> tuple[bool, float]:
    """(whether `result` is right, its largest error as a share of what is allowed) for a settled instruction.

    `tensors` are its inputs; they and `result` are the library's. Integers must be equal, and chosen elements equal to
    those that should have been chosen.
    """
    outputs = [name for name, role, _ in operands(instruction) if role is Role.OUT]
    got = dict(zip(outputs, several(result), strict=True))
    cut, sample = part(instruction, {**tensors, **got}, work)
    values = {name: library.numpy(tensor) for name, tensor in sample.items()}
    moved = spread(library, cut, values)
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
    """Where other indices than those expected are of equal elements: libraries do not say which of these they take."""
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


def spread(
    library: Library, instruction: Instruction, values: Mapping[str, Array], seed: int = 0
) -> dict[str, Array]:  # fmt: skip
    """By float output: SAFETY times how far it moves if every kernel's result moves by a rounding; f64 arrays."""
    floats = [a.dtype for a in values.values() if a.dtype in _ROUNDOFF]
    outputs = [(name, d) for name, role, d in operands(instruction) if role is Role.OUT]
    if not floats or not any(d.dtype.is_float for _, d in outputs):
        return {}
    wide = {name: a.astype(np.float64) if a.dtype in _ROUNDOFF else a for name, a in values.items()}
    roundoff = max(_ROUNDOFF[dtype] for dtype in floats)
    run = library.exact(instruction, wide)
    still = run(None)
    moved = [np.zeros(array.shape) for array in still]
    for number, direction in enumerate(_DIRECTIONS):
        sample = run(Rounding(roundoff, direction, seed + number))
        for place, (_, d) in enumerate(outputs):
            if d.dtype.is_float:
                with np.errstate(invalid="ignore"):
                    distance = np.abs(sample[place] - still[place])
                moved[place] = np.fmax(moved[place], np.where(np.isfinite(distance), distance, 0.0))
    return {name: SAFETY * np.maximum(m, np.median(m) if m.size else 0.0)
            for (name, d), m in zip(outputs, moved, strict=True) if d.dtype.is_float}  # fmt: skip
