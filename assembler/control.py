"""What only the whole program tells: where labels are, which ENDLOOP ends a LOOP, how many loops a branch leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from dla.assembler.instructions import Lowered
from dla.assembler.source import Complaints, Place, suggestion
from dla.assembler.syntax import name_of


@dataclass
class Code:
    """The instructions read so far; None stands for one that was refused."""

    lowered: list[Lowered | None] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def resolve(code: Code, complaints: Complaints) -> None:
    """Fill in every target, loop end and count of left loops; complain about what does not fit."""
    loops = _match_loops(code, complaints)
    for index, lowered in enumerate(code.lowered):
        if lowered is None:
            continue
        for name, label in lowered.targets.items():
            target = _target(code, index, label, complaints)
            if target is None:
                continue
            lowered.attributes[name] = target
            if "leaves" in lowered.row.all_attributes:
                leaves = sum(1 for begin, end in loops if begin < index < end and not begin < target <= end)
                lowered.attributes["leaves"] = leaves


def _target(code: Code, index: int, label: Token, complaints: Complaints) -> int | None:
    target = code.labels.get(name_of(label))
    if target is None:
        hint = suggestion(name_of(label), code.labels)
        complaints.add(code.places[index], label, f"unknown label {name_of(label)}", hint or f"write `{label}:` there")
    elif target == len(code.lowered):
        complaints.add(code.places[index], label, f"no instruction follows label {name_of(label)}", "add a HALT there")
        target = None
    return target


def _match_loops(code: Code, complaints: Complaints) -> list[tuple[int, int]]:
    """(index of LOOP, index of ENDLOOP) of every loop; their `end` and `begin` are set."""
    loops: list[tuple[int, int]] = []
    open_loops: list[tuple[int, Lowered]] = []
    for index, lowered in enumerate(code.lowered):
        if lowered is None:
            continue
        implicit = {name for name, a in lowered.row.all_attributes.items() if a.implicit}
        if "end" in implicit:
            open_loops.append((index, lowered))
        elif "begin" in implicit:
            if not open_loops:
                at = lowered.statement.mnemonic
                complaints.add(code.places[index], at, f"this {at} has no LOOP", "remove it, or add the LOOP")
                continue
            begin, opening = open_loops.pop()
            opening.attributes["end"], lowered.attributes["begin"] = index, begin
            loops.append((begin, index))
    for index, lowered in open_loops:
        at = lowered.statement.mnemonic
        complaints.add(code.places[index], at, f"this {at} has no ENDLOOP", "add ENDLOOP after the loop's body")
    return loops
