"""`shuffle`: a random legal order of the dependency graph changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import dla
from dla.emulator.api import Machine
from dla.emulator.golden.execution import Executed, shuffled
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.program import Program

MakeProgram = Callable[..., Program]


@pytest.mark.parametrize("seed", range(60))
def test_any_legal_order_gives_the_same_outputs(overlapping_program: MakeProgram, seed: int) -> None:
    """Programs full of overlapping views, registers, loops and calls: equal bit by bit in three random orders."""
    program = overlapping_program(seed, 60, control=seed % 2 == 1)
    expected = GoldenMachine().load(program).run({})["out"]
    for order in range(3):
        got = GoldenMachine(shuffle=order).load(program).run({})["out"]
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_sizes_that_may_be_zero_change_no_legal_order(overlapping_program: MakeProgram, seed: int) -> None:
    """Views of n rows, where n is 0 or more, given with the run or written by the program."""
    program = overlapping_program(seed, 40, control=seed % 2 == 1, sized=True)
    dims = {"n": seed % 3, "m": seed // 3 % 3, "half": seed % 2}
    expected = GoldenMachine().load(program).run({}, dims)["out"]
    for order in range(4):
        got = GoldenMachine(shuffle=order).load(program).run({}, dims)["out"]
        assert got.tobytes() == expected.tobytes()


def test_orders_really_differ() -> None:
    """Independent instructions do change places, and different seeds give different orders."""
    fills = "".join(f".output y{i} : i64[]\n" for i in range(8))
    code = "".join(f"FILL y{i}, {i}\n" for i in range(8))
    program = dla.assemble(f".program t\n{fills}main:\n{code}HALT\n")
    orders = set()
    for seed in range(4):
        trace: list[Executed] = []
        GoldenMachine(shuffle=seed, trace=trace.append).load(program).run({})
        orders.add(tuple(e.index for e in trace))
    assert len(orders) > 1


def test_registers_order_instructions_too() -> None:
    """An instruction that reads a register stays between the writes around it."""
    text = """
.program t
.output a : i64[]
.output b : i64[]
main:
    MOV s0, 1
    FILL a, s0
    MOV s0, 2
    FILL b, s0
    HALT
"""
    program = dla.assemble(text)
    for seed in range(20):
        result = GoldenMachine(shuffle=seed).load(program).run({})
        assert (result["a"], result["b"]) == (1, 2)


def test_the_last_probe_still_wins() -> None:
    """Probes of one block keep their order, since they share their reports."""
    text = """
.program t
.const one : f32[1] = [1]
.const two : f32[1] = [2]
.output y : i64[]
main:
    PROBE one
    PROBE two
    FILL y, 0
    HALT
"""
    program = dla.assemble(text)
    for seed in range(20):
        assert GoldenMachine(shuffle=seed).load(program).run({}).probes[0].mean == 2


def test_shuffled_orders_respect_dependencies() -> None:
    """Every index appears once, after those it needs."""
    needed: list[set[int]] = [set(), {0}, {0}, {1, 2}, set()]
    for seed in range(50):
        order = shuffled(10, needed, random.Random(seed))
        assert sorted(order) == [10, 11, 12, 13, 14]
        position = {i - 10: n for n, i in enumerate(order)}
        assert all(position[j] < position[i] for i, js in enumerate(needed) for j in js)


def test_a_wrong_graph_would_be_noticed(overlapping_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the dependencies taken away, outputs do change: the comparison above can fail."""
    import dla.emulator.golden.execution as execution

    monkeypatch.setattr(execution, "block_dependencies", lambda program, begin, end: [set() for _ in range(begin, end)])
    differing = 0
    for seed in range(10):
        program = overlapping_program(seed, 40)
        expected = GoldenMachine(watch=False).load(program).run({})["out"]
        got = GoldenMachine(watch=False, shuffle=1).load(program).run({})["out"]
        differing += got.tobytes() != expected.tobytes()
    assert differing > 5


def test_collectives_keep_their_order_on_every_rank() -> None:
    """Each rank shuffles as its own order has it; in collectives they still meet."""
    program = dla.assemble("""
.world 3
.input x : f32[4]
.output a : f32[4]
.output b : f32[4]
.output c : f32[3, 4]
.output d : f32[4]
main:
    CMP.eq p0, RANK, 1
    ALLREDUCE.sum a, x
    EW.add d, x, 1
    ALLREDUCE.max b, x
    ALLGATHER c, x
    EW.add d, d, 1
    HALT
""")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = Machine("golden").run(program, {"x": x})
    for seed in range(20):
        trace: list[Executed] = []
        got = Machine("golden", shuffle=seed, trace=trace.append).run(program, {"x": x})
        assert all(got[name].tobytes() == expected[name].tobytes() for name in expected.outputs)
        for rank in range(3):
            order = [one.index for one in trace if one.rank == rank and one.index in (1, 3, 4)]
            assert order == [1, 3, 4]
