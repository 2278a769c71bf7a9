"""Instruction words: random instructions survive encoding, and damaged tables are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.isa.attributes import F32, Attribute, Axes, Axis, Enum, EnumList, Flag, Int, IntList, Target
from dla.isa.descriptor import DESCRIPTOR_BYTES, Descriptor, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.encoding import WORD_BYTES, Code, decode, encode
from dla.isa.errors import ContainerError
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import Instruction
from dla.isa.ranks import RankTable
from dla.isa.registers import BY_CODE
from dla.isa.scalar_attributes import Reg, ScalarValue
from dla.isa.table import Row

REGISTERS = sorted(BY_CODE.values(), key=lambda r: r.code)
sizes = st.integers(0, 9)
dims = sizes | st.builds(Dynamic, st.integers(0, 31), sizes)
descriptors = st.builds(
    Descriptor,
    st.sampled_from(Segment),
    st.sampled_from(DType),
    st.shared(st.integers(0, 6), key="rank").flatmap(lambda n: st.tuples(*[dims] * n)),
    st.shared(st.integers(0, 6), key="rank").flatmap(lambda n: st.tuples(*[st.integers(0, 99)] * n)),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 31),
    st.integers(-(2**40), 2**40),
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def values(attribute: Attribute) -> st.SearchStrategy[Any]:
    """Every value that `attribute` takes."""
    accepted = [r for r in REGISTERS if isinstance(attribute, Reg) and attribute.accepts(r)]
    match attribute:
        case IntList():
            return st.tuples(*[st.integers(attribute.low, attribute.high)] * attribute.length)
        case Int():
            return st.integers(attribute.low, attribute.high)
        case Flag():
            return st.booleans()
        case F32():
            return floats
        case Enum():
            return st.sampled_from(sorted(attribute.choices))
        case EnumList():
            return st.lists(st.sampled_from(sorted(attribute.choices)), max_size=attribute.length).map(tuple)
        case Axis():
            return st.integers(0, 5)
        case Axes():
            return st.sets(st.integers(0, 5)).map(lambda v: tuple(sorted(v)))
        case RankTable():
            return st.integers(1, 2**16 - 1)
        case Target():
            return st.integers(0, 2**32 - 1)
        case Reg():
            return st.sampled_from(accepted)
        case ScalarValue():
            number = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
            register = Reg("", 0, "", classes=attribute.classes)
            return number | st.sampled_from([r for r in REGISTERS if register.accepts(r)])
    raise AssertionError(f"no strategy for {type(attribute).__name__}")


@st.composite
def instructions(draw: st.DrawFn, row: Row) -> Instruction:
    """Any instruction of `row` that can be encoded, sound or not."""
    sub = draw(st.sampled_from([s.name for s in row.subs])) if row.subs else ""
    operands = tuple(draw(st.none() | descriptors) for _ in row.operands)
    attributes = {}
    for name, attribute in row.all_attributes.items():
        value = draw(values(attribute))
        differs = attribute.default is None or attribute.encode(value) != attribute.encode(attribute.default)
        needed = attribute.required and not isinstance(attribute, Reg)
        if needed or (differs and draw(st.booleans())):
            attributes[name] = value
    return Instruction(row, sub, operands, attributes)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mnemonic)
def test_decoding_is_the_inverse_of_encoding(row: Row) -> None:
    """decode(encode(x)) is x, and encode(decode(bytes)) the same bytes, for random instructions of every row."""

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.lists(instructions(row), min_size=1, max_size=3))
    def check(program: list[Instruction]) -> None:
        code = encode(program)
        decoded = decode(code)
        assert decoded == tuple(program)
        assert encode(decoded) == code

    check()


@settings(max_examples=100, deadline=None, database=None)
@given(descriptors)
def test_descriptors_survive_their_bytes(descriptor: Descriptor) -> None:
    """128 bytes, and back to an equal descriptor."""
    data = descriptor.encode()
    assert len(data) == DESCRIPTOR_BYTES
    assert Descriptor.decode(data) == descriptor


GEMM = Instruction(
    BY_MNEMONIC["GEMM"], "",
    (*(contiguous(Segment.SCRATCH, DType.F32, (4, 4), 64 * i) for i in range(3)), None, None, None, None),
    {"steps": ("act",), "act": "relu"},
)  # fmt: skip


def test_every_single_bit_of_a_word_means_something_or_is_refused() -> None:
    """Flipping a bit gives another instruction that encodes to exactly those bytes, or ContainerError."""
    code = encode([GEMM])
    accepted = 0
    for bit in range(8 * WORD_BYTES):
        word = (int.from_bytes(code.words[0], "little") ^ 1 << bit).to_bytes(WORD_BYTES, "little")
        damaged = Code([word], code.descriptors, code.records)
        try:
            decoded = decode(damaged)
        except ContainerError:
            continue
        accepted += 1
        assert decoded != (GEMM,)
        assert encode(decoded) == damaged
    assert accepted > 0


def test_every_single_bit_of_a_descriptor_means_something_or_is_refused() -> None:
    """As for words: no two byte strings stand for the same descriptor."""
    descriptor = contiguous(Segment.STATE, DType.BF16, (3, Dynamic(4, 7)), 256)
    data = descriptor.encode()
    for bit in range(8 * DESCRIPTOR_BYTES):
        damaged = (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(DESCRIPTOR_BYTES, "little")
        try:
            decoded = Descriptor.decode(damaged)
        except ContainerError:
            continue
        assert decoded != descriptor
        assert decoded.encode() == damaged


def edited(word: int, at: int, width: int, value: int) -> bytes:
    """A word with one field replaced."""
    mask = ((1 << width) - 1) << at
    return (word & ~mask | value << at).to_bytes(WORD_BYTES, "little")


@pytest.mark.parametrize(
    ("at", "width", "value", "message"),
    [
        (0, 8, 0xFE, "instruction 0: unknown opcode 0xfe"),
        (8, 8, 2, "instruction 0: GEMM has no sub-operation with code 2"),
        (32, 32, 2, "instruction 0: instruction refers to record 1 of 1"),
        (128, 32, 9, "instruction 0: operand refers to descriptor 8 of 3"),
        (128, 32, 2, "instruction 0: reserved bits are set, or a table is not in order of first use"),
        (16, 8, 2, "instruction 0: attribute unit has the unknown code 2"),
        (24, 8, 2, "instruction 0: attribute math has the unknown code 2"),
        (96, 1, 1, "instruction 0: reserved bits are set"),
        (384, 32, 0x7F800000 ^ 0x3F800000, "instruction 0: attribute alpha is not finite"),
    ],
)
def test_a_damaged_word_is_refused_with_the_reason(at: int, width: int, value: int, message: str) -> None:
    """Each kind of damage has its message, with the index of the instruction."""
    code = encode([GEMM])
    word = edited(int.from_bytes(code.words[0], "little"), at, width, value)
    with pytest.raises(ContainerError) as raised:
        decode(Code([word], code.descriptors, code.records))
    assert raised.value.message.startswith(message)


def test_tables_hold_nothing_that_is_not_used() -> None:
    """An extra descriptor or record would make two files of one program."""
    code = encode([GEMM])
    for extra in (
        Code(code.words, code.descriptors * 2, code.records),
        Code(code.words, code.descriptors, code.records * 2),
    ):
        with pytest.raises(ContainerError, match="no instruction uses"):
            decode(extra)


def test_equal_descriptors_and_records_are_stored_once() -> None:
    """Interning keeps the tables small."""
    code = encode([GEMM] * 100)
    assert (len(code.words), len(code.descriptors), len(code.records)) == (100, 3, 1)


def test_a_record_of_defaults_is_not_stored() -> None:
    """Index 0 means all defaults."""
    code = encode([Instruction(GEMM.row, "", GEMM.operands)])
    assert code.records == []
    assert decode(code)[0].attributes == {}


def test_the_bare_mnemonic_is_its_default_sub_operation() -> None:
    """SOFTMAX and SOFTMAX.soft are one instruction, under one name."""
    row = BY_MNEMONIC["SOFTMAX"]
    operands = (GEMM.operands[0], GEMM.operands[1])
    assert Instruction(row, "", operands, {"axis": 1}) == Instruction(row, "soft", operands, {"axis": 1})
    assert Instruction(row, "", operands, {"axis": 1}).name == "SOFTMAX.soft"


def test_a_sub_operation_without_a_name_is_the_bare_mnemonic() -> None:
    """GEMM got a second sub-operation in ISA 1.1: words of 1.0 still mean GEMM, by that name."""
    word = int.from_bytes(encode([GEMM]).words[0], "little")
    assert word >> 8 & 0xFF == 0
    assert decode(encode([GEMM]))[0].name == "GEMM"
    glu = Instruction(GEMM.row, "glu", GEMM.operands)
    assert decode(encode([glu])) == (glu,)
    assert glu.name == "GEMM.glu"
