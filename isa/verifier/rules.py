"""The verifier's rules by id, and the report that collects what breaks them.

A row's numbered constraints are rules too, with ids such as "GEMM.C2"; their texts are in the rows.
"""

from __future__ import annotations

from dla.isa.errors import Rejection
from dla.isa.names import shown
from dla.isa.program import Program

RULES: dict[str, str] = {
    "V-SIZE": "the program has 1 to 65,536 instructions and at most 32,768 tensors",
    "V-FIELD": "every operand and attribute is one that the row has, with a value that its encoding can hold",
    "V-NAME": "the program, tensors, dims and labels are named by identifiers; tensors and dims differ in name",
    "V-DEBUG": "the debug section speaks of instructions that exist, in printable text",
    "V-SEGMENT": "no segment is larger than 2**40 bytes, nor are all together",
    "V-TENSOR": "a named tensor is contiguous, static in place and inside its segment; inputs, outputs and states "
                "do not overlap",
    "V-DIM": "a named dim has a register of its own, from s0 to s31, that no instruction writes",
    "V-CONST": "constants are bytes inside the const segment, sorted by offset, that do not overlap",
    "V-OPERAND": "the operands that the row requires are present, and no others",
    "V-TYPE": "element types are those that the row allows",
    "V-SHAPE": "shapes fit the row's patterns",
    "V-STATIC": "dims that the row needs constant are constant",
    "V-EXTENT": "every element of an operand, at its largest dims, lies in its segment, and registers can hold its "
                "dims and address",
    "V-ALIGN": "operands begin at a multiple of their element size",
    "V-READONLY": "const and input segments are not written",
    "V-OVERLAP": "the elements of an output lie apart from each other",
    "V-ALIAS": "an output shares no memory with another operand, unless the row allows the very same view",
    "V-LOOP": "LOOP and ENDLOOP pair up and nest at most 8 deep (calls included); a body does not write its counter",
    "V-BRANCH": "a branch goes forward in its own function, enters no loop, and states how many loops it leaves",
    "V-CALL": "calls go to functions outside the caller, never recurse, and nest at most 16 deep",
    "V-RETURN": "RET stands in a function, outside of loops",
    "V-END": "the main program and every function end with HALT or RET, so that nothing runs on into other code",
    "V-STEPS": "at most 2**40 instructions can be executed in one run",
    "V-INIT": "no instruction reads scratch or output bytes that nothing can have written before",
    "V-WORLD": "groups of ranks are partitions of the program's world, in ascending order; pairs are ranks of it, each "
               "at most once a sender and once a receiver",
    "V-SHARD": "a constant of which each rank holds a piece is as large as all pieces together",
    "V-GROUP": "a collective names a group or pairs that exist, a root inside the group, and has one part for each "
               "rank of it",
    "V-RANKS": "all ranks execute the same collectives in the same order, with the same shapes",
}  # fmt: skip
"""Id and meaning of each rule."""

MAX_REJECTIONS = 50
"""More than this is no help to anybody; the rest is counted."""


class Report:
    """Collects rejections. Messages may quote hostile names: use `names.shown` for those."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.rejections: list[Rejection] = []
        self.dropped = 0

    @property
    def is_full(self) -> bool:
        """Whether further rejections are only counted."""
        return len(self.rejections) >= MAX_REJECTIONS

    def reject(self, rule: str, message: str, instruction: int | None = None, hint: str | None = None) -> None:
        """Note that `rule` is broken, at an instruction where there is one."""
        if rule not in RULES and "." not in rule:
            raise KeyError(rule)
        if self.is_full:
            self.dropped += 1
            return
        location = None if instruction is None else self._program.location(instruction)
        self.rejections.append(
            Rejection(rule, message, instruction, None if location is None else shown(location), hint)
        )
