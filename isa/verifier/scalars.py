"""What the integer registers can hold: an interval for each, before every instruction that uses them in a view.

One pass in program order suffices, because branches go forward. What a loop's body or a called function writes is
taken to be anything when it is entered again; a loop's counter stays between 0 and its largest count.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dla.isa.descriptor import Descriptor, Dynamic
from dla.isa.dtypes import DType
from dla.isa.program import Instruction, Program
from dla.isa.ranks import MAX_WORLD
from dla.isa.registers import Register, RegisterClass, Scalar
from dla.isa.verifier.control import Flow, Function, most_trips
from dla.isa.verifier.registers import written

Interval = tuple[int, int]
"""Smallest and largest value, both included."""

ANY: Interval = (-(2**63), 2**63 - 1)
_AT = {RegisterClass.RANK: RegisterClass.INT.count, RegisterClass.WORLD: RegisterClass.INT.count + 1}
"""Where a state has the registers that are read-only."""
_LOADED: dict[DType, Interval] = {
    DType.I8: (-(2**7), 2**7 - 1), DType.U8: (0, 2**8 - 1), DType.I32: (-(2**31), 2**31 - 1),
}  # fmt: skip

State = list[Interval]
"""One interval per integer register, then those of RANK and WORLD."""

States = dict[int, tuple[Interval, ...]]
"""What the registers can hold before an instruction, for those whose operands use registers."""


def analyse(program: Program, flow: Flow) -> States:
    """The intervals before each instruction that has a dynamic operand and can be reached."""
    least, most = (program.world, program.world) if program.world else (1, MAX_WORLD)
    start: State = [(0, 0)] * RegisterClass.INT.count + [(0, most - 1), (least, most)]
    for dim in program.dims:
        start[dim.register] = (0, dim.bound)
    entries: dict[int, State] = {0: start}
    states: States = {}
    for function in reversed(flow.functions.values()):  # callers before callees
        if function.start in entries:
            _Walk(program, flow, function, entries, states).run()
    return states


class _Walk:
    """The pass over one function. `entries` collects the states in which functions are called."""

    def __init__(
        self, program: Program, flow: Flow, function: Function, entries: dict[int, State], states: States
    ) -> None:
        self._program, self._flow, self._function = program, flow, function
        self._entries, self._states = entries, states
        self._arriving: dict[int, State] = {}  # by target of branches still ahead
        self._before_loop: dict[int, State] = {}  # by LOOP, as are the numbers of trips
        self._trips: dict[int, Interval] = {}
        self._snapshot: tuple[Interval, ...] = ()
        self._loop_writes = _loop_writes(program, flow, function)

    def run(self) -> None:
        state: State | None = list(self._entries[self._function.start])
        for index in range(self._function.start, self._function.end):
            arriving = self._arriving.pop(index, None)
            if arriving is not None:
                state = arriving if state is None else _join(state, arriving)
            instruction = self._program.instructions[index]
            if instruction.row.mnemonic == "ENDLOOP":
                state = self._end_loop(instruction.attributes.get("begin", 0), state)
            elif state is not None:
                state = self._step(index, instruction, state)

    def _step(self, index: int, instruction: Instruction, state: State) -> State | None:
        """The state after instruction `index`; None if control does not go on from there."""
        attributes = instruction.attributes
        dynamic = [view for view in instruction.operands if view is not None and view.is_dynamic]
        if dynamic:
            snapshot = tuple(state)
            if snapshot != self._snapshot:  # mostly it is the same: no need to keep it twice
                self._snapshot = snapshot
            self._states[index] = self._snapshot
        for view in dynamic:
            _learn(view, state)
        match instruction.row.mnemonic:
            case "HALT" | "RET":
                return None
            case "BR":
                self._merge(self._arriving, attributes["target"], state)
                if attributes.get("if") is None and attributes.get("unless") is None:
                    return None
            case "CALL":
                target = attributes.get("target", 0)
                self._merge(self._entries, target, state)
                _forget(state, self._flow.functions[target].writes)
            case "LOOP":
                self._begin_loop(index, attributes, state)
            case _:
                execute(instruction, state)
        return state

    def _begin_loop(self, index: int, attributes: Mapping[str, Any], state: State) -> None:
        count = attributes.get("count", 0)
        low, high = _interval(count, state)
        low, high = max(0, low), min(high, most_trips(attributes))
        counter = attributes["counter"].index
        self._before_loop[index] = list(state)
        self._trips[index] = (min(low, high), max(0, high))
        _forget(state, self._loop_writes[index])
        state[counter] = (0, max(0, high - 1))

    def _end_loop(self, begin: int, state: State | None) -> State | None:
        """The state after a loop: at the end of its last trip, or before the loop if there may be none."""
        before = self._before_loop.pop(begin, None)
        if before is None:
            return None  # the loop is not reached
        trips = self._trips[begin]
        if state is None or trips[0] == 0:
            state = before if state is None else _join(state, before)
        state[self._program.instructions[begin].attributes["counter"].index] = trips
        return state

    @staticmethod
    def _merge(states: dict[int, State], key: int, state: State) -> None:
        states[key] = _join(states[key], state) if key in states else list(state)


def _loop_writes(program: Program, flow: Flow, function: Function) -> dict[int, set[Register]]:
    """The registers that each loop's body writes, with the functions that it calls."""
    result: dict[int, set[Register]] = {}
    for index in range(function.start, function.end):
        instruction = program.instructions[index]
        if instruction.row.mnemonic == "LOOP":
            result[index] = set()
        writes: Collection[Register] = written(instruction)
        if instruction.row.mnemonic == "CALL":
            writes = flow.functions[instruction.attributes.get("target", 0)].writes
        if writes:
            for loop in flow.around(index):
                result[loop].update(writes)
    return result


def _join(a: State, b: State) -> State:
    return [x if x == y else (min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True)]


def _forget(state: State, registers: Collection[Register]) -> None:
    for register in registers:
        if register.cls is RegisterClass.INT:
            state[register.index] = ANY


def _learn(descriptor: Descriptor, state: State) -> None:
    """After an instruction has used `descriptor` without a trap, its dims were between 0 and their bounds."""
    for dim in descriptor.dims:
        if isinstance(dim, Dynamic):
            low, high = max(0, state[dim.register][0]), min(dim.bound, state[dim.register][1])
            if low <= high:
                state[dim.register] = (low, high)


def _interval(value: Scalar, state: State) -> Interval:
    if isinstance(value, Register):
        if value.cls is RegisterClass.INT:
            return state[value.index]
        return state[_AT[value.cls]] if value.is_int else ANY
    return (value, value) if isinstance(value, int) else ANY


def execute(instruction: Instruction, state: State) -> None:
    """Note what `instruction` writes to integer registers."""
    attributes = instruction.attributes
    for register in written(instruction):
        if register.cls is not RegisterClass.INT:
            continue
        result: Interval | None = ANY
        match instruction.row.mnemonic:
            case "MOV":
                result = _interval(attributes.get("src", 0), state)
            case "ALU":
                function = _FUNCTIONS.get(instruction.sub)
                a, b = (_interval(attributes.get(name, 0), state) for name in ("a", "b"))
                result = function(a, b) if function is not None else ANY
            case "LOADS":
                source = instruction.operands[0]
                result = ANY if source is None else _LOADED.get(source.dtype, ANY)
        # A result that may not fit wraps around: then it can be anything.
        fits = result is not None and ANY[0] <= result[0] and result[1] <= ANY[1]
        state[register.index] = result if result is not None and fits else ANY


def _corners(function: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    """The interval of a function that is monotone in each argument, from its values at the corners."""

    def apply(a: Interval, b: Interval) -> Interval:
        values = [function(x, y) for x in a for y in b]
        return min(values), max(values)

    return apply


def _quotient(a: Interval, b: Interval) -> Interval | None:
    """Truncated division by a positive number."""
    if b[0] <= 0:
        return None
    values = [abs(x) // y * (1 if x >= 0 else -1) for x in a for y in b]
    return min(values), max(values)


def _remainder(a: Interval, b: Interval) -> Interval | None:
    """Result of mod for positive b: from 0 to b - 1, and a itself where that is smaller."""
    if b[0] <= 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _magnitude(a: Interval, b: Interval) -> Interval:
    low, high = sorted((abs(a[0]), abs(a[1])))
    return (0 if a[0] <= 0 <= a[1] else low), high


def _shifted_right(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] > 63:
        return None
    return _corners(lambda x, y: x >> y)(a, b)


def _shifted_left(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] > 63:
        return None
    return _corners(lambda x, y: x << y)(a, b)


def _masked(a: Interval, b: Interval) -> Interval | None:
    """Bitwise and with something that is not negative: at most that."""
    limits = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(limits)) if limits else None


_FUNCTIONS: dict[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": _corners(operator.add),
    "sub": _corners(operator.sub),
    "mul": _corners(operator.mul),
    "div": _quotient,
    "mod": _remainder,
    "min": _corners(min),
    "max": _corners(max),
    "neg": lambda a, b: (-a[1], -a[0]),
    "abs": _magnitude,
    "not": lambda a, b: (~a[1], ~a[0]),
    "shl": _shifted_left,
    "shr": _shifted_right,
    "and": _masked,
}
"""Interval arithmetic of ALU; what is not here gives anything."""
