"""V-OVERLAP and V-ALIAS: what an instruction writes is nothing else that it reads or writes.

A machine computes an output in any order, piece by piece, so an output must not change an input under way. Rows that
read each element before they write it (`Alias.SAME`) may write to the very view that they read; so may others for
operands that say so (`may_be_output`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dla.isa.descriptor import Descriptor
from dla.isa.program import Instruction, Program
from dla.isa.reach import Reach
from dla.isa.table import Alias, Role
from dla.isa.verifier import strides
from dla.isa.verifier.extents import address
from dla.isa.verifier.rules import Report
from dla.isa.verifier.scalars import Interval, States


def check(program: Program, states: States, report: Report) -> None:
    """Report outputs that overlap themselves or another operand."""
    checker = Checker(Reach(program))
    for index, instruction in enumerate(program.instructions):
        if instruction.row.outputs:
            for rule, problem in checker.problems(instruction, states.get(index)):
                report.reject(rule, f"{instruction.name}: {problem}", index, _HINTS[rule])


_HINTS = {
    "V-OVERLAP": "write to a tensor or a view whose elements are all in different places",
    "V-ALIAS": "write to another tensor, and copy if need be",
}


class Checker:
    """Remembers answers about views that programs use again and again (by id: the program keeps them alive)."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._apart: dict[int, bool] = {}
        self._disjoint: dict[tuple[int, int], bool] = {}

    def problems(self, instruction: Instruction, registers: Sequence[Interval] | None) -> Iterator[tuple[str, str]]:
        """Rules that `instruction` breaks, whatever its registers hold."""
        views = [
            (spec, view)
            for spec, view in zip(instruction.row.operands, instruction.operands, strict=True)
            if view is not None
        ]
        for position, (spec, view) in enumerate(views):
            if spec.role is not Role.OUT:
                continue
            if not self._is_apart(view):
                yield "V-OVERLAP", f"elements of {spec.name} overlap each other"
            for other_position, (other_spec, other) in enumerate(views):
                if other_spec.role is Role.OUT and other_position <= position:
                    continue
                if view.segment is not other.segment or self.are_disjoint(view, other, registers):
                    continue
                elementwise = instruction.row.alias is Alias.SAME or other_spec.may_be_output
                may_be_same = elementwise and other_spec.role is Role.IN
                if not (may_be_same and strides.same(view, other)):
                    what = "is not exactly" if may_be_same else "shares memory with"
                    yield "V-ALIAS", f"{spec.name} {what} {other_spec.name}" + (
                        ", but shares memory with it" if may_be_same else "")  # fmt: skip

    def _is_apart(self, view: Descriptor) -> bool:
        known = self._apart.get(id(view))
        if known is None:
            known = self._apart[id(view)] = strides.apart(view)
        return known

    def are_disjoint(self, a: Descriptor, b: Descriptor, registers: Sequence[Interval] | None) -> bool:
        """Whether two views of one segment have no byte in common, whatever the registers hold.

        `registers` are the intervals before the instruction; None where nothing is known of them.
        """
        if a.span == 0 or b.span == 0:
            return True
        if (a.offset_register, a.offset_scale) == (b.offset_register, b.offset_scale):
            key = (id(a), id(b))
            known = self._disjoint.get(key)
            if known is None:
                known = self._disjoint[key] = strides.disjoint(a, b)
            if known:
                return True
        if a.offset_register is None and b.offset_register is None:
            return False
        (low_a, high_a), (low_b, high_b) = hull(a, self._reach, registers), hull(b, self._reach, registers)
        return high_a <= low_b or high_b <= low_a


def hull(view: Descriptor, reach: Reach, registers: Sequence[Interval] | None) -> tuple[int, int]:
    """First byte and last byte + 1 of all that `view` may touch; `registers` is None where nothing is known of them."""
    low, high = reach.of(view)
    if view.offset_register is None or registers is None:
        return low, high
    first, last = address(view, registers)
    return max(low, first), min(high, last + view.span)
