"""Every rule of the verifier: the smallest program that breaks it, and its neighbour that does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dla.isa.descriptor import Descriptor, Dynamic, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.errors import VerifyError
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import ConstBlock, Debug, DimSymbol, ExternalConst, Instruction, Program, Tensor
from dla.isa.ranks import RankGroup, RankPairs, Shard
from dla.isa.registers import BY_NAME, p, s
from dla.isa.verifier import RULES, unproven, verify

KIB = 1024
SIZES = dict.fromkeys(Segment, KIB)


def view(segment: Segment, *dims: Any, dtype: DType = DType.F32, **fields: Any) -> Descriptor:
    """A contiguous view at offset 0 of `segment`, but for `fields`."""
    return dataclasses.replace(contiguous(segment, dtype, dims), **fields)


def at(name: str, *operands: Descriptor | None, **attributes: Any) -> Instruction:
    """The instruction `name` ("EW.add"); operands that are left out at the end are absent."""
    mnemonic, _, sub = name.partition(".")
    row = BY_MNEMONIC[mnemonic]
    return Instruction(row, sub, operands + (None,) * (len(row.operands) - len(operands)), attributes)


def program(*code: Instruction, **fields: Any) -> Program:
    """A program that ends with HALT; segments have 1 KiB each."""
    return Program(**{"name": "t", "instructions": (*code, at("HALT")), "segment_bytes": SIZES} | fields)


X = view(Segment.INPUT, 4, 4)
Y = view(Segment.OUTPUT, 4, 4)
H = view(Segment.SCRATCH, 4, 4)
STATE = view(Segment.STATE, 4, 4)
COPY = at("COPY", Y, X)
LOOP = at("LOOP", counter=s(0), count=3, end=2)
BODY = (LOOP, COPY, at("ENDLOOP", begin=0))
CALLS = (at("CALL", target=2), at("HALT"))
BATCH = DimSymbol("batch", 31, 4)
HALVES = RankGroup("halves", ((0, 1), (2, 3)))
EXTERNAL = ExternalConst(0, 64, "w.safetensors", "w", bytes(32))


def bytes_at(offset: int, size: int) -> ConstBlock:
    """A block of zeros."""
    return ConstBlock(offset, np.zeros(size, np.uint8))


def with_debug(**fields: Any) -> Program:
    """A sound program with a debug section, but for `fields`."""
    return program(COPY, debug=Debug(**{"file": "a.dla", "lines": (1, 2)} | fields))


REJECTED = {
    "no instructions": ("V-SIZE", dataclasses.replace(program(), instructions=())),
    "an attribute out of range": ("V-FIELD", program(at("PROBE", X, tag=-1))),
    "an attribute that the row lacks": ("V-FIELD", program(at("PROBE", X, axis=1))),
    "too few operands": ("V-FIELD", program(Instruction(BY_MNEMONIC["COPY"], "", (Y,)))),
    "no such sub-operation": ("V-FIELD", program(at("EW.plus", Y, X, X))),
    "a negative stride": ("V-FIELD", program(at("COPY", Y, view(Segment.INPUT, 4, 4, strides=(-4, 1))))),
    "a scale without a register": ("V-FIELD", program(at("COPY", Y, view(Segment.INPUT, 4, 4, offset_scale=4)))),
    "a register beyond s31": ("V-FIELD", program(at("COPY", Y, view(Segment.INPUT, Dynamic(32, 4), 4)))),
    "a row that is not in the table": (
        "V-FIELD", program(Instruction(dataclasses.replace(BY_MNEMONIC["NOP"], summary="another")))),
    "a program name with a line break": ("V-NAME", program(COPY, name="a\nb")),
    "two tensors of one name": ("V-NAME", program(COPY, tensors=(Tensor("x", X), Tensor("x", Y)))),
    "a control character in a comment": ("V-DEBUG", with_debug(comments=(("end", 0, "\x1b[2J"),))),
    "a message beyond the end": ("V-DEBUG", with_debug(messages=((9, "why"),))),
    "fewer lines than instructions": ("V-DEBUG", with_debug(lines=(1,))),
    "a segment of 2 TiB": ("V-SEGMENT", program(COPY, segment_bytes={**SIZES, Segment.SCRATCH: 2**41})),
    "segments of 2 TiB together": ("V-SEGMENT", program(COPY, segment_bytes=dict.fromkeys(Segment, 2**39))),
    "a tensor larger than its segment": ("V-TENSOR", program(COPY, tensors=(Tensor("x", view(Segment.INPUT, 400)),))),
    "a transposed tensor": (
        "V-TENSOR", program(COPY, tensors=(Tensor("x", view(Segment.INPUT, 4, 4, strides=(1, 4))),))),
    "outputs that overlap": (
        "V-TENSOR", program(COPY, tensors=(Tensor("y", Y), Tensor("z", view(Segment.OUTPUT, 4, offset=60))))),
    "a dim register that is written": ("V-DIM", program(at("MOV", dst=s(31), src=1), COPY, dims=(BATCH,))),
    "two dims in one register": ("V-DIM", program(COPY, dims=(BATCH, DimSymbol("time", 31, 4)))),
    "constants beyond the segment": ("V-CONST", program(COPY, constants=(bytes_at(1000, 100),))),
    "constants that overlap": ("V-CONST", program(COPY, constants=(bytes_at(0, 100), bytes_at(99, 1)))),
    "constants that overlap external ones": (
        "V-CONST", program(COPY, constants=(bytes_at(10, 4),), external=(EXTERNAL,))),
    "external weights in another folder": (
        "V-CONST", program(COPY, external=(dataclasses.replace(EXTERNAL, file="../w.safetensors"),))),
    "an operand missing": ("V-OPERAND", program(at("COPY", Y))),
    "an element type that the row does not take": (
        "V-TYPE", program(at("GEMM", Y, view(Segment.INPUT, 4, 4, dtype=DType.I64), X))),
    "shapes that do not fit": ("V-SHAPE", program(at("GEMM", Y, X, view(Segment.INPUT, 3, 4)))),
    "a dim that may not change": (
        "V-STATIC",
        program(at("NORM.rms", view(Segment.OUTPUT, 4, Dynamic(1, 4)), view(Segment.INPUT, 4, Dynamic(1, 4))))),
    "a constraint of the row": ("EW.C1", program(at("EW.eq", Y, X, X))),
    "a static view beyond the segment": ("V-EXTENT", program(at("COPY", Y, view(Segment.INPUT, 4, 4, offset=964)))),
    "a register that is always too large": (
        "V-EXTENT",
        program(at("MOV", dst=s(1), src=20),
                at("COPY", Y, view(Segment.INPUT, 4, 4, offset_register=1, offset_scale=64)))),
    "a dim that is always too large": (
        "V-EXTENT",
        program(at("MOV", dst=s(1), src=5), at("COPY", view(Segment.OUTPUT, Dynamic(1, 4)),
                                               view(Segment.INPUT, Dynamic(1, 4))))),
    "an offset inside an element": ("V-ALIGN", program(at("COPY", Y, view(Segment.INPUT, 4, 4, offset=2)))),
    "a write to the input": ("V-READONLY", program(at("COPY", X, STATE))),
    "a write to constants": ("V-READONLY", program(at("COPY", view(Segment.CONST, 4, 4), X))),
    "an output that repeats an element": (
        "V-OVERLAP", program(at("COPY", view(Segment.OUTPUT, 4, 4, strides=(0, 1)), X))),
    "an output whose rows overlap": ("V-OVERLAP", program(at("COPY", view(Segment.OUTPUT, 4, 4, strides=(3, 1)), X))),
    "a shifted copy in place": ("V-ALIAS", program(at("COPY", STATE, view(Segment.STATE, 4, 4, offset=16)))),
    "a transpose in place": ("V-ALIAS", program(at("COPY", STATE, view(Segment.STATE, 4, 4, strides=(1, 4))))),
    "a product in place": ("V-ALIAS", program(at("GEMM", STATE, STATE, X))),
    "views at two registers": (
        "V-ALIAS",
        program(at("COPY", view(Segment.STATE, 4, offset_register=1, offset_scale=16),
                   view(Segment.STATE, 4, offset_register=2, offset_scale=16)))),
    "two outputs in one place": (
        "V-ALIAS",
        program(at("TOPK", view(Segment.OUTPUT, 4, 2), X, view(Segment.OUTPUT, 4, 2, dtype=DType.I32)))),
    "LOOP without ENDLOOP": ("V-LOOP", program(LOOP, COPY)),
    "ENDLOOP without LOOP": ("V-LOOP", program(COPY, at("ENDLOOP", begin=0))),
    "LOOP that names another end": ("V-LOOP", program(at("LOOP", counter=s(0), count=3, end=1), *BODY[1:])),
    "a body that writes its counter": ("V-LOOP", program(LOOP, at("MOV", dst=s(0), src=0), BODY[2])),
    "a called body that writes the counter": (
        "V-LOOP",
        program(LOOP, at("CALL", target=4), BODY[2], at("HALT"), at("MOV", dst=s(0), src=0), at("RET"))),
    "nine nested loops": (
        "V-LOOP",
        program(*(at("LOOP", counter=s(i), count=1, end=17 - i) for i in range(9)),
                *(at("ENDLOOP", begin=8 - i) for i in range(9)))),
    "a branch backwards": ("V-BRANCH", program(COPY, at("BR", target=0))),
    "a branch into a loop": ("V-BRANCH", program(at("BR", target=2), at("LOOP", counter=s(0), count=3, end=3), COPY,
                                                 at("ENDLOOP", begin=1))),
    "a branch beyond the end": ("V-BRANCH", program(at("BR", target=2))),
    "a branch out of a loop that says it stays": (
        "V-BRANCH", program(LOOP, at("BR", target=3), at("ENDLOOP", begin=0))),
    "a branch into a function": ("V-BRANCH", program(at("BR", target=3), at("CALL", target=3), at("HALT"), at("RET"))),
    "a call beyond the end": ("V-CALL", program(at("CALL", target=9))),
    "recursion": ("V-CALL", program(*CALLS, at("CALL", target=2), at("RET"))),
    "seventeen nested calls": (
        "V-CALL", program(*CALLS, *(at(n, **a) for i in range(16) for n, a in
                                    (("CALL", {"target": 4 + 2 * i}), ("RET", {}))), at("RET"))),
    "RET in the main program": ("V-RETURN", program(COPY, at("RET"))),
    "RET in a loop": (
        "V-RETURN",
        program(*CALLS, at("LOOP", counter=s(0), count=3, end=4), at("RET"), at("ENDLOOP", begin=2), at("RET"))),
    "no HALT": ("V-END", dataclasses.replace(program(), instructions=(COPY,))),
    "a main program that falls into a function": ("V-END", program(at("CALL", target=1), at("RET"))),
    "a run of 2**62 instructions": (
        "V-STEPS",
        program(at("LOOP", counter=s(0), count=2**31 - 1, end=3), at("LOOP", counter=s(1), count=2**31 - 1, end=2),
                at("ENDLOOP", begin=1), at("ENDLOOP", begin=0))),
    "a read before any write": ("V-INIT", program(at("COPY", Y, H), at("COPY", H, X))),
    "a read of one row too many": (
        "V-INIT", program(at("COPY", view(Segment.SCRATCH, 3, 4), view(Segment.INPUT, 3, 4)), at("COPY", Y, H))),
    "a read of columns that lie between the written ones": (
        "V-INIT",
        program(at("COPY", view(Segment.SCRATCH, 4, 2, strides=(4, 1)), view(Segment.INPUT, 4, 2)),
                at("COPY", view(Segment.OUTPUT, 4, 2), view(Segment.SCRATCH, 4, 2, strides=(4, 1), offset=8)))),
    "groups without a world": ("V-WORLD", program(COPY, groups=(HALVES,))),
    "a group that lacks a rank": ("V-WORLD", program(COPY, world=5, groups=(HALVES,))),
    "pairs of ranks that are not there": ("V-WORLD", program(COPY, world=2, pairs=(RankPairs("up", ((0, 2),)),))),
    "a shard that is too small": (
        "V-SHARD",
        program(COPY, tensors=(Tensor("w", view(Segment.CONST, 4)),), world=4, shards=(Shard("w", 0, 0, np.zeros(
            60, np.uint8)),))),
    "a group that does not exist": ("V-GROUP", program(at("BROADCAST", Y, X, group=1), world=4)),
    "three parts for four ranks": ("V-GROUP", program(at("ALLGATHER", view(Segment.OUTPUT, 3, 4, 4), X), world=4)),
    "parts without a world": ("V-GROUP", program(at("ALLGATHER", view(Segment.OUTPUT, 3, 4, 4), X))),
    "a root outside of its group": (
        "V-GROUP", program(at("BROADCAST", Y, X, group=1, root=2), world=4, groups=(HALVES,))),
    "a collective that one rank skips": (
        "V-RANKS",
        program(at("CMP.eq", dst=p(0), a=BY_NAME["RANK"], b=0), at("BR", **{"target": 3, "if": p(0)}),
                at("ALLREDUCE.sum", Y, X))),
}  # fmt: skip

FILLED_BY_ROWS = (
    at("LOOP", counter=s(0), count=4, end=2),
    at("COPY", view(Segment.SCRATCH, 4, offset_register=0, offset_scale=16),
       view(Segment.INPUT, 4, offset_register=0, offset_scale=16)),
    at("ENDLOOP", begin=0),
    at("COPY", Y, H),
)  # fmt: skip

ACCEPTED = {
    "a copy": program(COPY),
    "a loop": program(*BODY),
    "eight nested loops": program(
        *(at("LOOP", counter=s(i), count=2, end=15 - i) for i in range(8)),
        *(at("ENDLOOP", begin=7 - i) for i in range(8))),
    "sixteen nested calls": program(
        *CALLS, *(at(n, **a) for i in range(15) for n, a in (("CALL", {"target": 4 + 2 * i}), ("RET", {}))), at("RET")),
    "a branch out of two loops": program(
        at("LOOP", counter=s(0), count=2, end=4), at("LOOP", counter=s(1), count=2, end=3),
        at("BR", **{"target": 5, "if": p(0), "leaves": 2}), at("ENDLOOP", begin=1), at("ENDLOOP", begin=0)),
    "a branch to the end of a body": program(
        at("LOOP", counter=s(0), count=2, end=3), at("BR", target=3), COPY, at("ENDLOOP", begin=0)),
    "a HALT in a function": program(*CALLS),
    "an activation in place": program(at("ACT.relu", STATE, STATE)),
    "columns computed from other columns": program(
        at("EW.add", view(Segment.STATE, 4, 2, strides=(4, 1)),
           *[view(Segment.STATE, 4, 2, strides=(4, 1), offset=8)] * 2)),
    "odd elements from even ones": program(
        at("COPY", view(Segment.STATE, 8, strides=(2,)), view(Segment.STATE, 8, strides=(2,), offset=4))),
    "a corner from the corner across": program(
        at("COPY", view(Segment.STATE, 2, 2, strides=(4, 1)), view(Segment.STATE, 2, 2, strides=(4, 1), offset=40))),
    "a row from another row at one register": program(
        at("COPY", view(Segment.STATE, 4, offset_register=1, offset_scale=64),
           view(Segment.STATE, 4, offset_register=1, offset_scale=64, offset=16))),
    "a transposed output": program(at("COPY", view(Segment.OUTPUT, 4, 4, strides=(1, 4)), X)),
    "an empty output that repeats": program(at("COPY", view(Segment.OUTPUT, 0, 4, strides=(0, 1)),
                                               view(Segment.INPUT, 0, 4))),
    "an empty view beyond the segment": program(at("COPY", view(Segment.OUTPUT, 0, 4, offset=2000),
                                                   view(Segment.INPUT, 0, 4, offset=2000))),
    "a buffer filled row by row": program(*FILLED_BY_ROWS),
    "a buffer filled in two halves": program(
        at("COPY", view(Segment.SCRATCH, 2, 4), view(Segment.INPUT, 2, 4)),
        at("COPY", view(Segment.SCRATCH, 2, 4, offset=32), view(Segment.INPUT, 2, 4)), at("COPY", Y, H)),
    "a state that is read first": program(at("COPY", Y, STATE)),
    "an accumulation over trips": program(
        at("LOOP", counter=s(0), count=4, end=3), at("COPY", Y, H), at("COPY", H, X), at("ENDLOOP", begin=0)),
    "a register that may fit": program(
        at("LOADS", view(Segment.INPUT, 1, dtype=DType.I32), dst=s(1)),
        at("COPY", Y, view(Segment.INPUT, 4, 4, offset_register=1, offset_scale=64))),
    "a function that reads what its caller wrote": program(at("COPY", H, X), at("CALL", target=3), at("HALT"),
                                                           at("COPY", Y, H), at("RET")),
    "external weights": program(COPY, external=(EXTERNAL,)),
    "a fold over pairs of ranks": program(at("ALLREDUCE.sum", Y, X, group=1), world=4, groups=(HALVES,)),
    "a fold over however many ranks": program(at("ALLREDUCE.sum", Y, X)),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_broken_rule_is_named(case: str) -> None:
    """The smallest program that breaks a rule is rejected by that rule and no other."""
    rule, broken = REJECTED[case]
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert {r.rule for r in caught.value.rejections} == {rule}


@pytest.mark.parametrize("case", ACCEPTED)
def test_sensible_program_is_accepted(case: str) -> None:
    """What looks like a broken rule but is not one is accepted."""
    verify(ACCEPTED[case])


def test_every_rule_has_a_program_that_breaks_it() -> None:
    """No rule stands in the table without a program that it rejects."""
    assert {rule for rule, _ in REJECTED.values() if "." not in rule} == set(RULES)


def test_rejection_says_where_and_what_to_do() -> None:
    """A rejection carries rule id, instruction, source line, message and, where there is one, a remedy."""
    broken = program(COPY, at("COPY", STATE, view(Segment.STATE, 4, 4, offset=16)),
                     debug=Debug("a.dla", (3, 4, 5)))  # fmt: skip
    with pytest.raises(VerifyError) as caught:
        verify(broken)
    assert str(caught.value) == (
        "error[V-ALIAS] at instruction 1 (a.dla:4): COPY: out is not exactly x, but shares memory with it\n"
        "  help: write to another tensor, and copy if need be"
    )


def test_many_rejections_are_cut_short() -> None:
    """A program that is wrong everywhere gives 50 rejections and a count of the rest."""
    with pytest.raises(VerifyError) as caught:
        verify(program(*[at("COPY", Y, view(Segment.INPUT, 4, 4, offset=2))] * 60))
    assert [str(r) for r in caught.value.rejections[50:]] == ["error[V-MORE]: and 10 more"]


def test_hostile_names_are_escaped_in_messages() -> None:
    """A name that would drive a terminal is shown escaped and cut."""
    with pytest.raises(VerifyError) as caught:
        verify(program(COPY, name="\x1b[2J" + "a" * 500))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_counters_prove_addresses() -> None:
    """A view at a loop's counter needs no check at run time if every trip fits, and one at loaded data does."""
    assert unproven(program(*FILLED_BY_ROWS)) == frozenset()
    assert unproven(ACCEPTED["a register that may fit"]) == {(1, "x")}
