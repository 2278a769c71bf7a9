"""V-WORLD, V-SHARD, V-GROUP: tables of ranks, constants that are cut into pieces, and who takes part in what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dla.isa import shapes
from dla.isa.descriptor import Dim, Segment
from dla.isa.names import is_identifier, shown
from dla.isa.program import Instruction, Program
from dla.isa.ranks import COUNTED, MAX_WORLD, RankGroup, RankTable, Shard, group_problem, pairs_problem, sizes_of
from dla.isa.shapes import is_static
from dla.isa.verifier.rules import Report


def check(program: Program, report: Report) -> None:
    """Report every broken rule about tables of ranks and shards; of collectives only if those are sound."""
    before = len(report.rejections)
    for found in _table_problems(program):
        report.reject("V-WORLD", found)
    if len(report.rejections) > before:
        return
    seen: set[str] = set()
    for shard in program.shards:
        problem = _shard_problem(program, shard, seen)
        if problem is not None:
            report.reject("V-SHARD", f"constant {shown(shard.tensor)} {problem}")
        seen.add(shard.tensor)
    for index, instruction in enumerate(program.instructions):
        if instruction.row.collective:
            for problem, hint in _problems(program, instruction):
                report.reject("V-GROUP", f"{instruction.name}: {problem}", index, hint)


def _table_problems(program: Program) -> Iterator[str]:
    world = program.world
    if not 0 <= world <= MAX_WORLD:
        yield f"a world has at most {MAX_WORLD} ranks, not {world}"
        return
    if not world and (program.groups or program.pairs or program.shards):
        yield "it has groups, pairs or shards, but does not say how many ranks it is for"
    for named in (program.groups, program.pairs):
        names = [table.name for table in named]
        if len(set(names)) != len(names) or not all(map(is_identifier, names)):
            yield "groups, and pairs, have different identifiers as names"
    for what, tables in (("group", program.groups), ("pairs", program.pairs)):
        for table in tables:
            problem = group_problem(table, world) if isinstance(table, RankGroup) else pairs_problem(table, world)
            if problem is not None:
                yield f"{what} {shown(table.name)} {problem}"


def _shard_problem(program: Program, shard: Shard, seen: set[str]) -> str | None:
    tensor = program.by_name.get(shard.tensor)
    if tensor is None or tensor.segment is not Segment.CONST:
        return "is cut into pieces, and does not exist"
    if shard.tensor in seen:
        return "is cut twice"
    if not 0 <= shard.axis < tensor.descriptor.rank:
        return f"has no axis {shard.axis} to be cut along"
    if not 0 <= shard.group <= len(program.groups):
        return "is cut for a group that does not exist"
    sizes = sizes_of(program.groups, shard.group, program.world)
    if len(sizes) != 1:
        return "is cut for a group whose lists are not equally long"
    nbytes = tensor.descriptor.elements * tensor.descriptor.dtype.itemsize * min(sizes)
    if shard.data.dtype != np.uint8 or shard.data.shape != (nbytes,):
        return f"has {shard.data.nbytes} bytes, and its pieces have {nbytes} together"
    return None


def _problems(program: Program, instruction: Instruction) -> Iterator[tuple[str, str | None]]:
    """What is wrong with a collective, and what to do about it."""
    for name, attribute in instruction.row.all_attributes.items():
        if isinstance(attribute, RankTable):
            known = len(program.groups if attribute.table == "groups" else program.pairs)
            if (instruction.attributes.get(name) or 0) > known:
                yield f"{name} is number {instruction.attributes[name]} of {known}", None
                return
    if "group" not in instruction.row.all_attributes:
        return
    group = instruction.attributes.get("group", 0)
    sizes = sorted(sizes_of(program.groups, group, program.world))
    counted = _counted(instruction)
    if not program.world:
        hint = "say how many ranks the program is for, before anything else: .world 4"
        if counted is not None and is_static(counted):
            yield f"it has {counted} parts, one for each rank, but how many ranks there are is not known", hint
        if instruction.attributes.get("root", 0):
            yield "a root other than the first rank may not be there", hint
        return
    if counted is not None and is_static(counted) and sizes != [counted]:
        ranks = " or ".join(map(str, sizes))
        yield f"it has {counted} parts, one for each rank, but its group has {ranks} ranks", None
    if instruction.attributes.get("root", 0) >= sizes[0]:
        yield f"root {instruction.attributes['root']} is not in a group of {sizes[0]} ranks", "count from 0"


def _counted(instruction: Instruction) -> Dim | None:
    """The dim that is the number of ranks, where a collective has one."""
    bindings = shapes.Bindings({}, {})
    try:
        for spec, view in zip(instruction.row.operands, instruction.operands, strict=True):
            if view is not None:
                shapes.unify(shapes.parse(spec.shape), view.dims, bindings, spec.name)
    except shapes.ShapeMismatch:
        return None  # which is reported elsewhere
    return bindings.dims.get(COUNTED)
