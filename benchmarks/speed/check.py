"""A sceptic's look at what was timed: whether it is right, and comes out the same, bit by bit, when it is run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dla.emulator.golden.execution import widen
from dla.isa.program import Instruction
from dla.isa.table import Out
from speed.bench import RERUNS, Ours, to_numpy

OF_BOUND = "the instruction's bound"
OF_NATIVE = "twice the native error"
OF_ANOTHER = "the bits of another kernel"


@dataclass(frozen=True)
class Check:
    """`error` is the largest error as a share of `limit`; `identical` says that all reruns gave the same bits."""

    error: float
    limit: str
    identical: bool


def within_bound(
    ours: Ours, output: str, instruction: Instruction, samples: list[dict[str, torch.Tensor]]
) -> Check:  # fmt: skip
    """Compare with the row's semantics in f64 under the row's bound.

    Each sample has operands by name, and "got": the part of the output that they give. Call after a run.
    """
    same = identical(ours, output)
    return Check(max(_share(instruction, sample) for sample in samples), OF_BOUND, same)


def _share(instruction: Instruction, sample: Mapping[str, torch.Tensor]) -> float:
    """The largest error of one sample, as a share of what the row of `instruction` allows there."""
    row = instruction.row
    dtypes = {s.name: d.dtype for s, d in zip(row.operands, instruction.operands, strict=True) if d is not None}
    operands: dict[str, Any] = {
        spec.name: widen(to_numpy(sample[spec.name]), dtypes[spec.name], np.dtype(np.float64), raw=row.raw)
        if spec.name in sample else None
        for spec in row.inputs
    }  # fmt: skip
    got = to_numpy(sample["got"]).astype(np.float64)
    name = row.outputs[0].name
    attributes = row.with_defaults(instruction.attributes) | ({"sub": instruction.sub} if row.subs else {})
    assert row.semantics is not None
    result = row.semantics(Out(got.shape, dtypes[name]), **operands, **attributes)
    exact = np.asarray(result[0] if isinstance(result, tuple) else result, np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(got - exact)
        if row.error.slack is None:
            return 0.0 if np.array_equal(got, exact) else float("inf")
        allowed = row.error.tolerance(exact, dtypes[name], operands, attributes)
        share = np.where(off == 0, 0, off / allowed)
    return float(np.max(np.where(np.isnan(share), np.inf, share)))


def beside_native(ours: Ours, output: str, native: torch.Tensor, exact: torch.Tensor) -> Check:
    """Compare the whole of a long computation: its error may be twice that of native kernels in the same types."""
    same = identical(ours, output)
    got = ours.output(output, exact.shape).to(exact.device).to(torch.float64)
    exact = exact.to(torch.float64)
    theirs = (native.to(torch.float64) - exact).abs().max()
    mine = (got - exact).abs().max()
    share = float(mine / (2 * theirs)) if float(theirs) else float("inf" if float(mine) else 0)
    return Check(share if share == share else float("inf"), OF_NATIVE, same)


def alike(ours: Ours, other: Ours, output: str) -> Check:
    """Compare with what another kernel of the machine computes from the same data: no bit may differ."""
    same = identical(ours, output)
    other()
    other.check()
    equal = torch.equal(*(x.output(output).contiguous().view(torch.uint8) for x in (ours, other)))
    return Check(0.0 if equal else float("inf"), OF_ANOTHER, same)


def identical(ours: Ours, output: str) -> bool:
    """Run again and again, and compare the bits of the output."""
    ours()
    ours.check()
    first = ours.output(output).clone()
    same = True
    for _ in range(RERUNS - 1):
        ours()
        again = ours.output(output)
        same = same and bool(torch.equal(first.view(torch.uint8), again.contiguous().view(torch.uint8)))
    ours.check()
    return same
