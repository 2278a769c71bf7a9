"""The verifier: every program passes it before any machine runs it.

    fields -> symbols, worlds, operands, control -> scalars -> extents, aliasing, initialisation, uniformity

Each stage relies on the ones before, so a program that fails one is not asked further. Two promises are tested: what
is accepted never faults on a machine (tests/trust), and nothing sensible is rejected (programs/). What cannot be known
before a run (indices and registers that come from data) the machines check, and trap.
"""

from __future__ import annotations

from dla.isa.errors import Rejection, VerifyError
from dla.isa.program import Program
from dla.isa.verifier import (
    aliasing,
    control,
    extents,
    fields,
    initialisation,
    operands,
    scalars,
    symbols,
    uniformity,
    worlds,
)
from dla.isa.verifier.rules import RULES, Report

__all__ = ["RULES", "unproven", "verify"]


def verify(program: Program) -> None:
    """Return if every machine may run `program`. Raises VerifyError with every rejection found (at most 50)."""
    report = Report(program)
    _run(program, report)
    if report.rejections:
        more = [Rejection("V-MORE", f"and {report.dropped} more")] if report.dropped else []
        raise VerifyError(report.rejections + more)


def unproven(program: Program) -> frozenset[tuple[int, str]]:
    """The operands, as (instruction index, operand name), whose extent a machine must check at run time."""
    return _run(program, Report(program))


def _run(program: Program, report: Report) -> frozenset[tuple[int, str]]:
    """Ask stage after stage until one rejects. Returns the operands to check at run time."""
    fields.check(program, report)
    if report.rejections:
        return frozenset()
    symbols.check(program, report)
    worlds.check(program, report)
    operands.check(program, report)
    flow = control.check(program, report)
    if report.rejections or flow is None:
        return frozenset()
    states = scalars.analyse(program, flow)
    to_check = extents.check(program, states, report)
    if not report.rejections:
        aliasing.check(program, states, report)
        initialisation.check(program, flow, states, report)
        uniformity.check(program, flow, report)
    return to_check
