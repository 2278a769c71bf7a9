"""Typing of instructions: each numbered constraint refuses what it should, and sound instructions pass."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dla.isa.descriptor import Dim, Dynamic, Segment, contiguous
from dla.isa.dtypes import BY_TEXT, DType
from dla.isa.instructions import BY_MNEMONIC, ROWS
from dla.isa.program import Instruction
from dla.isa.registers import f, p, s
from dla.isa.table import Role
from dla.isa.typing import Complaint, check

N = Dynamic(31, 8)


def instruction(name: str, operands: dict[str, Any], attributes: dict[str, Any]) -> Instruction:
    """`operands` maps names to shapes, or to (type, shape); f32 by default."""
    mnemonic, _, sub = name.partition(".")
    row = BY_MNEMONIC[mnemonic]
    found = []
    for operand in row.operands:
        given = operands.get(operand.name)
        if given is None:
            found.append(None)
            continue
        text, shape = given if given and isinstance(given[0], str) else ("f32", given)
        segment = Segment.OUTPUT if operand.role is Role.OUT else Segment.INPUT
        found.append(contiguous(segment, BY_TEXT[text], tuple(shape)))
    assert set(operands) <= {o.name for o in row.operands}
    assert set(attributes) <= set(row.all_attributes)
    return Instruction(row, sub, tuple(found), attributes)


def complaints(name: str, operands: dict[str, Any], attributes: dict[str, Any]) -> list[Complaint]:
    """What typing says of such an instruction."""
    return check(instruction(name, operands, attributes))


def pads(*pairs: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """PAD's attributes from (low, high) for each axis."""
    full = [*pairs, *[(0, 0)] * (6 - len(pairs))]
    return {"low": tuple(a for a, _ in full), "high": tuple(b for _, b in full)}


Shape = tuple[Dim, ...]
_X: dict[str, Shape] = {"out": (2, 3), "x": (2, 3)}
_IMAGE: dict[str, Shape] = {"out": (N, 4, 4, 6), "x": (N, 6, 6, 4), "w": (6, 3, 3, 4)}
_HEADS: dict[str, Shape] = {"out": (1, 4, 3, 8), "q": (1, 4, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8)}
_MATRICES: dict[str, Shape] = {"out": (2, 3), "a": (2, 4), "b": (4, 3)}

SOUND: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("MOV", {}, {"dst": f(0), "src": 3}),
    ("ALU.add", {}, {"dst": s(0), "a": s(1), "b": 2}),
    ("ALU.cvt", {}, {"dst": s(0), "a": f(1)}),
    ("CMP.lt", {}, {"dst": p(0), "a": f(1), "b": 2}),
    ("LOADS", {"x": (1, 1)}, {"dst": f(0)}),
    ("LOOP", {}, {"counter": s(0), "count": s(1), "max": 4}),
    ("COPY", {"out": ("i8", (2, N)), "x": ("bf16", (N,))}, {}),
    ("FILL", {"out": ("bool", ())}, {"value": p(0)}),
    ("IOTA", {"out": (2, N)}, {"axis": 1}),
    ("PAD.reflect", {"out": (N, 7), "x": (N, 3)}, pads((0, 0), (2, 2))),
    ("PAD.constant", {"out": (5,), "x": (0,)}, pads((2, 3)) | {"value": s(0)}),
    ("GATHER", {"out": (4, N, 3), "x": (4, 9, 3), "indices": ("i64", (N,))}, {"axis": 1}),
    ("SCATTER.set", {"out": ("bool", (9, N)), "x": ("bool", (9, N)), "indices": ("i64", (20, N)),
                     "updates": ("bool", (20, N))}, {}),
    ("SCATTER.add", {"out": (9, 4), "x": (9, 4), "indices": ("i32", (9, N)), "updates": (9, N)}, {"axis": 1}),
    ("ACT.relu", {"out": ("i8", (2,)), "x": ("i8", (2,))}, {}),
    ("ACT.isnan", {"out": ("bool", (2,)), "x": ("f16", (2,))}, {}),
    ("ACT.isinf", {"out": ("bool", (2,)), "x": ("bf16", (2,))}, {}),
    ("ACT.celu", _X, {"alpha": 0.5}),
    ("EW.add", {"out": ("f32", (2, 3)), "a": ("bf16", (3,)), "b": ("bf16", ())}, {}),
    ("SELECT", {"out": (2, 3), "cond": ("bool", (2, 1)), "a": (3,), "b": ()}, {}),
    ("REDUCE.sum", {"out": (3,), "x": (N, 3)}, {"axes": (0,)}),
    ("REDUCE.argmax", {"out": ("i32", (2, 1)), "x": (2, 3)}, {"axes": (1,), "keepdims": True}),
    ("SCAN.sum", {"out": (2, 3), "x": (2, 3)}, {"axis": 1}),
    ("GEMM", {"out": ("f16", (5, 2, 3)), "a": (2, 4), "b": (5, 4, 3), "c": (3,), "bias": (1,)},
     {"steps": ("bias",), "beta": 2.0}),
    ("GEMM", {"out": ("i32", (2, 3)), "a": ("i8", (2, 4)), "b": ("i8", (4, 3))}, {}),
    ("GEMM", {"out": (2, N), "a": (2, 4), "b": (4, N)}, {}),
    ("GEMM.glu", {"out": ("bf16", (N, 3)), "a": (N, 4), "b": (4, 6), "bias": (3,)},
     {"steps": ("bias",), "unit": "silu", "alpha": 2.0}),
    ("GEMM.glu", {"out": (2, 0), "a": (2, 4), "b": (4, 0)}, {}),
    ("GEMM", {"out": ("bf16", (2, 3)), "a": (2, 4), "b": (4, 3)}, {"math": "tf32"}),
    ("CONV", _IMAGE, {"math": "tf32"}),
    ("CONV", _IMAGE, {}),
    ("CONV", {"out": (N, 3, 4), "x": (N, 6, 4), "w": (4, 3, 1)},
     {"groups": 4, "pads": (0, 1, 0, 0), "strides": (1, 2)}),
    ("CONV", _IMAGE | {"out": (N, 9, 4, 6)}, {"gaps": (1, 0)}),
    ("CONV", {"out": (N, 14, 4), "x": (N, 6, 4), "w": (4, 3, 4)}, {"gaps": (0, 2)}),
    ("POOL.max", {"out": ("u8", (N, 3, 3, 4)), "x": ("u8", (N, 6, 6, 4))}, {"window": (2, 2), "strides": (2, 2)}),
    ("POOL.max", {"out": (N, 3, 4), "x": (N, 8, 4)}, {"window": (1, 3), "strides": (1, 2)}),
    ("POOL.global_avg", {"out": (N, 1, 1, 4), "x": (N, 6, 6, 4)}, {}),
    ("RESIZE", {"out": ("f16", (N, 8, 4)), "x": (N, 3, 4), "indices": ("i32", (8, 2)), "weights": (8, 2)}, {"axis": 1}),
    ("NORM.batch", {"out": (2, 3), "x": (2, 3), "mean": (3,), "var": (3,), "gain": ("bf16", (3,))}, {}),
    ("NORM.group", {"out": (2, 6), "x": (2, 6)}, {"groups": 3}),
    ("SOFTMAX", _X, {"axis": 1}),
    ("ATTENTION", _HEADS | {"mask": ("bool", (3, 5)), "lse": (1, 4, 3)}, {"position": s(0), "causal": True}),
    ("ROPE", {"out": (2, 3, 8), "x": (2, 3, 8), "cos": ("f16", (3, 4)), "sin": ("f16", (3, 4))}, {}),
    ("ROPE", {"out": (N, 2, 3, 8), "x": (N, 2, 3, 8), "cos": (N, 1, 3, 4), "sin": (2, 3, 4)}, {}),
    ("RNN.lstm", {"out": ("f16", (N, 2)), "c_out": (N, 2), "gates": ("bf16", (N, 8)), "c": (N, 2)}, {}),
    ("RNN.gru", {"out": (2,), "gates": ("f16", (6,)), "rec": ("f16", (6,)), "h": ("bf16", (2,))}, {}),
    ("TOPK", {"out": (2, 3), "x": (2, 5), "indices": ("i32", (2, 3))}, {}),
]  # fmt: skip

UNSOUND: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("C1", "MOV", {}, {"dst": s(0), "src": 1.5}),
    ("C1", "MOV", {}, {"dst": p(0), "src": 2}),
    ("C1", "ALU.sqrt", {}, {"dst": s(0), "a": s(1)}),
    ("C1", "ALU.neg", {}, {"dst": s(0), "a": s(1), "b": 1}),
    ("C1", "ALU.cvt", {}, {"dst": s(0), "a": s(1)}),
    ("C1", "CMP.eq", {}, {"dst": p(0), "a": s(1), "b": f(1)}),
    ("C1", "LOADS", {"x": (2,)}, {"dst": f(0)}),
    ("C1", "LOADS", {"x": (Dynamic(0, 1),)}, {"dst": f(0)}),
    ("C2", "LOADS", {"x": (1,)}, {"dst": s(0)}),
    ("C1", "LOOP", {}, {"counter": s(0), "count": s(1)}),
    ("C1", "LOOP", {}, {"counter": s(0), "count": -1}),
    ("C1", "BR", {}, {"target": 1, "if": p(0), "unless": p(1)}),
    ("C1", "ASSERT", {}, {}),
    ("C1", "IOTA", {"out": ()}, {}),
    ("C1", "IOTA", {"out": (2, 3)}, {"axis": 2}),
    ("C1", "PAD.edge", {"out": (5,), "x": (3,)}, pads((1, 0))),
    ("C1", "PAD.edge", {"out": (3, 3), "x": (3,)}, pads()),
    ("C1", "PAD.edge", {"out": (3,), "x": (3,)}, pads((0, 0), (1, 0))),
    ("C1", "PAD.constant", {"out": (N,), "x": (N,)}, pads((0, 1))),
    ("C2", "PAD.reflect", {"out": (6,), "x": (3,)}, pads((3, 0))),
    ("C2", "PAD.wrap", {"out": (7,), "x": (3,)}, pads((0, 4))),
    ("C2", "PAD.edge", {"out": (1,), "x": (0,)}, pads((1, 0))),
    ("C3", "PAD.edge", {"out": (4,), "x": (3,)}, pads((1, 0)) | {"value": 1}),
    ("C1", "GATHER", {"out": (9, 4), "x": (9,), "indices": ("i32", (4,))}, {"axis": 1}),
    ("C2", "GATHER", {"out": (3, 4), "x": (4, 9), "indices": ("i32", (3,))}, {"axis": 1}),
    ("C1", "SCATTER.set", {"out": (9,), "x": (9,), "indices": ("i32", (4,)), "updates": (4,)}, {"axis": 1}),
    ("C2", "SCATTER.set", {"out": (9,), "x": (9,), "indices": ("i32", (4, 1)), "updates": (4, 1)}, {}),
    ("C2", "SCATTER.set", {"out": (9, 4), "x": (9, 4), "indices": ("i32", (1, 5)), "updates": (1, 5)}, {}),
    ("C2", "SCATTER.set", {"out": (9, N), "x": (9, N), "indices": ("i32", (1, 1)), "updates": (1, 1)}, {}),
    (
        "C3",
        "SCATTER.add",
        {"out": ("bool", (9,)), "x": ("bool", (9,)), "indices": ("i32", (4,)), "updates": ("bool", (4,))},
        {},
    ),
    ("C1", "ACT.exp", {"out": ("i32", (2,)), "x": ("i32", (2,))}, {}),
    ("C1", "ACT.relu", {"out": ("i32", (2,)), "x": ("i8", (2,))}, {}),
    ("C1", "ACT.isnan", {"out": (2,), "x": (2,)}, {}),
    ("C1", "ACT.isinf", {"out": ("bool", (2,)), "x": ("i32", (2,))}, {}),
    ("C1", "ACT.tan", {"out": ("i32", (2,)), "x": ("i32", (2,))}, {}),
    ("C1", "ACT.not", {"out": (2,), "x": (2,)}, {}),
    ("C1", "ACT.neg", {"out": ("bool", (2,)), "x": ("bool", (2,))}, {}),
    ("C2", "ACT.relu", _X, {"alpha": 0.5}),
    ("C2", "ACT.selu", _X, {"alpha": 0.5}),
    ("C1", "EW.eq", {"out": (2,), "a": (2,), "b": (2,)}, {}),
    ("C1", "EW.and", {"out": (2,), "a": (2,), "b": (2,)}, {}),
    ("C1", "EW.add", {"out": ("i64", (2,)), "a": ("i32", (2,)), "b": ("i32", (2,))}, {}),
    ("C1", "EW.add", {"out": ("bool", (2,)), "a": ("bool", (2,)), "b": ("bool", (2,))}, {}),
    ("C1", "REDUCE.sum", {"out": (2,), "x": (2,)}, {"axes": (1,)}),
    ("C1", "REDUCE.sum", {"out": (2,), "x": (2,)}, {"axes": ()}),
    ("C1", "REDUCE.argmax", {"out": ("i32", ()), "x": (2, 3)}, {"axes": (0, 1)}),
    ("C2", "REDUCE.sum", {"out": (2, 1), "x": (2, 3)}, {"axes": (1,)}),
    ("C2", "REDUCE.sum", {"out": (2,), "x": (2, 3)}, {"axes": (1,), "keepdims": True}),
    ("C3", "REDUCE.max", {"out": (2,), "x": (2, 0)}, {"axes": (1,)}),
    ("C4", "REDUCE.argmax", {"out": (2,), "x": (2, 3)}, {"axes": (1,)}),
    ("C4", "REDUCE.mean", {"out": ("i32", (2,)), "x": ("i32", (2, 3))}, {"axes": (1,)}),
    ("C4", "REDUCE.sum", {"out": ("i32", (2,)), "x": (2, 3)}, {"axes": (1,)}),
    ("C1", "SCAN.sum", {"out": (2,), "x": (2,)}, {"axis": 1}),
    ("C2", "SCAN.sum", {"out": (2,), "x": ("i32", (2,))}, {"axis": 0}),
    ("C1", "GEMM", _MATRICES | {"out": ("i32", (2, 3))}, {}),
    ("C1", "GEMM", {"out": ("i32", (2, 3)), "a": ("i8", (2, 4)), "b": ("i8", (4, 3))}, {"alpha": 2.0}),
    ("C2", "GEMM", _MATRICES | {"bias": (3,)}, {"steps": ("bias", "bias")}),
    ("C2", "GEMM", _MATRICES, {"steps": ("act",), "act": "isnan"}),
    ("C2", "GEMM", _MATRICES, {"steps": ("act",), "act": "isinf"}),
    ("C2", "GEMM", _MATRICES, {"steps": ("clamp",), "clamp_low": 1.0}),
    ("C2", "GEMM", _MATRICES, {"act": "relu"}),
    ("C3", "GEMM", _MATRICES, {"beta": 2.0}),
    ("C4", "GEMM", _MATRICES | {"b": (4, 6)}, {}),
    ("C4", "GEMM", {"out": (2, N), "a": (2, 4), "b": (4, Dynamic(N.register + 1, N.bound))}, {}),
    ("C4", "GEMM.glu", _MATRICES, {}),
    ("C4", "GEMM.glu", {"out": (2, N), "a": (2, 4), "b": (4, 2 * N.bound)}, {}),
    ("C5", "GEMM", _MATRICES, {"unit": "silu"}),
    ("C5", "GEMM.glu", _MATRICES | {"b": (4, 6), "c": (3,)}, {}),
    ("C5", "GEMM.glu", {"out": ("i32", (2, 3)), "a": ("i8", (2, 4)), "b": ("i8", (4, 6))}, {}),
    ("C6", "GEMM", {"out": (2, 3), "a": ("f16", (2, 4)), "b": ("f16", (4, 3))}, {"math": "tf32"}),
    ("C6", "GEMM", {"out": ("i32", (2, 3)), "a": ("i8", (2, 4)), "b": ("i8", (4, 3))}, {"math": "tf32"}),
    ("C1", "CONV", _IMAGE | {"w": (6, 3, 4)}, {}),
    ("C1", "CONV", _IMAGE, {"window": (3, 3)}),
    ("C1", "CONV", {"out": (N, 4, 4), "x": (N, 6, 4), "w": (4, 3, 4)}, {"strides": (2, 1)}),
    ("C1", "CONV", {"out": (N, 4), "x": (N, 4), "w": (4, 4)}, {}),
    ("C1", "CONV", {"out": (N, 4, 4), "x": (N, 6, 4), "w": (4, 3, 4)}, {"gaps": (1, 0)}),
    ("C2", "CONV", _IMAGE | {"w": (6, 3, 3, 2)}, {}),
    ("C2", "CONV", _IMAGE | {"w": (6, 3, 3, 1)}, {"groups": 4}),
    ("C3", "CONV", _IMAGE, {"pads": (1, 1, 1, 1)}),
    ("C3", "CONV", _IMAGE | {"w": (6, 7, 7, 4)}, {}),
    ("C3", "CONV", _IMAGE | {"w": (6, 0, 3, 4)}, {}),
    ("C3", "CONV", _IMAGE, {"gaps": (1, 0)}),
    ("C4", "CONV", _IMAGE, {"steps": ("act",), "act": "not"}),
    ("C5", "CONV", {"out": (1, 66, 1), "x": (1, 66, 1), "w": (1, 1, 1)}, {"gaps": (0, 2**24), "strides": (1, 2**24)}),
    ("C6", "CONV", {"out": (1, 6, 6), "x": ("f16", (1, 6, 4)), "w": ("f16", (6, 1, 4))}, {"math": "tf32"}),
    ("C1", "POOL.max", {"out": (N, 5, 4), "x": (N, 6, 6, 4)}, {"window": (2, 2)}),
    ("C1", "POOL.max", {"out": (N, 5, 4), "x": (N, 6, 4)}, {"window": (2, 2)}),
    ("C2", "POOL.max", {"out": (N, 6, 6, 4), "x": (N, 6, 6, 4)}, {"window": (2, 2)}),
    ("C2", "POOL.global_max", {"out": (N, 1, 1, 4), "x": (N, 6, 6, 4)}, {"window": (2, 2)}),
    ("C2", "POOL.global_max", {"out": (N, 1, 1, 4), "x": (N, 0, 6, 4)}, {}),
    ("C3", "POOL.avg", {"out": ("i8", (N, 6, 4)), "x": ("i8", (N, 6, 4))}, {}),
    ("C4", "POOL.max", {"out": (N, 6, 4), "x": (N, 6, 4)}, {"count_include_pad": True}),
    ("C1", "RESIZE", {"out": (9, 4), "x": (9,), "indices": ("i32", (4, 2)), "weights": (4, 2)}, {"axis": 1}),
    ("C2", "RESIZE", {"out": (9, 5), "x": (9, 3), "indices": ("i32", (4, 2)), "weights": (4, 2)}, {"axis": 1}),
    ("C1", "NORM.group", {"out": (2, 6), "x": (2, 6)}, {"groups": 4}),
    ("C1", "NORM.group", {"out": (2, 6), "x": (2, 6)}, {}),
    ("C1", "NORM.layer", _X, {"groups": 1}),
    ("C2", "NORM.group", {"out": (6,), "x": (6,)}, {"groups": 2}),
    ("C3", "NORM.layer", _X, {"eps": -1.0}),
    ("C1", "SOFTMAX", _X, {"axis": 2}),
    ("C1", "ATTENTION", _HEADS | {"k": (1, 3, 5, 8), "v": (1, 3, 5, 8)}, {}),
    ("C1", "ATTENTION", _HEADS | {"k": (1, 0, 5, 8), "v": (1, 0, 5, 8)}, {}),
    ("C2", "ATTENTION", _HEADS, {"softcap": -1.0}),
    ("C3", "ATTENTION", _HEADS, {"position": 1.0}),
    ("C1", "ROPE", _X | {"cos": (2, 2), "sin": (2, 2)}, {}),
    ("C1", "RNN.lstm", {"out": (5, 2), "c_out": (5, 2), "gates": (5, 6), "c": (5, 2)}, {}),
    ("C1", "RNN.gru", {"out": (2,), "gates": (8,), "rec": (8,), "h": (2,)}, {}),
    ("C1", "TOPK", {"out": (2, 6), "x": (2, 5)}, {}),
    ("operands", "GEMM", {"out": (2, 3), "a": (2, 4)}, {}),
    ("operands", "GEMM", _MATRICES | {"bias": (3,)}, {}),
    ("operands", "GEMM", _MATRICES, {"steps": ("bias",)}),
    ("operands", "NORM.batch", _X | {"mean": (3,)}, {}),
    ("operands", "NORM.layer", _X | {"mean": (3,), "var": (3,)}, {}),
    ("operands", "RNN.lstm", {"out": (2,), "gates": (8,), "c": (2,)}, {}),
    ("operands", "RNN.gru", {"out": (2,), "c_out": (2,), "gates": (6,), "rec": (6,), "h": (2,)}, {}),
    ("types", "SELECT", {"out": (2,), "cond": (2,), "a": (2,), "b": (2,)}, {}),
    ("types", "EW.add", {"out": (2,), "a": (2,), "b": ("f16", (2,))}, {}),
    ("shapes", "GEMM", {"out": (2, 3), "a": (2, 4), "b": (5, 3)}, {}),
    ("shapes", "NORM.layer", _X | {"gain": (2,)}, {}),
    ("shapes", "ATTENTION", _HEADS | {"mask": (3, 4)}, {}),
    ("static", "CONV", {"out": (1, 4, 6), "x": (1, N, 4), "w": (6, 3, 4)}, {}),
    ("static", "CONV", {"out": (1, 4, 6), "x": (1, 6, N), "w": (6, 3, N)}, {}),
    ("static", "NORM.layer", {"out": (2, N), "x": (2, N)}, {}),
    ("shapes", "RNN.gru", {"out": (5, 2), "gates": (5, 6), "rec": (6,), "h": (5, 2)}, {}),
    ("static", "RNN.gru", {"out": (N,), "gates": (6,), "rec": (6,), "h": (N,)}, {}),
    ("static", "ROPE", {"out": (2, N), "x": (2, N), "cos": (2, 2), "sin": (2, 2)}, {}),
    ("C1", "ALLREDUCE.mean", {"out": ("i32", (2,)), "x": ("i32", (2,))}, {}),
    ("C1", "REDUCESCATTER.mean", {"out": ("i32", (2,)), "x": ("i32", (4, 2))}, {}),
    ("shapes", "ALLGATHER", {"out": (4, 2), "x": (3,)}, {}),
    ("shapes", "ALLTOALL", {"out": (4, 2), "x": (3, 2)}, {}),
    ("attributes", "PERMUTE", {"out": (2,), "x": (2,)}, {}),
]


@pytest.mark.parametrize(("name", "operands", "attributes"), SOUND, ids=[c[0] for c in SOUND])
def test_a_sound_instruction_passes(name: str, operands: dict[str, Any], attributes: dict[str, Any]) -> None:
    """No complaint about an instruction that fits its row."""
    assert complaints(name, operands, attributes) == []


@pytest.mark.parametrize(("rule", "name", "operands", "attributes"), UNSOUND, ids=[f"{c[1]}-{c[0]}" for c in UNSOUND])
def test_an_unsound_instruction_breaks_the_rule_that_it_should(
    rule: str, name: str, operands: dict[str, Any], attributes: dict[str, Any]
) -> None:
    """Exactly the broken rule is named, with its text."""
    found = complaints(name, operands, attributes)
    assert {c.rule for c in found} == {rule}
    numbered = {c.name: c.text for c in BY_MNEMONIC[name.partition(".")[0]].constraints}
    if rule in numbered:
        assert found[0].message == f"must hold: {numbered[rule]}"


def test_every_numbered_constraint_has_a_case_above() -> None:
    """A constraint that nothing breaks would not be tested."""
    broken = {(name.partition(".")[0], rule) for rule, name, *_ in UNSOUND}
    assert {(row.mnemonic, c.name) for row in ROWS for c in row.constraints} <= broken


def test_several_wrong_operands_are_all_named() -> None:
    """Typing does not stop at the first operand."""
    found = complaints("EW.add", {"out": (2,), "a": (3,), "b": ("f16", (4,))}, {})
    assert [(c.rule, c.operand) for c in found] == [("shapes", "a"), ("types", "b"), ("shapes", "b")]


def test_operands_of_any_rank_are_refused_with_a_complaint() -> None:
    """Operands that do not fit leave names unbound that others broadcast to; every row copes with that."""
    refused = 0
    for row in ROWS:
        for rank, sub in itertools.product(range(7), row.sub_codes or ("",)):
            operands = tuple(contiguous(Segment.STATE, DType.F32, (2,) * (rank if k % 2 else 6 - rank))
                             for k in range(len(row.operands)))  # fmt: skip
            steps = tuple(o.step for o in row.operands if o.step is not None)
            attributes = {n: a.default for n, a in row.all_attributes.items()} | ({"steps": steps} if steps else {})
            refused += bool(check(Instruction(row, sub, operands, attributes)))
    assert refused > 500


def test_rank_of_an_output_that_others_broadcast_to() -> None:
    """A product whose output is a vector names the output, and nothing that follows from it."""
    (found,) = complaints("GEMM", {"out": (2,), "a": (2, 3), "b": (3, 2)}, {})
    assert found == Complaint("shapes", "out is [2], which does not have the rank of [B..., M, N]", "out")


def test_a_missing_attribute_is_a_complaint() -> None:
    """An instruction built by hand without what has no default is refused, not asked further."""
    assert complaints("SOFTMAX.soft", {"out": (2, 3), "x": (2, 3)}, {}) == [
        Complaint("attributes", "attribute axis is missing", "axis")
    ]


def test_a_type_complaint_names_what_would_fit() -> None:
    """The message lists the types that the operand may have."""
    (found,) = complaints("TOPK", {"out": (2, 3), "x": (2, 5), "indices": (2, 3)}, {})
    assert found.message == "indices is f32, but must be one of i32, i64"
    assert DType.I32.text in found.message
