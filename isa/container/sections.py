"""What is in the sections of a `.dlab` file, but for constants: `Program` to bytes and back.

    program      u16 u16 ISA version; name; u64[5] segment sizes (const, input, output, state, scratch)
    code         64-byte words; descriptors: 128 bytes each; records: 64 bytes each (isa/encoding.py, isa/descriptor.py)
    symbols      u32 count of tensors: name, 128-byte descriptor; u32 count of dims: name, u8 register, u64 bound
    groups       u32 size of the world, 0: any (isa/container/ranks.py has what follows, and the section of shards)
    external     u32 count: u64 offset, u64 size, u8[32] SHA-256, text file, text key
    debug        text file; u32 count of lines: u32; u32 count of labels: u32 index, name;
                 u32 count of comments: text place, u32 index, text; u32 count of messages: u32 index, text

A name is one byte of length and ASCII; a text is two bytes of length and UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from dla.isa import encoding
from dla.isa.attributes import UNIT_BITS
from dla.isa.container.layout import Kind
from dla.isa.container.stream import Reader, Writer
from dla.isa.descriptor import DESCRIPTOR_BYTES, Descriptor, Segment
from dla.isa.encoding import WORD_BYTES, Code
from dla.isa.errors import ContainerError
from dla.isa.names import debug_problems
from dla.isa.program import (
    ISA_VERSION,
    MAX_INSTRUCTIONS,
    MAX_TENSORS,
    Debug,
    DimSymbol,
    ExternalConst,
    Instruction,
    Program,
    Tensor,
)

RECORD_BYTES = UNIT_BITS // 8
DIGEST_BYTES = 32
MAX_DEBUG_ENTRIES = MAX_INSTRUCTIONS


def encode_code(instructions: tuple[Instruction, ...]) -> dict[Kind, bytes]:
    """The code, descriptor and record sections. Raises ContainerError for a value that has no encoding."""
    try:
        code = encoding.encode(instructions)
        descriptors = b"".join(d.encode() for d in code.descriptors)
    except (ValueError, struct.error) as error:
        raise ContainerError(f"the program cannot be written: {error}") from None
    return {
        Kind.CODE: b"".join(code.words),
        Kind.DESCRIPTORS: descriptors,
        Kind.RECORDS: b"".join(code.records),
    }


def decode_code(sections: Mapping[Kind, memoryview]) -> tuple[Instruction, ...]:
    """The instructions. Raises ContainerError unless they encode to exactly these sections."""
    words = _units(sections[Kind.CODE], WORD_BYTES, MAX_INSTRUCTIONS, "code")
    descriptors = _units(sections[Kind.DESCRIPTORS], DESCRIPTOR_BYTES, MAX_INSTRUCTIONS, "descriptors")
    records = _units(sections[Kind.RECORDS], RECORD_BYTES, MAX_INSTRUCTIONS, "records")
    decoded = [Descriptor.decode(data, i) for i, data in enumerate(descriptors)]
    return encoding.decode(Code(words, decoded, records))


def _units(data: memoryview, size: int, limit: int, section: str) -> list[bytes]:
    if len(data) % size or len(data) // size > limit:
        raise ContainerError(f"the {section} section is not valid: it has {len(data)} bytes, "
                             f"not a multiple of {size} up to {limit * size}")  # fmt: skip
    return [bytes(data[i : i + size]) for i in range(0, len(data), size)]


def encode_program(program: Program) -> bytes:
    """The program section."""
    w = Writer()
    for number in program.isa_version:
        w.number(number, 2)
    w.name(program.name)
    for segment in Segment:
        w.number(program.segment_bytes.get(segment, 0), 8)
    return bytes(w.data)


def decode_program(data: memoryview) -> tuple[tuple[int, int], str, dict[Segment, int]]:
    """ISA version, name and segment sizes."""
    r = Reader(data, "program")
    major, minor = r.number(2), r.number(2)
    if major != ISA_VERSION[0]:
        raise ContainerError(
            f"the program is written for ISA {major}.{minor}; this version of dla runs {ISA_VERSION[0]}.x",
            hint="upgrade dla",
        )
    name = r.name()
    sizes = {segment: r.number(8) for segment in Segment}
    r.end()
    return (major, minor), name, sizes


def encode_symbols(program: Program) -> bytes:
    """The symbols section."""
    w = Writer()
    w.number(len(program.tensors), 4)
    for tensor in program.tensors:
        w.name(tensor.name)
        try:
            w.raw(tensor.descriptor.encode())
        except struct.error as error:
            raise ContainerError(f"the program cannot be written: tensor {tensor.name}: {error}") from None
    w.number(len(program.dims), 4)
    for dim in program.dims:
        w.name(dim.name)
        w.number(dim.register, 1)
        w.number(dim.bound, 8)
    return bytes(w.data)


def decode_symbols(data: memoryview) -> tuple[tuple[Tensor, ...], tuple[DimSymbol, ...]]:
    """Tensors and dims, in order of declaration."""
    r = Reader(data, "symbols")
    tensors = []
    for index in range(r.count(2 + DESCRIPTOR_BYTES, MAX_TENSORS)):
        name = r.name()
        tensors.append(Tensor(name, Descriptor.decode(r.raw(DESCRIPTOR_BYTES), index)))
    dims = tuple(DimSymbol(r.name(), r.number(1), r.number(8)) for _ in range(r.count(11, MAX_TENSORS)))
    r.end()
    return tuple(tensors), dims


def encode_external(external: tuple[ExternalConst, ...]) -> bytes:
    """The external section; every entry has its SHA-256."""
    w = Writer()
    w.number(len(external), 4)
    for entry in external:
        w.number(entry.offset, 8)
        w.number(entry.nbytes, 8)
        w.raw(entry.sha256)
        w.text(entry.file)
        w.text(entry.key)
    return bytes(w.data)


def decode_external(data: memoryview) -> tuple[ExternalConst, ...]:
    """Constants kept beside the program, by offset."""
    r = Reader(data, "external")
    entries = []
    for _ in range(r.count(20 + DIGEST_BYTES, MAX_TENSORS)):
        offset, nbytes, digest = r.number(8), r.number(8), r.raw(DIGEST_BYTES)
        entries.append(ExternalConst(offset, nbytes, r.text(), r.text(), digest))
    r.end()
    return tuple(entries)


def encode_debug(debug: Debug, instructions: int) -> bytes:
    """The debug section."""
    for problem in debug_problems(debug, instructions):
        raise ContainerError(f"the program cannot be written: its debug section is not valid: {problem}")
    w = Writer()
    w.text(debug.file)
    w.number(len(debug.lines), 4)
    w.raw(struct.pack(f"<{len(debug.lines)}I", *debug.lines))
    w.number(len(debug.labels), 4)
    for name, index in debug.labels:
        w.number(index, 4)
        w.name(name)
    w.number(len(debug.comments), 4)
    for place, index, text in debug.comments:
        w.text(place)
        w.number(index, 4)
        w.text(text)
    w.number(len(debug.messages), 4)
    for index, text in debug.messages:
        w.number(index, 4)
        w.text(text)
    return bytes(w.data)


def decode_debug(data: memoryview, instructions: int) -> Debug:
    """What people wrote. Raises ContainerError for control characters and indices outside the program."""
    r = Reader(data, "debug")
    file = r.text()
    count = r.count(4, MAX_INSTRUCTIONS)
    lines = struct.unpack(f"<{count}I", r.raw(4 * count))
    labels = []
    for _ in range(r.count(6, MAX_DEBUG_ENTRIES)):
        index = r.number(4)
        labels.append((r.name(), index))
    comments = tuple((r.text(), r.number(4), r.text()) for _ in range(r.count(8, MAX_DEBUG_ENTRIES)))
    messages = tuple((r.number(4), r.text()) for _ in range(r.count(6, MAX_DEBUG_ENTRIES)))
    r.end()
    debug = Debug(file, lines, tuple(labels), comments, messages)
    for problem in debug_problems(debug, instructions):
        raise r.bad(problem)
    return debug
