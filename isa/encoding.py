"""Instructions to 64-byte words and back.

    bits   0..7   opcode            bits  32..63   record 0 (index + 1; 0 all defaults)
    bits   8..15  sub-operation     bits  64..95   record 1
    bits 128..383 eight operands, 32 bits each (descriptor index + 1; 0 absent)
    bits 16..31, 96..127, 384..511  the row's attributes; the rest is zero

Descriptors and records are interned in order of first use, so equal programs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dla.isa.attributes import UNIT_BITS, Record, pack, unpack
from dla.isa.descriptor import Descriptor
from dla.isa.errors import ContainerError
from dla.isa.instructions import BY_OPCODE
from dla.isa.program import Instruction
from dla.isa.table import OPCODE, OPERAND_SLOTS, RECORD_SLOTS, SUB

WORD_BYTES = UNIT_BITS // 8


@dataclass
class Code:
    """Instructions as tables: what the code, descriptor and record sections of a file hold."""

    words: list[bytes] = field(default_factory=list)  # 64 bytes each
    descriptors: list[Descriptor] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)  # 64 bytes each


class Encoder:
    """Encodes instructions one by one into a growing `Code`."""

    def __init__(self) -> None:
        self.code = Code()
        self._descriptor_index: dict[Descriptor, int] = {}
        self._record_index: dict[bytes, int] = {}

    def add(self, instruction: Instruction) -> None:
        """Append one instruction. Raises ValueError if an attribute value does not fit its field."""
        row = instruction.row
        bits = row.opcode << OPCODE[0]
        if instruction.sub:
            bits |= row.sub_codes[instruction.sub] << SUB[0]
        for (at, _), record in zip(RECORD_SLOTS, row.records, strict=False):
            bits |= self._intern_record(record, instruction.attributes) << at
        for (at, _), descriptor in zip(OPERAND_SLOTS, instruction.operands, strict=False):
            if descriptor is not None:
                bits |= self._intern(descriptor) << at
        bits |= pack(row.attributes, instruction.attributes)
        self.code.words.append(bits.to_bytes(WORD_BYTES, "little"))

    def _intern(self, descriptor: Descriptor) -> int:
        index = self._descriptor_index.setdefault(descriptor, len(self.code.descriptors))
        if index == len(self.code.descriptors):
            self.code.descriptors.append(descriptor)
        return index + 1

    def _intern_record(self, record: Record, values: Any) -> int:
        bits = pack(record.attributes, values)
        if bits == pack(record.attributes, {}):
            return 0
        data = (bits | record.code).to_bytes(WORD_BYTES, "little")
        index = self._record_index.setdefault(data, len(self.code.records))
        if index == len(self.code.records):
            self.code.records.append(data)
        return index + 1


def encode(instructions: Sequence[Instruction]) -> Code:
    """All of `instructions` as tables."""
    encoder = Encoder()
    for instruction in instructions:
        encoder.add(instruction)
    return encoder.code


def decode(code: Code) -> tuple[Instruction, ...]:
    """The instructions in `code`.

    Raises ContainerError, naming the instruction, for an unknown opcode or sub-operation, a reserved bit that is set,
    an index outside its table, or a table that is not in canonical order.
    """
    instructions = []
    encoder = Encoder()
    for index, word in enumerate(code.words):
        try:
            instruction = _decode_word(word, code)
            encoder.add(instruction)
        except (ContainerError, ValueError) as error:
            raise ContainerError(f"instruction {index}: {error}") from None
        if encoder.code.words.pop() != word:  # popped, so that a second copy of all words is never held
            raise ContainerError(f"instruction {index}: reserved bits are set, or a table is not in order of first use")
        instructions.append(instruction)
    if encoder.code.descriptors != code.descriptors or encoder.code.records != code.records:
        raise ContainerError("the descriptor or record table has entries that no instruction uses")
    return tuple(instructions)


def _decode_word(word: bytes, code: Code) -> Instruction:
    bits = int.from_bytes(word, "little")
    row = BY_OPCODE.get(_take(bits, OPCODE))
    if row is None:
        raise ContainerError(f"unknown opcode {_take(bits, OPCODE):#04x}")
    sub_code = _take(bits, SUB)
    if row.subs and sub_code not in row.sub_names:
        raise ContainerError(f"{row.mnemonic} has no sub-operation with code {sub_code}")
    attributes = unpack(row.attributes, bits)
    for slot, record in zip(RECORD_SLOTS, row.records, strict=False):
        attributes |= _decode_record(record, _take(bits, slot), code.records)
    operands = tuple(_descriptor(_take(bits, slot), code) for slot in OPERAND_SLOTS[: len(row.operands)])
    return Instruction(row, row.sub_names.get(sub_code, ""), operands, attributes)


def _take(bits: int, field_: tuple[int, int]) -> int:
    return (bits >> field_[0]) & ((1 << field_[1]) - 1)


def _descriptor(slot: int, code: Code) -> Descriptor | None:
    if slot > len(code.descriptors):
        raise ContainerError(f"operand refers to descriptor {slot - 1} of {len(code.descriptors)}")
    return code.descriptors[slot - 1] if slot else None


def _decode_record(record: Record, slot: int, records: list[bytes]) -> dict[str, Any]:
    if slot == 0:
        return {}
    if slot > len(records):
        raise ContainerError(f"instruction refers to record {slot - 1} of {len(records)}")
    bits = int.from_bytes(records[slot - 1], "little")
    if bits & 0xFF != record.code:
        raise ContainerError(f"record {slot - 1} is not a {record.name} record")
    values = unpack(record.attributes, bits)
    if pack(record.attributes, values) | record.code != bits:
        raise ContainerError(f"record {slot - 1} has reserved bits set")
    return values
