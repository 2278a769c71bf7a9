"""Whether what a machine computed for one instruction is within its row's error bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dla.emulator.golden.execution import widen
from dla.isa.dtypes import Array, DType, convert
from dla.isa.program import Instruction
from dla.isa.ranks import ALONE, RankTable
from dla.isa.registers import Register
from dla.isa.table import Out, Role, Row, result_arrays

_finfo: Any = ml_dtypes.finfo  # knows bf16; has no annotations


def within_bound(
    row: Row, dtype: DType, reference: Array, got: Array, operands: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Array:
    """Elementwise, whether `got` (stored as `dtype`) is an allowed result where `reference` is the exact one.

    `reference` is what the row's semantics gives in f64, before rounding; `operands` and `attributes` are as
    semantics gets them, with `sub` among the attributes.
    """
    exact = convert(np.asarray(reference), dtype)
    if not dtype.is_float or row.error.slack is None:
        return same(exact, got)
    tolerance = row.error.tolerance(reference, dtype, dict(operands), dict(attributes))
    return close(np.asarray(reference, np.float64), got, tolerance, dtype)


def same(expected: Array, got: Array) -> Array:
    """Elementwise equality, in which NaN equals NaN."""
    with np.errstate(invalid="ignore"):
        equal = np.asarray(expected == got)
    if DType.BF16.numpy == expected.dtype or expected.dtype.kind == "f":
        equal |= np.isnan(expected) & np.isnan(got)
    return equal


def close(reference: Array, got: Array, tolerance: Array, dtype: DType) -> Array:
    """Elementwise, whether `got` is within `tolerance` of `reference` (both f64), for float type `dtype`.

    Also allowed: NaN for NaN, the same infinity, an infinity where the tolerance reaches beyond the largest number,
    and zero for a subnormal number, because machines may flush those.
    """
    wide = np.asarray(got).astype(np.float64)
    limits = _finfo(dtype.numpy)
    largest, smallest_normal = float(limits.max), float(limits.smallest_normal)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(wide - reference) <= tolerance
        overflow = np.isinf(wide) & (np.sign(wide) == np.sign(reference)) & (np.abs(reference) + tolerance > largest)
    flushed = (wide == 0) & (np.abs(reference) < smallest_normal)
    return np.asarray(near | same(reference, wide) | overflow | flushed)


@dataclass(frozen=True)
class OutputCheck:
    """One output of one instruction beside its exact value."""

    name: str
    ok: Array  # bool, elementwise
    reference: Array  # f64 for floats, before rounding
    got: Array

    @property
    def violations(self) -> int:
        """Number of elements outside the bound."""
        return int(np.size(self.ok) - np.count_nonzero(self.ok))

    def __str__(self) -> str:
        if not self.violations:
            return f"{self.name}: all {np.size(self.ok)} elements within the bound"
        first = tuple(int(i) for i in np.argwhere(~self.ok)[0])
        return (
            f"{self.name}: {self.violations} of {np.size(self.ok)} elements outside the bound; the first at "
            f"{list(first)} is {self.got[first]}, exact {self.reference[first]}"
        )


def check_instruction(
    instruction: Instruction,
    inputs: Mapping[str, Array],
    got: Mapping[str, Array],
    registers: Mapping[Register, int | float | bool] | None = None,
) -> list[OutputCheck]:
    """Compare the outputs `got` of one tensor instruction with its row's semantics in f64, by the row's bound.

    `inputs` are the operands that it read and `got` the outputs it wrote, by name, in their stored dtypes and at
    their resolved shapes; `registers` are the values of those that its attributes name. A collective is taken to be
    executed by one rank alone.
    """
    row = instruction.row
    dtypes = {
        spec.name: d.dtype for spec, d in zip(row.operands, instruction.operands, strict=True) if d is not None
    }  # fmt: skip
    oracle = np.dtype(np.float64)
    operands = {
        spec.name: widen(inputs[spec.name], dtypes[spec.name], oracle, raw=row.raw) if spec.name in dtypes else None
        for spec in row.inputs
    }
    attributes = row.with_defaults(instruction.attributes) | ({"sub": instruction.sub} if row.subs else {})
    attributes = {k: (registers or {})[v] if isinstance(v, Register) else v for k, v in attributes.items()}
    if row.collective:
        operands = {name: value if value is None else value[None] for name, value in operands.items()}
        attributes |= {a.name: ALONE for a in row.attributes if isinstance(a, RankTable)}
    first = row.outputs[0].name
    assert row.semantics is not None, "only tensor instructions have semantics"
    results = result_arrays(row, row.semantics(Out(np.shape(got[first]), dtypes[first]), **operands, **attributes))
    return _check_outputs(row, results, got, dtypes, operands, attributes)


def _check_outputs(
    row: Row, results: Sequence[Array | None], got: Mapping[str, Array], dtypes: Mapping[str, DType],
    operands: Mapping[str, Any], attributes: Mapping[str, Any],
) -> list[OutputCheck]:  # fmt: skip
    checks = []
    for spec, result in zip((o for o in row.operands if o.role is Role.OUT), results, strict=True):
        if spec.name in dtypes and result is not None:
            ok = within_bound(row, dtypes[spec.name], result, got[spec.name], operands, attributes)
            checks.append(OutputCheck(spec.name, ok, np.asarray(result), np.asarray(got[spec.name])))
    return checks
