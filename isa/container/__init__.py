"""The program file, `.dlab`: `Program` to bytes and back.

One program has one file: `write_bytes(read_bytes(data)) == data` for every file that is accepted (unknown optional
sections are dropped). Reading checks everything before it builds anything, copies no constants, and
answers damage, hostility and newer versions with ContainerError. What a program *means* is the verifier's business.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dla.isa import weights
from dla.isa.atomic import replacing
from dla.isa.container import constants, layout, ranks, sections
from dla.isa.container.layout import Feature, Kind, Section
from dla.isa.errors import ContainerError, InputError
from dla.isa.files import Chunk, map_file
from dla.isa.names import shown
from dla.isa.program import MAX_INSTRUCTIONS, MAX_TENSORS, Program

__all__ = ["load", "read_bytes", "save", "write_bytes"]


def write_bytes(program: Program) -> bytes:
    """The `.dlab` file of `program`. Equal programs give equal bytes. Raises ContainerError if it has no encoding."""
    return b"".join(_chunks(program))


def save(program: Program, path: Path, *, external: Path | None = None) -> None:
    """Write `program` to `path`, whole or not at all.

    With `external`, a file in the same folder, named constants go to that `.safetensors` file instead.
    Raises InputError where the folder cannot be written, ContainerError where the program cannot.
    """
    outputs: dict[Path, list[Chunk]] = {}
    if external is not None:
        if external.parent not in (Path(), path.parent):
            raise InputError(f"the weights file must lie in the program's own folder, not at '{shown(external)}'")
        program, outputs[path.parent / external.name] = weights.move_out(program, path.parent, external.name)
    outputs[path] = _chunks(program)
    with replacing(*outputs) as files:
        for file, chunks in zip(files, outputs.values(), strict=True):
            for chunk in chunks:
                file.write(chunk)


def read_bytes(data: bytes | memoryview) -> Program:
    """The program in `data`; its constants are views of `data`. Raises ContainerError.

    External constants stay unread, since bytes have no folder: use `load` for those.
    """
    parts, features = layout.split(memoryview(data).toreadonly())
    version, name, segment_bytes = sections.decode_program(parts[Kind.PROGRAM])
    instructions = sections.decode_code(parts)
    tensors, dims = sections.decode_symbols(parts[Kind.SYMBOLS])
    world, groups, pairs = ranks.decode_groups(parts[Kind.GROUPS])
    external = sections.decode_external(parts[Kind.EXTERNAL])
    if (Feature.EXTERNAL in features) != bool(external):
        raise ContainerError("the file is damaged: its feature bits do not match its external section")
    if (Feature.SHARDS in features) != (Kind.SHARDS in parts):
        raise ContainerError("the file is damaged: its feature bits do not match its sections")
    shards = ranks.decode_shards(parts[Kind.SHARDS]) if Kind.SHARDS in parts else ()
    debug = sections.decode_debug(parts[Kind.DEBUG], len(instructions)) if Kind.DEBUG in parts else None
    elsewhere = ranks.elsewhere(tensors, external, shards)
    blocks = constants.decode(parts[Kind.CONST_MAP], parts[Kind.CONST_DATA], elsewhere)
    return Program(
        name, instructions, tensors, dims, segment_bytes, blocks, external, world, groups, pairs, shards, debug, version
    )  # fmt: skip


def load(path: Path) -> Program:
    """The program in the file `path`, constants memory-mapped, external weights found and checked.

    Raises InputError if it cannot be read, ContainerError if it (or a weights file) is not what it should be.
    """
    program = dataclasses.replace(read_bytes(map_file(path)), folder=path.parent)
    weights.check(program)
    return program


def _chunks(program: Program) -> list[Chunk]:
    if len(program.instructions) > MAX_INSTRUCTIONS or len(program.tensors) > MAX_TENSORS:
        raise ContainerError(f"the program cannot be written: it has more than {MAX_INSTRUCTIONS} instructions or "
                             f"{MAX_TENSORS} tensors")  # fmt: skip
    external = weights.with_digests(program)
    elsewhere = ranks.elsewhere(program.tensors, external, program.shards)
    table, data = constants.encode(constants.runs(program.constants, elsewhere))
    contents: dict[Kind, list[Chunk]] = {
        Kind.PROGRAM: [sections.encode_program(program)],
        **{kind: [part] for kind, part in sections.encode_code(program.instructions).items()},
        Kind.SYMBOLS: [sections.encode_symbols(program)],
        Kind.GROUPS: [ranks.encode_groups(program)],
        Kind.EXTERNAL: [sections.encode_external(external)],
        Kind.CONST_MAP: [table],
        Kind.CONST_DATA: data,
    }
    if program.debug is not None:
        contents[Kind.DEBUG] = [sections.encode_debug(program.debug, len(program.instructions))]
    features = Feature.EXTERNAL if external else Feature(0)
    if program.shards:
        contents[Kind.SHARDS] = ranks.encode_shards(program.shards)
        features |= Feature.SHARDS
    parts = [Section(kind, tuple(contents[kind])) for kind in sorted(contents)]
    return layout.assemble(parts, features)
