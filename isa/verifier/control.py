"""V-LOOP, V-BRANCH, V-CALL, V-RETURN, V-END, V-STEPS: every program ends, and its structure is what it looks like.

The code is cut into functions at instruction 0 and at every target of a CALL. Within one, loops nest and branches go
forward; between them, calls form no cycle. So the longest run is a product of loop counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dla.isa.instructions.control import MAX_CALL_DEPTH, MAX_LOOP_DEPTH
from dla.isa.program import Program
from dla.isa.registers import Register
from dla.isa.verifier.registers import written
from dla.isa.verifier.rules import Report

MAX_STEPS = 2**40
NO_LOOP = -1


@dataclass
class Function:
    """The instructions `start` to `end` (exclusive), and what was learnt about them."""

    start: int
    end: int
    calls: list[int] = field(default_factory=list)  # indices of its CALLs
    writes: set[Register] = field(default_factory=set)  # also those of the functions that it calls
    steps: int = 0  # most instructions that one execution takes, with its calls
    call_depth: int = 0
    loop_depth: int = 0


@dataclass
class Flow:
    """The structure of a program."""

    functions: dict[int, Function]  # by start; callees before callers once `_order` has run
    ends: dict[int, int] = field(default_factory=dict)  # ENDLOOP of each LOOP
    loop_of: list[int] = field(default_factory=list)  # innermost LOOP around each instruction, or NO_LOOP
    parent: dict[int, int] = field(default_factory=dict)  # LOOP around each LOOP

    def around(self, index: int) -> Iterator[int]:
        """The LOOPs around instruction `index`, from the inside out."""
        loop = self.loop_of[index]
        while loop != NO_LOOP:
            yield loop
            loop = self.parent[loop]


def check(program: Program, report: Report) -> Flow | None:
    """Report every broken rule of control flow; the structure, if there is none."""
    before = len(report.rejections)
    flow = Flow(_functions(program, report), loop_of=[NO_LOOP] * len(program.instructions))
    for function in flow.functions.values():
        _check_loops(program, flow, function, report)
    if len(report.rejections) > before:
        return None
    for function in flow.functions.values():
        _check_jumps(program, flow, function, report)
    if len(report.rejections) == before and _order(program, flow, report):
        _check_calls(program, flow, report)
    return flow if len(report.rejections) == before else None


def _functions(program: Program, report: Report) -> dict[int, Function]:
    count = len(program.instructions)
    starts = {0}
    for index, instruction in enumerate(program.instructions):
        if instruction.row.mnemonic == "CALL":
            target = instruction.attributes.get("target", 0)
            if target >= count:
                report.reject("V-CALL", f"the call goes to instruction {target} of {count}", index)
            else:
                starts.add(target)
    ordered = sorted(starts)
    functions = {a: Function(a, b) for a, b in zip(ordered, [*ordered[1:], count], strict=True)}
    for function in functions.values():
        last = program.instructions[function.end - 1].row.mnemonic
        if last not in ("HALT", "RET"):
            what = "the program" if function.end == count else f"the code before the function at {function.end}"
            report.reject("V-END", f"{what} ends with {last}, not HALT or RET", function.end - 1,
                          "end it with HALT, or a function with RET")  # fmt: skip
    return functions


def _check_loops(program: Program, flow: Flow, function: Function, report: Report) -> None:
    """Pair LOOP and ENDLOOP, and see that bodies leave their counters alone (calls are seen to later)."""
    open_loops: list[int] = []
    counters: list[Any] = []
    for index in range(function.start, function.end):
        instruction = program.instructions[index]
        flow.loop_of[index] = open_loops[-1] if open_loops else NO_LOOP
        for register in written(instruction):
            function.writes.add(register)
            if register in counters:
                report.reject("V-LOOP", f"{instruction.name} writes {register}, the counter of a loop around it", index)
        mnemonic = instruction.row.mnemonic
        if mnemonic == "LOOP":
            flow.parent[index] = flow.loop_of[index]
            open_loops.append(index)
            counters.append(instruction.attributes.get("counter"))
            function.loop_depth = max(function.loop_depth, len(open_loops))
        elif mnemonic == "ENDLOOP":
            if not open_loops or instruction.attributes.get("begin", 0) != open_loops[-1]:
                report.reject("V-LOOP", "ENDLOOP does not match a LOOP", index)
                return
            begin = open_loops.pop()
            counters.pop()
            flow.ends[begin] = index
            if program.instructions[begin].attributes.get("end", 0) != index:
                report.reject("V-LOOP", "LOOP does not know its ENDLOOP", begin)
        elif mnemonic == "CALL":
            function.calls.append(index)
        if len(open_loops) > MAX_LOOP_DEPTH:
            report.reject("V-LOOP", f"loops nest more than {MAX_LOOP_DEPTH} deep", index)
            return
    if open_loops:
        report.reject("V-LOOP", "LOOP has no ENDLOOP in its function", open_loops[-1])


def _check_jumps(program: Program, flow: Flow, function: Function, report: Report) -> None:
    for index in range(function.start, function.end):
        instruction = program.instructions[index]
        mnemonic = instruction.row.mnemonic
        if mnemonic == "BR":
            problem = _branch_problem(flow, function, index, instruction.attributes)
            if problem is not None:
                report.reject("V-BRANCH", problem, index)
        elif mnemonic == "RET" and function.start == 0:
            report.reject("V-RETURN", "RET outside of a function", index, "end the main program with HALT")
        elif mnemonic == "RET" and flow.loop_of[index] != NO_LOOP:
            report.reject("V-RETURN", "RET inside a loop", index, "branch out of the loop first")


def _branch_problem(flow: Flow, function: Function, index: int, attributes: Mapping[str, Any]) -> str | None:
    target = attributes.get("target", 0)
    if target <= index:
        return f"the branch goes back to instruction {target}"
    if target >= function.end:
        return f"the branch goes to instruction {target}, outside of its function"
    left = 0
    goal = flow.loop_of[target]
    for loop in flow.around(index):
        if loop == goal:
            break
        left += 1
    else:
        if goal != NO_LOOP:
            return f"the branch goes to instruction {target}, into a loop"
    stated = attributes.get("leaves", 0)
    return None if stated == left else f"the branch leaves {left} loops but states {stated}"


def _order(program: Program, flow: Flow, report: Report) -> bool:
    """Sort the functions so that callees come before their callers. False (and reported) if calls recurse."""
    done: dict[int, Function] = {}
    active: set[int] = set()
    for root in flow.functions:
        stack = [(root, iter(flow.functions[root].calls))] if root not in done else []
        active = {root}
        while stack:
            start, sites = stack[-1]
            site = next(sites, None)
            if site is None:
                stack.pop()
                active.discard(start)
                done[start] = flow.functions[start]
                continue
            target = program.instructions[site].attributes.get("target", 0)
            if target in active:
                report.reject("V-CALL", f"the call to instruction {target} recurses", site)
                return False
            if target not in done:
                active.add(target)
                stack.append((target, iter(flow.functions[target].calls)))
    flow.functions = done
    return True


def _check_calls(program: Program, flow: Flow, report: Report) -> None:
    """Depths, steps and registers written, callees first."""
    for function in flow.functions.values():
        for site in function.calls:
            callee = flow.functions[program.instructions[site].attributes.get("target", 0)]
            around = list(flow.around(site))
            function.call_depth = max(function.call_depth, 1 + callee.call_depth)
            function.loop_depth = max(function.loop_depth, len(around) + callee.loop_depth)
            function.writes |= callee.writes
            for loop in around:
                counter = program.instructions[loop].attributes.get("counter")
                if counter in callee.writes:
                    report.reject("V-LOOP", f"the function called writes {counter}, the counter of a loop around", site)
        function.steps = _steps(program, flow, function)
    main = flow.functions[0]
    if main.call_depth > MAX_CALL_DEPTH:
        report.reject("V-CALL", f"calls nest {main.call_depth} deep; at most {MAX_CALL_DEPTH} are possible")
    if main.loop_depth > MAX_LOOP_DEPTH:
        report.reject(
            "V-LOOP", f"loops nest {main.loop_depth} deep through calls; at most {MAX_LOOP_DEPTH} are possible"
        )
    if main.steps > MAX_STEPS:
        report.reject("V-STEPS", f"up to {main.steps:.3g} instructions could be executed", None,
                      "give loops smaller counts or max")  # fmt: skip


def _steps(program: Program, flow: Flow, function: Function) -> int:
    total, trips = 0, [1]
    for index in range(function.start, function.end):
        instruction = program.instructions[index]
        total += trips[-1]
        mnemonic = instruction.row.mnemonic
        if mnemonic == "LOOP":
            trips.append(trips[-1] * most_trips(instruction.attributes))
        elif mnemonic == "ENDLOOP":
            trips.pop()
        elif mnemonic == "CALL":
            total += trips[-1] * flow.functions[instruction.attributes.get("target", 0)].steps
    return total


def most_trips(attributes: Mapping[str, Any]) -> int:
    """The largest number of trips of a LOOP."""
    count = attributes.get("count", 0)
    return int(attributes.get("max", 0)) if isinstance(count, Register) else int(count)
