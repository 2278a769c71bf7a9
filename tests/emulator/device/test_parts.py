"""Large instructions of a chain in parts: which are cut, what parts wait for, and that nothing else changes."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import parts, plan
from dla.emulator.device.layout import PATH_FLASH, PATH_GEMM, PATH_GENERIC
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.report_plan import planned
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_plan import BASES, Simulation

on_cpu = cpu_machine.needs_compiler

FEED_FORWARD = """
.input x : bf16[4096, 768]
.input w : bf16[768, 3072]
.input v : bf16[3072, 768]
.scratch h : bf16[4096, 3072]
.output y : bf16[4096, 768]
main:
    GEMM h, x, w
    GEMM y, h, v residual=x
    HALT
"""


def made_of(program: Program, blocks: int = 132) -> plan.Plan:
    """Its plan."""
    return plan.build(program, BASES, Target(blocks, hopper=True))


def origins(text: str) -> list[int]:
    """Of each instruction that is executed, whose part it is."""
    return list(made_of(assemble(text)).origins)


def test_a_first_part_waits_for_first_parts():
    """Both products have as many tiles of the same shape as without parts, and the parts have the next blocks."""
    made, steps = planned(assemble(FEED_FORWARD), 132, hopper=True)
    assert made.origins == (0, 0, 1, 1, 2)
    assert [step.waits_for for step in steps] == [(), (), (0,), (1,)]
    assert [step.part_of for step in steps] == [0, 0, 1, 1]
    assert [step.result for step in steps] == ["bf16[2048, 3072]"] * 2 + ["bf16[2048, 768]"] * 2
    assert [schedule.tiles for schedule in made.schedules[:4]] == [192, 192, 64, 64]
    shapes = ["128 x 256", "128 x 256", "128 x 192", "128 x 192"]
    assert [schedule.summary for schedule in made.schedules[:4]] == [f"wgmma, tiles of {shape}" for shape in shapes]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    GEMM y, h, v residual=x\n", ""),  # nobody waits
        ("GEMM y, h, v", "GEMM y, z, v"),
        ("GEMM y, h, v residual=x", "GEMM u, x.T, h"),  # all rows are read for each
        ("[4096, ", "[512, "),  # no more tiles than blocks, and the first one comes with the launch
        ("[4096, ", "[n <= 4096, "),
        ("GEMM h, x, w\n", "GEMM h, x, w\n    LOOP s1, 2\n    ENDLOOP\n"),
    ],
)
def test_what_is_left_whole(old, new):
    """All but large products of a chain in straight-line code, whose rows correspond and are known."""
    more = ".scratch z : bf16[4096, 3072]\n.scratch u : bf16[768, 3072]\nmain:\n"
    program = assemble(FEED_FORWARD.replace("main:\n", more).replace(old, new))
    assert made_of(program).origins == tuple(range(len(program.instructions)))


@pytest.mark.parametrize(("rows", "width", "cut"), [(192, 3072, True), (192, 4096, False)])
def test_parts_that_most_blocks_have_tiles_of_both_of_are_worth_little(rows, width, cut):
    """Of 144 tiles of 64 x 64, 12 of 132 blocks have two; of 192, 60: then 96 tiles of 64 x 128 are quicker."""
    steps = "".join(f"    GEMM {out}, {given}, w\n" for given, out in ("xa", "ab", "by"))
    sizes = f"bf16[{rows}, {width}]"
    declared = f".input x : {sizes}\n.input w : bf16[{width}, {width}]\n.scratch a : {sizes}\n.scratch b : {sizes}\n"
    made = made_of(assemble(f"{declared}.output y : {sizes}\nmain:\n{steps}    HALT\n"))
    assert made.schedules[0].summary == f"wgmma, tiles of {'64 x 64' if cut else '64 x 128'}"
    assert made.origins == ((0, 0, 1, 1, 2, 2, 3) if cut else (0, 1, 2, 3))


def chained(rows: int, width: int, count: int) -> Program:
    """So many products, each of the one before."""
    sizes, names = f"bf16[{rows}, {width}]", ["x", *(f"t{i}" for i in range(1, count)), "y"]
    steps = "".join(f"    GEMM {out}, {given}, w\n" for given, out in pairwise(names))
    scratch = "".join(f".scratch {name} : {sizes}\n" for name in names[1:-1])
    inputs = f".input x : {sizes}\n.input w : bf16[{width}, {width}]\n"
    return assemble(f"{inputs}{scratch}.output y : {sizes}\nmain:\n{steps}    HALT\n")


def test_products_of_a_tile_for_each_block_wait_for_a_quarter_of_them():
    """All but the first, which comes decoded with the launch. A part waits for its rows of the product before."""
    made, steps = planned(chained(1024, 1024, 4), 132, hopper=True)
    assert made.origins == (0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4)
    assert [step.waits_for for step in steps] == [(), *[(0,)] * 4, *[(k,) for k in range(1, 9)]]
    assert {step.result for step in steps[1:]} == {"bf16[256, 1024]"}
    assert [schedule.tiles for schedule in made.schedules[1:-1]] == [32] * 12


@pytest.mark.parametrize(
    ("rows", "width", "count"), [(1024, 1024, 4), (448, 1536, 3), (256, 1536, 1), (512, 512, 1), (512, 4096, 1)]
)
def test_a_part_has_some_rows_and_a_product_in_parts_takes_some_time(rows, width, count):
    """Each reads all of b, and controllers need their time for it; what takes long gains nothing."""
    made = made_of(chained(rows, width, 3))
    assert [made.origins.count(index) for index in range(4)] == [1, count, count, 1]


def test_a_product_beside_a_larger_one_has_as_many_parts():
    """Two, also the first of the program; what comes behind that, and gains nothing, is left whole."""
    tensors = ".input o : bf16[768, 768]\n.scratch a : bf16[4096, 768]\n.scratch b : bf16[4096, 768]\nmain:\n"
    steps = "GEMM a, x, o\n    GEMM h, a, w\n    GEMM b, h, v\n    GEMM a, b, o\n    GEMM y, a, o"
    text = FEED_FORWARD.replace("main:\n", tensors)
    made = made_of(assemble(text.replace("GEMM h, x, w\n    GEMM y, h, v residual=x", steps)))
    assert [made.origins.count(index) for index in range(6)] == [2, 2, 2, 1, 1, 1]


def test_where_all_parts_would_be_too_many_the_larger_products_have_theirs(monkeypatch):
    """As many instructions as counters, at most; a chain of smaller ones, apart from the larger two, is left whole."""
    lines = [line for line in FEED_FORWARD.splitlines() if line.startswith(".")]
    smaller = [f".{kind} : bf16[1024, 1024]" for kind in ("input s", "input u", "scratch p", "scratch q", "output t")]
    steps = ("h, x, w", "y, h, v residual=x", "p, s, u", "q, p, u", "t, q, u")
    body = ["main:", *(f"    GEMM {step}" for step in steps), "    HALT"]
    program = assemble("\n".join((*lines, *smaller, *body)))
    assert [made_of(program).origins.count(index) for index in range(5)] == [2, 2, 4, 4, 4]
    monkeypatch.setattr(parts, "COUNTERS", 12)
    assert [made_of(program).origins.count(index) for index in range(5)] == [2, 2, 1, 1, 1]
    assert made_of(chained(1024, 1024, 5)).origins == tuple(range(6))


def test_who_has_nothing_of_it_is_left_whole():
    """Of three products, one that nobody waits for."""
    text = FEED_FORWARD.replace("main:\n", ".scratch z : bf16[4096, 3072]\nmain:\n    GEMM z, x, w\n")
    assert made_of(assemble(text)).origins == (0, 1, 1, 2, 2, 3)


def test_a_result_that_the_other_part_reads_is_left_whole():
    """The residual of the second part's first row is the last row of what the first part writes."""
    text = FEED_FORWARD.replace("GEMM y, h, v residual=x", "GEMM s[1:], h, v residual=s[:4096]")
    text = text.replace("main:\n", ".scratch s : bf16[4097, 768]\nmain:\n")
    assert made_of(assemble(text)).origins == (0, 1, 2)


def test_what_has_few_tiles_is_cut_beside_what_has_many():
    """A normalisation behind a product of three tiles for each block; not what comes behind that."""
    norms = "    NORM.layer {}, {}, v[:, 0] eps=1e-5\n"
    body = norms.format("h", "h") + "    GEMM y, h, v residual=x\n" + norms.format("z", "h") + norms.format("z", "z")
    text = FEED_FORWARD.replace("    GEMM y, h, v residual=x\n", body)
    made = made_of(assemble(text.replace("main:\n", ".scratch z : bf16[4096, 3072]\nmain:\n")))
    assert [made.origins.count(index) for index in range(5)] == [2, 2, 1, 1, 1]


def test_without_a_gpu_like_that_nothing_is_cut():
    """Other machines have no such paths."""
    assert plan.build(assemble(FEED_FORWARD), BASES, Target(132)).origins == (0, 1, 2)


# ---- small ones, on four blocks ----

BLOCK = """
.input x : bf16[768, 64]
.input w : bf16[64, 192]
.input o : bf16[64, 64]
.input u : bf16[64, 256]
.input d : bf16[256, 64]
.input b : bf16[256]
.input g : bf16[64]
.scratch n : bf16[768, 64]
.scratch q : bf16[768, 192]
.scratch a : bf16[768, 64]
.scratch r : bf16[768, 64]
.scratch h : bf16[768, 256]
.output y : bf16[768, 64]
main:
    GEMM q, x, w
    ATTENTION a.reshape(12, 64, 1, 64).permute(0, 2, 1, 3), q.reshape(12, 64, 3, 1, 64)[:, :, 0].permute(0, 2, 1, 3),
              q.reshape(12, 64, 3, 1, 64)[:, :, 1].permute(0, 2, 1, 3),
              q.reshape(12, 64, 3, 1, 64)[:, :, 2].permute(0, 2, 1, 3) causal
    GEMM r, a, o residual=x
    NORM.layer n, r, g eps=1e-5
    GEMM h, n, u bias=b act=gelu_tanh
    GEMM r, h, d residual=r
    EW.mul y, r, g
    HALT
"""
"""Twelve sequences in a block of a transformer."""


SHORT = """
.input x : bf16[1024, 8]
.input w : bf16[8, 8]
.scratch h : bf16[1024, 8]
.scratch g : bf16[1024, 8]
.output y : bf16[1024, 8]
main:
    GEMM h, x, w
    GEMM g, h, w residual=h
    GEMM h, g, w residual=g
    HALT
"""


def small(monkeypatch: pytest.MonkeyPatch, worth: int) -> Program:
    """Instructions of so many clocks, or elements, and more are cut."""
    monkeypatch.setattr(parts, "WORTH", worth)
    monkeypatch.setattr(parts, "WORTH_ELEMENTS", worth)
    monkeypatch.setattr(parts, "WORTH_ANOTHER_WAY", 0.0)
    return assemble(BLOCK)


def inputs_of(program: Program) -> dict[str, Any]:
    """Random ones."""
    rng = np.random.default_rng(3)
    return {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in program.in_segment(Segment.INPUT)}


def test_the_program_of_parts_is_the_same_program(monkeypatch):
    """For the golden machine."""
    program = small(monkeypatch, 0)
    made = made_of(program, blocks=4)
    assert {made.schedules[k].path for k, part in enumerate(made.origins) if made.origins.count(part) > 1} == {
        PATH_GENERIC, PATH_GEMM, PATH_FLASH,
    }  # fmt: skip
    inputs = inputs_of(program)
    whole, cut = (GoldenMachine().load(p).run(inputs, {}) for p in (program, made.executed))
    assert whole.outputs["y"].tobytes() == cut.outputs["y"].tobytes()


def small_chain(monkeypatch: pytest.MonkeyPatch, worth: int) -> Program:
    """Three products behind a copy; those of so many clocks are cut into four, however small they are."""
    monkeypatch.setattr(parts, "WORTH", worth)
    monkeypatch.setattr(parts, "MOST_BLOCKS", 0.0)
    monkeypatch.setattr(parts, "SINGLE_ROWS", 64)
    text = ".input x : bf16[256, 64]\n.input w : bf16[64, 64]\n.scratch h : bf16[256, 64]\n.scratch g : bf16[256, 64]\n"
    steps = "    COPY h, x\n    GEMM g, h, w\n    GEMM h, g, w residual=g\n    GEMM y, h, w residual=x\n    HALT\n"
    return assemble(f"{text}.output y : bf16[256, 64]\nmain:\n{steps}")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fours", [False, True])
def test_every_interleaving_of_parts_keeps_their_order(seed, fours, monkeypatch):
    """Blocks that run at any speed; `Simulation` looks at every byte."""
    monkeypatch.setattr(parts, "WORTH", 0)
    program = small_chain(monkeypatch, 0) if fours else assemble(SHORT)
    made = made_of(program, blocks=132 if fours else 1)
    counts = [made.origins.count(index) for index in range(4)]
    assert counts == [1, 4, 4, 4] if fours else min(counts[:3]) > 1
    Simulation(made.executed, made, blocks=4, rng=random.Random(seed)).run()


@on_cpu
@pytest.mark.parametrize(("text", "counts"), [(small, [2] * 7), (small_chain, [1, 4, 4, 4])], ids=["block", "chain"])
def test_parts_give_the_same_bits(text, counts, monkeypatch):
    """On the emulated device, in several orders of warps and copies, and with nothing cut."""
    seen = []
    for worth in (0, 1 << 60):
        program = text(monkeypatch, worth)
        session = CpuSession(program, hopper=True)
        found = [session.plan.origins.count(index) for index in range(len(counts))]
        assert found == (counts if worth == 0 else [1] * len(counts))
        for session.seed in range(3 if worth == 0 else 1):
            result = session.run(inputs_of(program))
            assert all(c.ok for c in compare(program, inputs_of(program), result))
            seen.append(result.outputs["y"].tobytes())
    assert set(seen) == {seen[0]}


@on_cpu
def test_a_trap_names_the_instruction_of_the_program(monkeypatch):
    """Not the one that is executed."""
    monkeypatch.setattr(parts, "WORTH", 0)
    session = CpuSession(assemble(SHORT.replace("    HALT", "    ASSERT p0 code=7\n    HALT")), hopper=True)
    assert len(session.plan.origins) > 5
    with pytest.raises(Trap) as caught:
        session.run(inputs_of(session.program))
    assert (caught.value.category, caught.value.instruction) == ("assert", 3)


@pytest.mark.gpu
@pytest.mark.parametrize("chain", [False, True], ids=["a feed-forward layer", "a chain"])
def test_parts_give_the_same_bits_on_a_gpu(chain, monkeypatch):
    """Two of large products; four of those that give each block one tile."""
    program, seen = chained(1024, 1024, 4) if chain else assemble(FEED_FORWARD), []
    for worth in (parts.WORTH, 1 << 60):
        monkeypatch.setattr(parts, "WORTH", worth)
        session = DeviceMachine().load(program)
        seen += [session.run(inputs_of(program)).outputs["y"].tobytes() for _ in range(2)]
    assert set(seen) == {seen[0]}


@cpu_machine.needs_compiler
def test_an_instruction_without_work_keeps_nobody_apart():
    """What comes behind it waits for what came before it, in whatever order blocks get on."""
    program = assemble("""
.dim n s7 8
.input x : bf16[64, 64]
.output a : bf16[64, 64]
.scratch b : bf16[64, 64]
main:
    GEMM a, x, x act=tanh
    COPY b[0:s7], a[0:s7]
    FILL a, 1
    HALT
""")
    session = CpuSession(program, hopper=True)
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(ml_dtypes.bfloat16)
    for session.seed in range(12):
        assert (session.run({"x": x}, {"n": 0}).outputs["a"] == 1).all()


@cpu_machine.needs_compiler
def test_a_write_without_work_hides_no_writer():
    """What reads behind it waits for who wrote before it."""
    program = assemble("""
.dim n s7 8
.input x : bf16[64, 64]
.output a : bf16[64, 64]
.output b : bf16[2, 64, 64]
main:
    FILL a, 0
    GEMM a, x, x act=tanh
    FILL a[0:s7], 1
    COPY b, a.broadcast(2, 64, 64)
    HALT
""")
    session = CpuSession(program, hopper=True)
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(ml_dtypes.bfloat16)
    for session.seed in range(6):
        outputs = session.run({"x": x}, {"n": 0}).outputs
        assert all(part.tobytes() == outputs["a"].tobytes() for part in outputs["b"])
