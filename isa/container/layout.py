"""The outside of a `.dlab` file: header, section table, alignment, hash. What is in the sections is in `sections.py`.

Little-endian. The header is 72 bytes:

     0 u8[8]  magic 89 64 6c 61 62 0d 0a 1a      8 u8[32] SHA-256 of everything from byte 40 to the end
    40 u16    major version                     42 u16    minor version
    44 u32    number of sections                48 u64    required feature bits
    56 u64    optional feature bits             64 u64    size of the file, bytes

The section table follows, 24 bytes per section, sorted by kind, each kind at most once:

     0 u32    kind                               4 u32    flags: bit 0 required, the others zero
     8 u64    offset, bytes                     16 u64    size, bytes

Sections lie in the order of the table, each at the first multiple of its alignment (4096 for const data that is not
empty, else 64) after the end of the one before; the bytes between are zero; the file ends where the last section
ends. So there is exactly one place for every byte. A reader refuses a newer major version, an unknown
required feature bit and an unknown required section, and skips an unknown optional section.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass

from dla.isa.errors import ContainerError
from dla.isa.files import Chunk

MAGIC = b"\x89dlab\r\n\x1a"
VERSION = (1, 0)
HEADER = struct.Struct("<8s32sHHIQQQ")
ENTRY = struct.Struct("<IIQQ")
HASHED_FROM = 40
REQUIRED = 1
MAX_SECTIONS = 64


class Feature(enum.IntFlag):
    """Required feature bits of a file."""

    EXTERNAL = 1  # some constants are in a .safetensors file beside the program
    SHARDS = 2  # of some constants each rank holds a piece


class Kind(enum.IntEnum):
    """Sections, by their code in the table. Codes are add-only."""

    PROGRAM = 1
    CODE = 2
    DESCRIPTORS = 3
    RECORDS = 4
    SYMBOLS = 5
    GROUPS = 6
    EXTERNAL = 7
    DEBUG = 8
    CONST_MAP = 9
    CONST_DATA = 10
    SHARDS = 11

    @property
    def required(self) -> bool:
        """Whether a reader that does not know the section must refuse the file."""
        return self is not Kind.DEBUG

    @property
    def always(self) -> bool:
        """Whether every file has it."""
        return self not in (Kind.DEBUG, Kind.SHARDS)


@dataclass(frozen=True)
class Section:
    """What goes into one section: its bytes in pieces, and their number."""

    kind: Kind
    chunks: tuple[Chunk, ...]

    @property
    def size(self) -> int:
        return sum(len(c) for c in self.chunks)


def _place(end: int, kind: int, size: int) -> int:
    """Where a section of `size` bytes goes after one that ends at `end`."""
    alignment = 4096 if kind == Kind.CONST_DATA and size else 64
    return -(-end // alignment) * alignment


def assemble(sections: list[Section], features: Feature) -> list[Chunk]:
    """The whole file, in pieces (constants are not copied). `sections` are sorted by kind."""
    position = HEADER.size + ENTRY.size * len(sections)
    table, body = [], []
    for section in sections:
        offset = _place(position, section.kind, section.size)
        table.append(ENTRY.pack(section.kind, REQUIRED * section.kind.required, offset, section.size))
        body += [bytes(offset - position), *section.chunks]
        position = offset + section.size
    header = HEADER.pack(MAGIC, bytes(32), *VERSION, len(sections), features, 0, position)
    pieces: list[Chunk] = [header[HASHED_FROM:], *table, *body]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [MAGIC, digest.digest(), *pieces]


def split(data: memoryview) -> tuple[dict[Kind, memoryview], Feature]:
    """The known sections of a file, and its required features. Raises ContainerError."""
    count, required = _read_header(data)
    table_end = HEADER.size + ENTRY.size * count
    if count > MAX_SECTIONS or table_end > len(data):
        raise ContainerError(f"the file is damaged: it claims to have {count} sections")
    if hashlib.sha256(data[HASHED_FROM:]).digest() != data[8:HASHED_FROM]:
        raise ContainerError(
            "the file is damaged: its SHA-256 does not match its contents", hint="fetch or assemble it again"
        )
    unknown = required & ~sum(Feature)
    if unknown:
        raise ContainerError(
            f"the file needs feature bits {unknown:#x}, which this version does not know", hint="upgrade dla"
        )
    return _read_table(data, count, table_end), Feature(required)


def _read_header(data: memoryview) -> tuple[int, int]:
    """Number of sections and required features."""
    if len(data) == 0:
        raise ContainerError("the file is empty")
    start = bytes(data[: len(MAGIC)])
    if start != MAGIC[: len(start)]:
        raise ContainerError(
            "this is not a .dlab file", hint="assemble .dla text first: dla asm program.dla -o program.dlab"
        )
    if len(data) < HEADER.size:
        raise ContainerError(f"the file is cut short: {len(data)} bytes, less than a header")
    _, _, major, minor, count, required, _, size = HEADER.unpack_from(data)
    if major != VERSION[0]:
        raise ContainerError(
            f"the file is of version {major}.{minor}; this version of dla reads {VERSION[0]}.x", hint="upgrade dla"
        )
    if size != len(data):
        raise ContainerError(f"the file is {'cut short' if size > len(data) else 'too long'}: "
                             f"{len(data)} bytes, but its header says {size}")  # fmt: skip
    return count, required


def _read_table(data: memoryview, count: int, position: int) -> dict[Kind, memoryview]:
    """The known sections, after checking that the table leaves no freedom at all."""
    sections: dict[Kind, memoryview] = {}
    previous = 0
    known = {int(k): k for k in Kind}
    for index in range(count):
        code, flags, offset, size = ENTRY.unpack_from(data, HEADER.size + index * ENTRY.size)
        kind = known.get(code)
        if code <= previous or flags & ~REQUIRED or offset != _place(position, code, size) or size > len(data) - offset:
            raise ContainerError(f"the file is damaged: entry {index} of its section table is not valid")
        if kind is None and flags & REQUIRED:
            raise ContainerError(f"the file needs section {code}, which this version does not know", hint="upgrade dla")
        if kind is not None and bool(flags & REQUIRED) != kind.required:
            raise ContainerError(f"the file is damaged: section {kind.name.lower()} has wrong flags")
        if any(data[position:offset]):
            raise ContainerError(f"the file is damaged: bytes before section {code} are not zero")
        if kind is not None:
            sections[kind] = data[offset : offset + size]
        previous, position = code, offset + size
    if position != len(data):
        raise ContainerError("the file is damaged: there are bytes after its last section")
    missing = [k.name.lower() for k in Kind if k.always and k not in sections]
    if missing:
        raise ContainerError(f"the file has no {', '.join(missing)} section")
    return sections
