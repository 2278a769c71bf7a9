"""Results that are taken as they come inside of a loop, whose trips use several places for each in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dla
from dla.assembler import assemble
from dla.compiler.models.decoder import DecoderConfig, generator
from dla.compiler.models.weights import Weights
from dla.emulator.device import exchange, plan
from dla.emulator.device.layout import COUNTERS, TRIP_SETS
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.isa.descriptor import Descriptor, Segment
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.isa.reach import Reach
from dla.isa.table import Role
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_exchange import BASES, drawn, takers, text

on_cpu = cpu_machine.needs_compiler

TRIPS = """
.dim count s7 12
.input x : bf16[1, 64]
.input w : bf16[64, 64]
.input c : bf16[64]
.scratch h : bf16[1, 64]
.scratch a : bf16[1, 64]
.scratch b : bf16[1, 64]
.output y : bf16[12, 64]
.output z : bf16[12, 64]
.output last : bf16[1, 64]
main:
    FILL y, 0
    FILL z, 0
    COPY h, x
{code}    COPY last, h
    HALT
"""
CHAIN = "    GEMM a, h, w act=tanh\n    GEMM b, a, w.T bias=c\n    GEMM h, b, w residual=h act=tanh\n"
SHORT = "    GEMM a, h, w.T act=tanh\n    GEMM h, a, w bias=c\n"


def trips(name: str, body: str, count: str = "s7 max=12") -> str:
    """A loop that leaves h in the rows of `name`."""
    return f"    LOOP s1, {count}\n{body}    COPY {name}[s1:s1+1], h\n    ENDLOOP\n"


PROGRAMS = {
    "alone": trips("y", CHAIN),
    "in between": CHAIN + trips("y", CHAIN) + CHAIN,
    "several": trips("y", CHAIN) + SHORT + trips("z", SHORT) + trips("y", SHORT, "3"),
    "few": trips("y", SHORT),
    "others": trips("y", "    LOOP s2, 2\n" + SHORT + "    ENDLOOP\n") + trips("z", SHORT),
}


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ("    LOOP s1, 2\n    GEMM a, x, w\n    GEMM y, a, w\n    ENDLOOP\n", {2: 1}),
        ("    LOOP s1, 2\n" + SHORT.replace(" h,", " b,") + "    ENDLOOP\n", {2: 1}),
        ("    LOOP s1, 2\n    LOOP s2, 2\n    GEMM a, x, w\n    GEMM y, a, w\n    ENDLOOP\n    ENDLOOP\n", {}),
        ("    LOOP s1, 2\n    GEMM a, x, w\n    GEMM y, a, w\n    BR out if=p0\nout:\n    ENDLOOP\n", {}),
        ("    GEMM a, x, w\n    LOOP s1, 2\n    GEMM y, a, w\n    ENDLOOP\n    GEMM y, a, w\n", {}),
        ("    LOOP s1, 2\n    GEMM a, x, w\n    ENDLOOP\n    GEMM y, a, w\n", {}),
        ("    LOOP s1, 2\n    CALL f\n    ENDLOOP\n    HALT\nf:\n    GEMM a, x, w\n    GEMM y, a, w\n    RET\n", {}),
    ],
)
def test_what_loops_take(body, taken):
    """Loops of straight-line code that run once, and only what is in the same trip."""
    source = text(body)
    assert takers(source.replace("    RET\n    HALT\n", "    RET\n")) == taken


def test_places_of_trips():
    """Each loop has its own, behind one another; and a counter for its ends."""
    made = plan.build(assemble(TRIPS.format(code=PROGRAMS["several"])), BASES, Target(hopper=True))
    ends = [i for i, each in enumerate(made.executed.instructions) if each.row.mnemonic == "ENDLOOP"]
    places = [tuple(made.schedules[i].detail) for i in ends]
    first, second = 2048 * TRIP_SETS, 1024 * TRIP_SETS
    assert places == [(2048, 0), (1024, first + 1024), (1024, first + 1024 + second)]
    assert made.exchange_bytes == first + 1024 + 2 * second
    signals = [int(n) for n in made.waits[:, 2] if n != COUNTERS]
    assert all(signals.count(int(made.waits[i, 2])) == 1 for i in ends)


SMALL = DecoderConfig(
    vocabulary=72, width=256, layers=2, heads=4, kv_heads=2, hidden=136, context=100, chunk=1, tied=True,
    dtype=DType.BF16,
)  # fmt: skip


def writer(count: int) -> Program:
    """A small Llama that writes so many tokens."""
    return dla.compile_model(generator(SMALL, Weights.random(dtype=DType.BF16), count=count)).program


def conflicting(program: Program, index: int, other: int) -> bool:
    """Whether two instructions have bytes in common that one of them may write."""
    reach = Reach(program)

    def ranges(at: int, *, written: bool) -> Sequence[tuple[Segment, int, int]]:
        instruction = program.instructions[at]
        found: list[tuple[Descriptor, bool]] = [
            (d, spec.role is Role.OUT)
            for spec, d in zip(instruction.row.operands, instruction.operands, strict=True)
            if d is not None
        ]
        return [(d.segment, *reach.of(d)) for d, out in found if out or not written]

    return any(
        s is t and low < end and begin < high
        for one, two in ((index, other), (other, index))
        for s, low, high in ranges(one, written=True)
        for t, begin, end in ranges(two, written=False)
    )


@pytest.mark.parametrize("name", [*PROGRAMS, "writer"])
def test_what_conflicts_is_in_order(monkeypatch, name):
    """By what each waits for, and that by; but for what a taker has nothing to do with in memory, or takes."""
    program = writer(5) if name == "writer" else assemble(TRIPS.format(code=PROGRAMS[name]))
    kept: list[exchange.Exchange] = []
    find = exchange.find
    monkeypatch.setattr(exchange, "find", lambda *given: kept.append(find(*given)) or kept[-1])
    made = plan.build(program, BASES, Target(hopper=True))
    (handed,), code = kept, made.executed.instructions
    waits = {k: handed.before(k, made.before) for k in range(len(code)) if code[k].row.operands}
    ends = {i.attributes["end"]: at for at, i in enumerate(code) if i.row.mnemonic == "LOOP"}
    assert handed.loops
    for end in handed.loops:
        body = [k for k in range(ends[end], end) if k in waits]
        for k in body:
            reached, left = {(k, 0)}, [(k, 0)]  # instructions that are done when k begins, and trips ago
            while left:
                at, ago = left.pop()
                more = {(j, ago + (j >= at)) for j in waits[at] if j in body} - reached
                left += [one for one in more if one[1] < 2]
                reached |= more
            for j in body:
                passed = j in handed.passed.get(k, ())
                if not conflicting(made.executed, k, j) or (passed and k not in handed.tables):
                    continue
                assert (j, 0) in reached - {(k, 0)} or ((j, 1) in reached and (j >= k or passed)), (k, j)


def test_what_was_done_in_the_trip_before():
    """The last of three does not wait for the others: the next one does, or nobody."""
    handed = exchange.Exchange(passed={2: (0, 1)})
    assert handed.is_behind(2, {0: (2,), 1: (0,), 2: (3,), 3: (1,)})
    assert not handed.is_behind(2, {0: (2,), 1: (0,), 2: (3,), 3: (1,)}, {3})
    assert not handed.is_behind(2, {0: (2,), 1: (0,), 2: (2, 3), 3: ()})
    assert not handed.is_behind(2, {0: (1, 2, 3), 1: (0,), 2: (2,), 3: (1,)})


@on_cpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_of_any_number_of_trips(name):
    """In whatever order warps come; launches behind one another."""
    program = assemble(TRIPS.format(code=PROGRAMS[name]))
    session, inputs = CpuSession(program, hopper=True), drawn(program, 0)
    for session.seed, count in enumerate((12, 0, 1, 2, 3, 5, 12)):
        dims = {"count": count}
        assert [c for c in compare(program, inputs, session.run(inputs, dims), dims) if not c.ok] == [], count


@on_cpu
def test_blocks_without_work():
    """Those that have no part in a loop clear its places, too, and are not ahead of it."""
    code = 2 * "    GEMM b, x, w\n" + "    LOOP s1, s7 max=12\n" + SHORT + "    ENDLOOP\n"
    program = assemble(TRIPS.format(code=code).replace("64", "8"))
    session, inputs = CpuSession(program, hopper=True), drawn(program, 0)
    inside = [int(n) for n in session.plan.waits[6:8, 3]]
    assert 0 not in inside, "the first block has nothing but its part of the places"
    for session.seed in range(3):
        dims = {"count": 12 - session.seed}
        assert all(c.ok for c in compare(program, inputs, session.run(inputs, dims), dims))


@on_cpu
def test_launches_take_turns_whatever_becomes_of_them():
    """Also where one ends in a trap inside of its loop, and nobody clears anything."""
    code = PROGRAMS["in between"].replace("    ENDLOOP", "    CMP.ne p0, s1, s8\n    ASSERT p0\n    ENDLOOP")
    program = assemble(".dim stop s8 100\n" + TRIPS.format(code=code))
    session, inputs = CpuSession(program, hopper=True), drawn(program, 0)
    assert session.plan.exchange_bytes == 2048 * (TRIP_SETS + 2)
    for session.seed, (stop, base) in enumerate(
        ((100, 0), (5, 0), (0, 0), (4, 0), (100, 1), (100, 0), (11, 0), (100, 0))
    ):
        session.expected_base, dims = base, {"count": 12 - session.seed, "stop": stop}
        if stop < dims["count"] or base:
            with pytest.raises(Trap) as raised:
                session.run(inputs, dims)
            assert raised.value.category == "timeout" if base else "assert"
        else:
            assert all(c.ok for c in compare(program, inputs, session.run(inputs, dims), dims))


def check_writer(monkeypatch: pytest.MonkeyPatch, load: Any, tokens: Sequence[int], past: int) -> None:
    """Tokens and state are those of the ordinary way, run after run."""
    program = writer(max(tokens))
    rng = np.random.default_rng(0)
    state = {
        t.name: rng.normal(size=t.descriptor.bounds).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.STATE)
    }
    sessions = [load(program)]
    takes = [" takes " in each.summary for each in sessions[0].plan.schedules]
    loop = next(i for i, each in enumerate(sessions[0].plan.executed.instructions) if each.row.mnemonic == "LOOP")
    assert sum(takes[loop:]) == 5 * SMALL.layers - 1
    monkeypatch.setattr(exchange, "MOST_BYTES", 0)
    sessions.append(load(program))
    assert sessions[1].plan.exchange_bytes == 0
    for turn, count in enumerate(tokens):
        results = []
        for session in sessions:
            session.seed = turn
            session.set_state(state)
            results.append(session.run({"ids": np.array([[turn]], np.int32)}, {"past": past, "count": count}))
        assert len({np.asarray(r.outputs["tokens"])[:, :count].tobytes() for r in results}) == 1
        assert len({b"".join(r.state[name].tobytes() for name in state) for r in results}) == 1


@on_cpu
def test_writing_tokens(monkeypatch):
    """A decode step, in which all of a layer but the very first product takes, and ATTENTION as well."""
    check_writer(monkeypatch, lambda program: CpuSession(program, hopper=True), (6, 2), 60)


@on_cpu
def test_writing_tokens_where_products_leave_blocks(monkeypatch):
    """One of four, in the loop and in front of it; none where the loop takes the ordinary way."""
    monkeypatch.setattr(exchange, "LONGER", 1.5)
    monkeypatch.setattr(exchange, "ENOUGH_LEFT", 0.3)
    program = writer(3)
    session = CpuSession(program, hopper=True)
    leave = [each for each in session.plan.schedules if "leaves 1 blocks" in each.summary]
    assert len(leave) == 2 * SMALL.layers
    rng = np.random.default_rng(0)
    state = {
        t.name: rng.normal(size=t.descriptor.bounds).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.STATE)
    }
    results = []
    for session.seed in range(2):
        session.set_state(state)
        results.append(session.run({"ids": np.array([[3]], np.int32)}, {"past": 60, "count": 3}))
    assert len({r.outputs["tokens"].tobytes() for r in results}) == 1
    assert len({b"".join(r.state[name].tobytes() for name in state) for r in results}) == 1
    monkeypatch.setattr(exchange.Exchange, "is_behind", lambda *_: False)
    ordinary = CpuSession(program, hopper=True)
    assert sum("leaves" in each.summary for each in ordinary.plan.schedules) == SMALL.layers
    ordinary.set_state(state)
    tokens = ordinary.run({"ids": np.array([[3]], np.int32)}, {"past": 60, "count": 3}).outputs["tokens"]
    np.testing.assert_array_equal(tokens, results[0].outputs["tokens"])


@pytest.mark.gpu
@pytest.mark.hopper
def test_writing_tokens_on_a_gpu(monkeypatch):
    """The same on hardware."""
    check_writer(monkeypatch, DeviceMachine().load, (64, 1, 2, 3, 33, 64), 90)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_trips_on_a_gpu(name):
    """Any number of them."""
    program = assemble(TRIPS.format(code=PROGRAMS[name]))
    session, inputs = DeviceMachine().load(program), drawn(program, 0)
    for count in (*range(12), *range(12)):
        dims = {"count": count}
        assert [c for c in compare(program, inputs, session.run(inputs, dims), dims) if not c.ok] == [], count
