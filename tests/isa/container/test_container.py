"""The program file: one program has one file, and a reader takes nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dla.assembler import assemble
from dla.isa.container import load, read_bytes, save, write_bytes
from dla.isa.container.layout import ENTRY, HASHED_FROM, HEADER, Kind
from dla.isa.descriptor import Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.errors import ContainerError, InputError
from dla.isa.instructions import ROWS
from dla.isa.program import ConstBlock, Program

SOURCE = """
.program small
.input x : f32[batch <= 4, 3]
.const w : f32[3, 300] = 0.25
.const b : f32[300] = 2
.output y : f32[batch, 300]
main:
    GEMM y, x, w bias=b act=relu    ; the only layer
    HALT
"""
PROGRAM = assemble(SOURCE)
FILE = write_bytes(PROGRAM)
BARE = write_bytes(dataclasses.replace(PROGRAM, debug=None))


def repaired(data: bytes | bytearray) -> bytes:
    """`data` with the SHA-256 that its contents have."""
    return bytes(data[:8]) + hashlib.sha256(data[HASHED_FROM:]).digest() + bytes(data[HASHED_FROM:])


def patched(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    """`data` with `values` at `offset`, and its hash repaired."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, *values)
    return repaired(changed)


def table(data: bytes) -> list[tuple[int, int, int, int]]:
    """The section table: (kind, flags, offset, size)."""
    count = HEADER.unpack_from(data)[4]
    return [ENTRY.unpack_from(data, HEADER.size + i * ENTRY.size) for i in range(count)]


def entry_at(kind: Kind) -> int:
    """Where the table entry of `kind` is in FILE."""
    return HEADER.size + ENTRY.size * [row[0] for row in table(FILE)].index(kind)


def with_section(code: int, flags: int) -> bytes:
    """BARE with an empty section of a later version at its end."""
    count = HEADER.unpack_from(BARE)[4]
    table_end = HEADER.size + ENTRY.size * count
    assert table(BARE)[0][2] - table_end >= ENTRY.size  # one more entry fits before the first section
    end = -(-len(BARE) // 64) * 64
    data = bytearray(BARE) + bytes(end - len(BARE))
    data[table_end : table_end + ENTRY.size] = ENTRY.pack(code, flags, end, 0)
    struct.pack_into("<I", data, 44, count + 1)
    struct.pack_into("<Q", data, 64, end)
    return repaired(data)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)
def test_writing_what_was_read_gives_the_same_bytes(row: object) -> None:
    """Every instruction's example survives the file, with all that it says."""
    program = assemble(row.example)  # type: ignore[attr-defined]
    data = write_bytes(program)
    again = read_bytes(data)
    assert write_bytes(again) == data
    kept = ("name", "instructions", "tensors", "dims", "external", "debug", "isa_version")
    assert [getattr(again, name) for name in kept] == [getattr(program, name) for name in kept]


def test_constants_are_views_of_the_file(tmp_path: Path) -> None:
    """Loading maps constants instead of copying them, at a multiple of 4 KiB in the file."""
    save(PROGRAM, tmp_path / "p.dlab")
    program = load(tmp_path / "p.dlab")
    (block,) = program.constants
    assert not block.data.flags.owndata
    assert not block.data.flags.writeable
    assert table(FILE)[-1][2] % 4096 == 0
    assert np.all(block.data[:3600].view(np.float32) == 0.25)
    w = program.by_name["b"].descriptor
    assert np.all(block.data[w.offset : w.offset + w.span].view(np.float32) == 2)


def test_the_way_constants_are_cut_does_not_show() -> None:
    """Blocks that touch, or are one block, or have zeros between, give the same file."""
    (block,) = (b for b in read_bytes(FILE).constants)
    pieces = tuple(ConstBlock(i, block.data[i : i + 100]) for i in range(0, block.data.size, 100))
    assert write_bytes(dataclasses.replace(PROGRAM, constants=pieces)) == FILE


def test_far_apart_constants_stay_apart() -> None:
    """What no block covers takes no room in the file."""
    blocks = (ConstBlock(3, np.arange(5, dtype=np.uint8)), ConstBlock(2**39 + 7, np.ones(2, np.uint8)))
    program = dataclasses.replace(PROGRAM, constants=blocks, segment_bytes={Segment.CONST: 2**40})
    data = write_bytes(program)
    again = read_bytes(data)
    assert len(data) < 8192
    assert [(b.offset, b.data.tolist()) for b in again.constants] == [(3, [0, 1, 2, 3, 4]), (2**39 + 7, [1, 1])]


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "the file is empty"),
    "text": (lambda: SOURCE.encode(), "this is not a .dlab file"),
    "a header cut short": (lambda: FILE[:40], "the file is cut short: 40 bytes, less than a header"),
    "the last byte missing": (
        lambda: FILE[:-1],
        f"the file is cut short: {len(FILE) - 1} bytes, but its header says {len(FILE)}",
    ),
    "a byte too many": (
        lambda: FILE + b"\0",
        f"the file is too long: {len(FILE) + 1} bytes, but its header says {len(FILE)}",
    ),
    "another last byte": (
        lambda: FILE[:-1] + b"\x7f",
        "the file is damaged: its SHA-256 does not match its contents",
    ),
    "a newer major version": (
        lambda: patched(FILE, 40, "<H", 2),
        "the file is of version 2.0; this version of dla reads 1.x",
    ),
    "a newer ISA": (
        lambda: patched(FILE, table(FILE)[0][2], "<H", 2),
        "the program is written for ISA 2.3; this version of dla runs 1.x",
    ),
    "an unknown required feature": (
        lambda: patched(FILE, 48, "<Q", 1 << 40),
        "the file needs feature bits 0x10000000000, which this version does not know",
    ),
    "a feature that is not used": (
        lambda: patched(FILE, 48, "<Q", 1),
        "the file is damaged: its feature bits do not match its external section",
    ),
    "four billion sections": (
        lambda: patched(FILE, 44, "<I", 2**32 - 1),
        "the file is damaged: it claims to have 4294967295 sections",
    ),
    "an unknown required section": (
        lambda: with_section(99, 1),
        "the file needs section 99, which this version does not know",
    ),
    "a section out of place": (
        lambda: patched(FILE, entry_at(Kind.CODE) + 8, "<Q", 2**63),
        "the file is damaged: entry 1 of its section table is not valid",
    ),
    "a section of 2**63 bytes": (
        lambda: patched(FILE, entry_at(Kind.CODE) + 16, "<Q", 2**63),
        "the file is damaged: entry 1 of its section table is not valid",
    ),
    "a byte between sections": (
        lambda: patched(FILE, table(FILE)[1][2] - 1, "<B", 1),
        "the file is damaged: bytes before section 2 are not zero",
    ),
    "four billion tensors": (
        lambda: patched(FILE, table(FILE)[4][2], "<I", 2**32 - 1),
        "the symbols section is not valid: it claims to have 4294967295 entries",
    ),
    "a rank group": (
        lambda: patched(FILE, table(FILE)[5][2], "<I", 1),
        "the groups section is not valid: it is cut short",
    ),
    "a terminal escape for a name": (
        lambda: patched(FILE, table(FILE)[0][2] + 5, "<B", 0x1B),
        "the program section is not valid: a name is not an identifier",
    ),
    "an unknown opcode": (
        lambda: patched(FILE, table(FILE)[1][2], "<B", 0xEE),
        "instruction 0: unknown opcode 0xee",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_refused_with_a_reason(case: str) -> None:
    """A file that is not exactly what the writer makes is refused, and the message says what is wrong."""
    data, message = DAMAGED[case]
    with pytest.raises(ContainerError) as caught:
        read_bytes(data())
    assert caught.value.message == message


def test_unknown_optional_section_is_skipped() -> None:
    """A later minor version may add what a reader does not need."""
    assert write_bytes(read_bytes(with_section(99, 0))) == BARE


def test_debug_section_may_be_missing() -> None:
    """A program without debug information is as good, and has no empty debug section."""
    data = write_bytes(dataclasses.replace(PROGRAM, debug=None))
    assert read_bytes(data).debug is None
    assert Kind.DEBUG not in {row[0] for row in table(data)}


UNWRITABLE: dict[str, Program] = {
    "a name that is not one": dataclasses.replace(PROGRAM, name="no name"),
    "a segment of negative size": dataclasses.replace(PROGRAM, segment_bytes={Segment.CONST: -1}),
    "a tensor at a negative offset": dataclasses.replace(
        PROGRAM,
        tensors=(dataclasses.replace(PROGRAM.tensors[0], descriptor=contiguous(Segment.INPUT, DType.F32, (1,), -4)),),
    ),
    "constants that overlap": dataclasses.replace(
        PROGRAM, constants=(ConstBlock(0, np.zeros(9, np.uint8)), ConstBlock(8, np.zeros(9, np.uint8)))
    ),
    "an operand of rank 7": dataclasses.replace(
        PROGRAM,
        instructions=(
            dataclasses.replace(
                PROGRAM.instructions[0], operands=(contiguous(Segment.INPUT, DType.F32, (1,) * 7), *[None] * 6)
            ),
        ),
        debug=None,
    ),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_cannot_be_read_is_not_written(case: str) -> None:
    """A program that has no encoding is refused when it is written, not when it is read."""
    with pytest.raises(ContainerError, match="the program cannot be written"):
        write_bytes(UNWRITABLE[case])


def test_dynamic_dims_survive() -> None:
    """Bounds and registers of dims come back."""
    assert read_bytes(FILE).by_name["x"].descriptor.dims == (Dynamic(31, 4), 3)


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """A FIFO in place of a file ends in an error, not in a hang."""
    os.mkfifo(tmp_path / "p.dlab")
    with pytest.raises(InputError, match="is not a regular file"):
        load(tmp_path / "p.dlab")


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A path without a file is an input error, not damage."""
    with pytest.raises(InputError, match="there is no file"):
        load(tmp_path / "p.dlab")


def test_full_disk_leaves_nothing() -> None:
    """Where the system takes no bytes, the error is clear and names the file."""
    with pytest.raises(InputError, match="cannot write '/dev/full'"):
        save(PROGRAM, Path("/dev/full"))


def test_missing_folder_leaves_nothing(tmp_path: Path) -> None:
    """Without a folder to write to, the error is clear and nothing is made."""
    with pytest.raises(InputError, match="cannot write"):
        save(PROGRAM, tmp_path / "none" / "p.dlab")
    assert list(tmp_path.iterdir()) == []
