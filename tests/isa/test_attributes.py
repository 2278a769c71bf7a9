"""Attributes: every value survives its bits, every other value and every other bits are refused with a reason."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla.isa.attributes import F32, Attribute, Axes, Axis, Enum, EnumList, Flag, Int, IntList, Target, pack, unpack
from dla.isa.errors import ContainerError
from dla.isa.registers import BY_CODE, BY_NAME, Register, f, p, s
from dla.isa.scalar_attributes import Reg, ScalarValue

COUNT = Int("count", 16, "", size=8, low=-3, high=100)
PAIR = IntList("pair", 32, "", size=16, low=-2, high=2000)
FLAG = Flag("flag", 16, "")
RATE = F32("rate", 384, "", default=1.0)
SLOPE = F32("slope", 384, "", default=None, optional=True)
COLOUR = Enum("colour", 16, "", choices={"red": 0, "green": 7})
STEPS = EnumList("steps", 32, "", choices={"a": 1, "b": 2, "c": 3})
LABEL = Target("label", 384, "")
INDEX = Reg("index", 16, "", classes="sp")
VALUE = ScalarValue("value", 16, "", value_at=384, classes="sfp")
PLACE = ScalarValue("place", 16, "", value_at=384, classes="s", default=None, optional=True)
AXIS = Axis("axis", 16, "", of="x")
AXES = Axes("axes", 16, "", of="x")

f32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
registers = st.sampled_from(sorted(BY_CODE.values(), key=lambda r: r.code))
VALUES: list[tuple[Attribute, st.SearchStrategy[Any]]] = [
    (COUNT, st.integers(-3, 100)),
    (PAIR, st.tuples(st.integers(-2, 2000), st.integers(-2, 2000))),
    (FLAG, st.booleans()),
    (RATE, f32s),
    (SLOPE, st.none() | f32s),
    (COLOUR, st.sampled_from(["red", "green"])),
    (STEPS, st.lists(st.sampled_from("abc"), max_size=4).map(tuple)),
    (LABEL, st.integers(0, 2**32 - 1)),
    (INDEX, st.none() | registers.filter(lambda r: r.is_int or r.cls.prefix == "p")),
    (VALUE, registers | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)),
    (PLACE, st.none() | st.integers(-(2**63), 2**63 - 1) | registers.filter(lambda r: r.is_int)),
    (AXIS, st.integers(0, 5)),
    (AXES, st.sets(st.integers(0, 5)).map(lambda v: tuple(sorted(v)))),
]


def same(a: Any, b: Any) -> bool:
    """Equal, in type and sign of zero as well."""
    return type(a) is type(b) and a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize(("attribute", "values"), VALUES, ids=[a.name for a, _ in VALUES])
def test_every_value_survives_its_bits(attribute: Attribute, values: st.SearchStrategy[Any]) -> None:
    """decode(encode(value)) is the value, by itself and among the bits of a word."""

    @settings(max_examples=60, deadline=None, database=None)
    @given(values)
    def check(value: Any) -> None:
        assert same(attribute.canonical(value), value)
        word = pack((attribute,), {} if value is None else {attribute.name: value})
        found = unpack((attribute,), word)
        assert same(found.get(attribute.name, attribute.default), value)
        assert pack((attribute,), found) == word

    check()


@pytest.mark.parametrize(("attribute", "values"), VALUES, ids=[a.name for a, _ in VALUES])
def test_bits_decode_to_a_value_or_are_refused(attribute: Attribute, values: st.SearchStrategy[Any]) -> None:
    """Whatever bits a hostile file holds: a value that a word can hold again, or ContainerError."""

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.integers(0, 2**512 - 1))
    def check(word: int) -> None:
        try:
            found = unpack((attribute,), word)
        except ContainerError:
            return
        mask = pack_mask(attribute)
        again = pack((attribute,), found)
        assert again == word & mask

    check()


def pack_mask(attribute: Attribute) -> int:
    """The bits that an attribute occupies."""
    return sum(((1 << width) - 1) << at for at, width in attribute.pieces)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (COUNT, 101, "count must be an integer from -3 to 100, not 101"),
        (COUNT, True, "count must be an integer from -3 to 100, not True"),
        (COUNT, 1.0, "count must be an integer from -3 to 100, not 1.0"),
        (PAIR, (1,), "pair must be a list of 2 integers from -2 to 2000, not (1,)"),
        (PAIR, (1, 2001), "pair must be a list of 2 integers from -2 to 2000, not [1, 2001]"),
        (PAIR, 3, "pair must be a list of 2 integers from -2 to 2000, not 3"),
        (FLAG, 1, "flag must be true or false, not 1"),
        (RATE, math.inf, "rate must be a finite number that f32 can hold, not inf"),
        (RATE, math.nan, "rate must be a finite number that f32 can hold, not nan"),
        (RATE, 1e39, "rate must be a finite number that f32 can hold, not 1e+39"),
        (RATE, None, "rate must be a finite number that f32 can hold, not None"),
        (COLOUR, "blue", "colour must be one of red, green, not blue"),
        (STEPS, ("a", "z"), "steps must be at most 4 of a, b, c, not ('a', 'z')"),
        (STEPS, tuple("abcab"), "steps must be at most 4 of a, b, c, not ('a', 'b', 'c', 'a', 'b')"),
        (LABEL, -1, "label must be a label, not -1"),
        (INDEX, f(0), "index must be a register (s0..s31, p0..p7), not f0"),
        (VALUE, 2**63, "value does not fit in 64 bits: 9223372036854775808"),
        (VALUE, math.inf, "value must be a number or a register (s0..s31, f0..f15, p0..p7), not inf"),
        (PLACE, p(0), "place must be a number or a register (s0..s31), not p0"),
        (AXIS, 6, "axis must be an axis from 0 to 5, not 6"),
        (AXIS, -1, "axis must be an axis from 0 to 5, not -1"),
        (AXES, (1, 1), "axes must be a list of different axes from 0 to 5, not (1, 1)"),
        (AXES, 1, "axes must be a list of different axes from 0 to 5, not 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_a_reason(attribute: Attribute, value: Any, message: str) -> None:
    """The message names the attribute, what it takes, and what it was given."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the whole message is compared
        attribute.encode(value)
    assert str(raised.value) == message


def test_a_float_zero_is_not_an_integer_zero() -> None:
    """0, 0.0 and -0.0 are equal to Python but differ in a word, and survive it."""
    words = [pack((VALUE,), {"value": v}) for v in (0, 0.0, -0.0)]
    assert len(set(words)) == 3
    assert [same(unpack((VALUE,), w).get("value", 0), v) for w, v in zip(words, (0, 0.0, -0.0), strict=True)] == [
        True
    ] * 3


def test_a_default_is_all_zeros_and_absent() -> None:
    """F32 is stored XOR its default, which is rounded to f32."""
    eps = F32("eps", 384, "", default=1e-5)
    assert pack((eps,), {}) == pack((eps,), {"eps": 1e-5}) == 0
    assert unpack((eps,), 0) == {}
    assert eps.default == struct.unpack("<f", struct.pack("<f", 1e-5))[0]


def test_an_optional_number_distinguishes_absent_from_zero() -> None:
    """None is all zeros; a written 0 is not."""
    for attribute in (SLOPE, PLACE):
        assert attribute.encode(None) == 0
        assert attribute.encode(0) != 0
        assert not attribute.required
    assert SLOPE.encode(0.0) == SLOPE.mask == 0x7FC00000


@pytest.mark.parametrize(
    ("attribute", "required"), [(AXIS, True), (COUNT, False), (SLOPE, False), (Int("end", 0, "", implicit=True), False)]
)
def test_what_has_no_default_must_be_written(attribute: Attribute, required: bool) -> None:
    """Unless it is optional, or worked out by the assembler."""
    assert attribute.required is required


def test_axes_may_count_from_the_end() -> None:
    """`normalised` turns what a person writes into what is stored."""
    assert AXIS.normalised(-1, 3) == 2
    assert AXES.normalised([-1, 0], 3) == (0, 2)
    assert AXES.normalised(1, 3) == (1,)
    with pytest.raises(ValueError, match="axis must be from -3 to 2 for a tensor of rank 3, not 3"):
        AXIS.normalised(3, 3)
    with pytest.raises(ValueError, match="names an axis twice"):
        AXES.normalised([1, -2], 3)


def test_read_only_registers_are_not_written() -> None:
    """RANK and WORLD may be read but are no destination."""
    rank = BY_NAME["RANK"]
    assert Reg("dst", 16, "", classes="s").accepts(rank)
    assert not Reg("dst", 16, "", classes="s", writable=True).accepts(rank)


def test_register_codes_are_distinct_bytes() -> None:
    """Codes 1 to 58, in order of class; 0 means none."""
    assert sorted(BY_CODE) == list(range(1, 59))
    assert isinstance(s(3), Register)
    assert (s(0).code, f(0).code, p(0).code) == (1, 33, 49)
