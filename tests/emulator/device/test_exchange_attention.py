"""An ATTENTION between products of a decode step: what it takes and gives as it comes, and that results are right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import exchange, plan
from dla.emulator.device.layout import PATH_STREAM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.emulator.device.paths.stream import SPARED_AT
from dla.isa.descriptor import Segment
from dla.isa.dtypes import Array
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare

BASES = {segment: segment.value << 40 for segment in Segment}
on_cpu = cpu_machine.needs_compiler

STEP = """
.dim past s31 {context}
.input  x     : {dtype}[1, {width}]
.input  made  : {dtype}[{line}, {width}]
.input  o     : {dtype}[{width}, {queries}]
.input  cos   : f32[{positions}, {pairs}]
.input  sin   : f32[{positions}, {pairs}]
.state  cache : {dtype}[1, {rows}, {kept}]
.state  moved : f32[1, {pairs}]
.scratch y    : {dtype}[1, {heads}, 1, {depth}]
.output z     : {dtype}[1, {width}]
main:
{first}
{begin}    GEMM state@0+past*{pitch} : {dtype}[1, {line}]{{0, 1}}, x, made.T
    ROPE {turned}, {turned}, {cos}, sin[past:past+1]{how}
{between}    ATTENTION {y}, {q}, {k}, {v}{attributes}
    GEMM z, {a}, o.T residual=x
{end}    HALT
"""


def step(
    depth: int = 64, *, heads: int = 4, key_heads: int = 2, dtype: str = "bf16", context: int = 200, more: int = 1,
    **parts: str,
) -> Program:  # fmt: skip
    """A decode step on a cache of values and, behind them, keys, in whose last line queries come behind the key."""
    own, width = key_heads * depth, 64
    kept, rows = 2 * own, context + 9
    by = f"+past*{kept * 2}"

    def state(place: int, count: int) -> str:
        return f"state@{place}{by} : {dtype}[1, {count}, 1, {depth}]{{0, {depth}, 0, 1}}"

    def half(columns: str) -> str:
        length = f"s0 <= {context + 3}"
        return f"cache[0, :{length}, {columns}].reshape({length}, {key_heads}, {depth}).permute(1, 0, 2)[None]"

    given = {
        "first": f"    ALU.add s0, past, {more}", "turned": state(kept, key_heads + heads), "q": state(2 * kept, heads),
        "k": half(f"{own}:{kept}"), "v": half(f":{own}"), "cos": "cos[past:past+1]", "how": "", "attributes": "",
        "begin": "", "between": "", "end": "", "y": "y", "a": "y.reshape(1, {queries})",
    }  # fmt: skip
    sizes = {
        "context": context, "positions": context + 1, "line": kept + heads * depth, "pairs": depth // 2, "rows": rows,
        "kept": kept, "heads": heads, "depth": depth, "dtype": dtype, "width": width, "queries": heads * depth,
        "pitch": kept * 2,
    }  # fmt: skip
    given = {name: part.format(**sizes) if name in ("a", "y") else part for name, part in (given | parts).items()}
    return assemble(STEP.format(**sizes, **given))


def taken(program: Program) -> dict[str, str]:
    """Whose results an instruction takes, both by their mnemonics."""
    made = plan.build(program, BASES, Target(hopper=True))
    code = program.instructions
    found = {}
    for index, chosen in enumerate(made.schedules):
        if " takes " in chosen.summary:
            found[code[index].row.mnemonic] = code[int(chosen.summary.split(" from ")[1].split()[0])].row.mnemonic
    return found


def test_a_decode_step_takes():
    """Both widths that keys in registers have, and both types."""
    both = {"ATTENTION": "GEMM", "GEMM": "ATTENTION"}
    assert all(taken(step(depth, dtype=dtype)) == both for depth in (64, 128) for dtype in ("bf16", "f16"))
    assert taken(step(heads=16, key_heads=1)) == both


@pytest.mark.parametrize(
    "parts",
    [
        {"how": " interleaved"},
        {"between": "    FILL z, 0\n"},
        {"between": "next:\n", "begin": "    BR next if=p0\n"},
        {"cos": "moved", "end": "    COPY moved, cos[0:1]\n"},
        {"first": "    MOV s0, past"},
        {"first": "    ALU.add s0, past, 1\n    ALU.add s31, past, 0"},
        {"first": "    ALU.add s0, past, 1\nagain:\n    BR again2 if=p0\nagain2:"},
        {"more": 2},
        {"attributes": " softcap=3.0"},
        {"depth": 32},
        {"depth": 128, "context": 600},
        {"context": 9000},
    ],
)
def test_what_attention_does_not_take(parts):
    """Other pairs, something in between, tables that change, other numbers of keys, more than registers have."""
    assert "ATTENTION" not in taken(step(**parts))


def given_to(program: Program) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and state."""
    rng = np.random.default_rng(0)

    def made(segment: Segment) -> dict[str, Array]:
        return {
            t.name: (rng.normal(size=t.descriptor.bounds) / (8 if t.name in ("made", "o") else 1)).astype(
                t.descriptor.dtype.numpy
            )
            for t in program.in_segment(segment)
        }

    return made(Segment.INPUT), made(Segment.STATE)


def check(session: Any, program: Program, dims: Mapping[str, int] | None, spoilt: int | None = None) -> Any:
    """Outputs and state of a run, which are within their bounds."""
    inputs, state = given_to(program)
    if spoilt is not None:
        state["cache"][:, spoilt:] = np.nan  # what the step replaces, and what lies behind
    session.set_state(state)
    result = session.run(inputs, dims)
    assert [c for c in compare(program, inputs, result, dims, state) if not c.ok] == []
    return result


CASES = [
    (64, 4, 2, "bf16", 200, 150), (64, 8, 2, "f16", 200, 70), (128, 2, 2, "bf16", 110, 33), (128, 2, 1, "f16", 200, 0),
    (64, 8, 1, "bf16", 200, 16), (64, 6, 2, "bf16", 200, 5), (128, 4, 1, "bf16", 119, 119),
]  # fmt: skip


@on_cpu
@pytest.mark.parametrize(("depth", "heads", "key_heads", "dtype", "context", "past"), CASES)
def test_results_are_those_of_the_ordinary_way(monkeypatch, depth, heads, key_heads, dtype, context, past):
    """In whatever order warps come, and in each of the two turns; some blocks have no part in the last product."""
    monkeypatch.setattr(exchange, "SPARED_OF", 2)
    program = step(depth, heads=heads, key_heads=key_heads, dtype=dtype, context=context)
    session = CpuSession(program, hopper=True)
    assert sum(" takes " in chosen.summary for chosen in session.plan.schedules) == 2
    assert [chosen.detail[SPARED_AT] for chosen in session.plan.schedules if chosen.path == PATH_STREAM] == [
        0,
        key_heads,
    ]
    results = [check(session, program, {"past": past}, past) for session.seed in range(3)]
    monkeypatch.setattr(exchange, "MOST_BYTES", 0)
    assert taken(program) == {}
    results.append(check(CpuSession(program, hopper=True), program, {"past": past}, past))
    assert len({r.outputs["z"].tobytes() for r in results}) == 1
    assert len({r.state["cache"].tobytes() for r in results}) == 1


def test_a_product_leaves_blocks_to_what_takes_its_query():
    """As many as may be needed for each warp to have its keys in one step, if it can do without most of them."""
    made = plan.build(step(heads=32, key_heads=8, context=600), BASES, Target(132, hopper=True))
    _, product, rope, attention, last, _ = made.headers
    assert [int(each["first_block"]) for each in (product, rope, attention, last)] == [42, 0, 2, 10]
    assert (product["detail"][SPARED_AT], attention["detail"][0] & 0xFFFF) == (42, 40)
    assert "leaves 42 blocks" in made.schedules[1].summary
    for context, left in ((1100, 68), (1400, 68), (1500, 0)):  # of 74, 90 and 98 that may be needed
        made = plan.build(step(heads=32, key_heads=8, context=context), BASES, Target(132, hopper=True))
        partials = 8 * math.ceil((context + 3) / 128) if left else 132
        assert (made.headers[1]["detail"][SPARED_AT], made.headers[3]["detail"][0] & 0xFFFF) == (left, partials)


LEFT = [
    (64, 2, 1, "bf16", 120, 99, 2), (64, 4, 1, "f16", 120, 99, 2), (64, 1, 1, "bf16", 250, 99, 3),
    (64, 1, 1, "f16", 350, 99, 3), (128, 1, 1, "bf16", 100, 2, 2), (64, 4, 1, "bf16", 350, 2, 2),
    (64, 2, 2, "f16", 120, 2, 2),
]  # fmt: skip


@on_cpu
@pytest.mark.parametrize(("depth", "heads", "key_heads", "dtype", "context", "longer", "left"), LEFT)
def test_results_where_a_product_leaves_blocks(
    monkeypatch, depth, heads, key_heads, dtype, context, longer, left
):  # fmt: skip
    """With and without splits of the keys; from the fourth case on, fewer of the four blocks than may be needed."""
    monkeypatch.setattr(exchange, "LONGER", longer)
    monkeypatch.setattr(exchange, "ENOUGH_LEFT", 0.5)
    program = step(depth, heads=heads, key_heads=key_heads, dtype=dtype, context=context)
    session = CpuSession(program, hopper=True)
    assert [chosen.detail[SPARED_AT] for chosen in session.plan.schedules if chosen.path == PATH_STREAM] == [left, 0]
    for past in (0, context // 2, context):
        results = [check(session, program, {"past": past}, past) for session.seed in range(3)]
        assert len({r.outputs["z"].tobytes() for r in results}) == 1


@on_cpu
def test_the_checked_build_looks_at_every_access():
    """And at a past of none."""
    program = step()
    session = CpuSession(program, hopper=True, checked=True)
    for past in (200, 0):
        check(session, program, {"past": past}, past)


LEAVING = [(64, 32, 8, "bf16", context, past) for context in (600, 1100) for past in (0, 127, 383, 512, context)]
"""For a GPU's blocks: the first product leaves some to ATTENTION."""


@pytest.mark.gpu
@pytest.mark.parametrize(("depth", "heads", "key_heads", "dtype", "context", "past"), CASES + LEAVING)
def test_results_on_a_gpu(depth, heads, key_heads, dtype, context, past):
    """The same on hardware, twice with the same bits."""
    program = step(depth, heads=heads, key_heads=key_heads, dtype=dtype, context=context)
    session = DeviceMachine().load(program)
    first, second = (check(session, program, {"past": past}, past) for _ in range(2))
    assert first.outputs["z"].tobytes() == second.outputs["z"].tobytes()
