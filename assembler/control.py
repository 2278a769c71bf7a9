"""What only the whole program tells: where labels are, which ENDLOOP ends a LOOP, how many loops a branch leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from dla.assembler.instructions import Lowered
from dla.assembler.source import Complaints, Place, suggestion
from dla.assembler.syntax import name_of
from dla.isa.attributes import Int


@dataclass
class Code:
    """The instructions read so far; None stands for one that was refused."""

    lowered: list[Lowered | None] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def resolve(code: Code, complaints: Complaints) -> None:
    """Fill in every target, loop end and count of left loops; complain about what does not fit."""
    parents = _match_loops(code, complaints)
    for index, lowered in enumerate(code.lowered):
        if lowered is None:
            continue
        for name, label in lowered.targets.items():
            target = _target(code, index, label, complaints)
            if target is None:
                continue
            lowered.attributes[name] = target
            if "leaves" in lowered.row.all_attributes:
                lowered.attributes["leaves"] = _loops_left(code, parents, index, target, complaints)


def _target(code: Code, index: int, label: Token, complaints: Complaints) -> int | None:
    target = code.labels.get(name_of(label))
    if target is None:
        hint = suggestion(name_of(label), code.labels)
        complaints.add(code.places[index], label, f"unknown label {name_of(label)}", hint or f"write `{label}:` there")
    elif target == len(code.lowered):
        complaints.add(code.places[index], label, f"no instruction follows label {name_of(label)}", "add a HALT there")
        target = None
    return target


def _loops_left(code: Code, parents: list[int], index: int, target: int, complaints: Complaints) -> int:
    """How many loops around `index` do not hold `target`; complains where the instruction cannot say it."""
    lowered = code.lowered[index]
    assert lowered is not None
    limit = lowered.row.all_attributes["leaves"]
    leaves, loop = 0, parents[index]
    while loop >= 0:
        opening = code.lowered[loop]
        if opening is None or loop < target <= opening.attributes.get("end", loop):
            break
        leaves, loop = leaves + 1, parents[loop]
        if isinstance(limit, Int) and leaves > limit.high:
            at = lowered.statement.mnemonic
            complaints.add(
                code.places[index], at, f"this branch leaves more than {limit.high} loops", "branch in steps"
            )
            return 0
    return leaves


def _match_loops(code: Code, complaints: Complaints) -> list[int]:
    """Set the `end` and `begin` of every loop; gives the innermost LOOP around each instruction, or -1."""
    parents: list[int] = []
    open_loops: list[int] = []
    for index, lowered in enumerate(code.lowered):
        implicit = () if lowered is None else _implicit(lowered)
        if lowered is not None and "begin" in implicit:
            if open_loops:
                begin = open_loops.pop()
                opening = code.lowered[begin]
                assert opening is not None
                opening.attributes["end"], lowered.attributes["begin"] = index, begin
            else:
                at = lowered.statement.mnemonic
                complaints.add(code.places[index], at, f"this {at} has no LOOP", "remove it, or add the LOOP")
        parents.append(open_loops[-1] if open_loops else -1)
        if "end" in implicit:
            open_loops.append(index)
    for index in open_loops:
        opening = code.lowered[index]
        assert opening is not None
        at = opening.statement.mnemonic
        complaints.add(code.places[index], at, f"this {at} has no ENDLOOP", "add ENDLOOP after the loop's body")
    return parents


def _implicit(lowered: Lowered) -> tuple[str, ...]:
    """Attributes that the assembler works out."""
    return tuple(a.name for a in lowered.row.attributes if a.implicit)
