"""The kernel itself where there is no GPU: every row on the emulated device, with and without the hot paths."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.layout import OUT_IN_BOXES, PATH_CONV, PATH_GEMM, PRODUCT_SCHEDULE
from dla.emulator.device.paths import tilings
from dla.emulator.device.paths.choices import Offer
from dla.emulator.device.paths.tilings import Choice, Tile
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.instructions.control import MAX_LOOP_DEPTH
from dla.isa.table import Role, Row
from dla.isa.verifier import verify
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_batch import Batch
from dla.tests.emulator.device.random_instructions import draft, takes, values
from dla.tests.emulator.device.references import compare
from dla.tests.emulator.device.test_differential import TENSOR_ROWS, describe, report, run, violations

pytestmark = cpu_machine.needs_compiler

BUILDS = pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])


def batch(row: Row, each: int) -> Batch:
    """`each` random instructions of every sub-operation and type of `row`; the same every time."""
    rng = np.random.default_rng(row.opcode)
    made = Batch(rng)
    for sub in [s.name for s in row.subs] or [""]:
        for dtype in row.operand_dtypes((row.inputs or row.outputs)[0]):
            for _ in range(each if takes(row.mnemonic, sub, dtype) else 0):
                drawn = draft(rng, row, sub, dtype)
                assert drawn is not None
                made.add(drawn)
    return made


@BUILDS
@pytest.mark.parametrize("row", TENSOR_ROWS, ids=lambda row: row.mnemonic)
def test_every_row_stays_within_its_bound(row, hopper):
    """Whatever order warps and copies come in: results lie within the row's bound, and are the same bits."""
    made = batch(row, 1)
    session = CpuSession(made.program(), hopper=hopper, seed=1)
    first = run(session, made)
    found = violations(made, first)
    assert not found, report(found)
    session.seed = 2
    second = run(session, made)
    for instruction in made.instructions:
        for spec, d in zip(instruction.row.operands, instruction.operands, strict=True):
            if d is not None and spec.role is Role.OUT:
                same = made.seen(d, first).tobytes() == made.seen(d, second).tobytes()
                assert same, f"two runs differ: {describe(instruction)}"


ALONE = """
.input x : f32[n <= 8]
.output sum : f32[n]
.output all : f32[ranks <= 4, n]
.output back : f32[ranks, n]
.output part : f32[n]
.output given : f32[n]
.output where : i64[2]
main:
    ALLREDUCE.mean sum, x
    ALLGATHER all, x
    ALLTOALL back, all
    REDUCESCATTER part, back
    BROADCAST given, part
    FILL where[0:1], RANK
    FILL where[1:2], WORLD
    HALT
"""


@BUILDS
def test_a_program_for_any_number_of_ranks_runs_on_the_only_one(hopper):
    """Each collective gives it what it brings; a dim that should count the ranks is checked."""
    session = CpuSession(assemble(ALONE), hopper=hopper)
    x = np.arange(5, dtype=np.float32)
    result = session.run({"x": x}, {"ranks": 1})
    for name in ("sum", "part", "given"):
        np.testing.assert_array_equal(result.outputs[name][:5], x)
    np.testing.assert_array_equal(result.outputs["where"], [0, 1])
    with pytest.raises(Trap) as caught:
        session.run({"x": x}, {"ranks": 2})
    assert (caught.value.category, caught.value.instruction) == ("extent", 1)


CHAIN = """
.output y : f32[{n}]
.state  z : f32[{n}]
.scratch a : f32[{n}]
main:
    FILL y, 1.0
    LOOP s1, 5
    EW.add a, y, y
    EW.add y, a, z
    ENDLOOP
    COPY z, y
    HALT
"""


@BUILDS
@pytest.mark.parametrize("n", [5, 3000, 20000])
def test_dependent_instructions_are_ordered_within_and_across_blocks(n, hopper):
    """A loop in which each instruction needs the one before, on one block and on all."""
    session = CpuSession(assemble(CHAIN.format(n=n)), hopper=hopper)
    for seed, expected in enumerate((32.0, 32.0 + 31 * 32.0)):
        session.seed = seed
        np.testing.assert_array_equal(session.run({}).outputs["y"], np.full(n, expected, np.float32))


ONE_WARP = """
.output y : f32[2048]
.output s : f32[8]
main:
    FILL y, 1.0
    FILL s, 0.0
    LOOP s1, 6
    EW.add s, s, y[0:8]
    EW.add s, s, y[2040:2048]
    EW.mul s, s, 0.5
    EW.add y, y, 1.0
    COPY y[0:8], s
    ENDLOOP
    HALT
"""


@BUILDS
@pytest.mark.parametrize("seed", range(6))
def test_warps_without_work_go_ahead_of_the_one_that_has_some(seed, hopper):
    """Small instructions are one warp's, in turns with some that are all warps' and need what it makes."""
    session = CpuSession(assemble(ONE_WARP), hopper=hopper)
    session.seed = seed
    y, s = np.ones(2048, np.float32), np.zeros(8, np.float32)
    for _ in range(6):
        s = (s + y[:8] + y[2040:]) * np.float32(0.5)
        y += 1
        y[:8] = s
    outputs = session.run({}).outputs
    np.testing.assert_array_equal(outputs["y"], y)
    np.testing.assert_array_equal(outputs["s"], s)


def test_a_counter_that_never_arrives_ends_the_run():
    """Every wait ends, and the next run is right."""
    session = CpuSession(assemble(CHAIN.format(n=20000)), hopper=True)
    session.expected_base = 1
    with pytest.raises(Trap) as raised:
        session.run({})
    assert raised.value.category == "timeout"
    session.expected_base = 0
    session.set_state({"z": np.zeros(20000, np.float32)})
    np.testing.assert_array_equal(session.run({}).outputs["y"], np.full(20000, 32.0, np.float32))


def test_launches_take_turns_whatever_becomes_of_them():
    """A launch leaves the other one's counters at zero, also where it ends in a trap and nobody clears anything."""
    session = CpuSession(assemble(CHAIN.format(n=6000)), hopper=True)
    for seed, base in enumerate((0, 1, 1, 0, 1, 0, 0)):
        session.seed, session.expected_base = seed, base
        session.set_state({"z": np.zeros(6000, np.float32)})
        if base:
            with pytest.raises(Trap):
                session.run({})
        else:
            np.testing.assert_array_equal(session.run({}).outputs["y"], np.full(6000, 32.0, np.float32))


@BUILDS
def test_a_misaligned_access_ends_the_run(capfd, hopper):
    """As on a GPU; other than there, one is told where, and the next run is right."""
    session = CpuSession(assemble(CHAIN.format(n=5)), hopper=hopper)
    session.misplace("image_places", 4)
    with pytest.raises(AssertionError):
        session.run({})
    assert re.search(r"\w+\.\w+:\d+: 0x\w+ is not aligned for .*uint2.*, which takes 8 bytes", capfd.readouterr().err)
    session.misplace("image_places", -4)
    np.testing.assert_array_equal(session.run({}).outputs["y"], np.full(5, 32.0, np.float32))


@pytest.mark.parametrize("n", [0, 1])
def test_where_nothing_lies_does_not_matter(n):
    """An address outside of its tensor is a trap only where there are elements, as on the golden machine."""
    program = assemble(
        ".input x : f32[n <= 4, 8]\n.state y : f32[4, 4, 8]\nmain:\n    MOV s0, 1125899906842624\n    LOOP s1, 1\n"
        "    ENDLOOP\n    COPY y[s0, :n], x\n    HALT\n"
    )
    x = np.ones((n, 8), np.float32)
    for session in (GoldenMachine().load(program), CpuSession(program, hopper=False)):
        if n == 0:
            assert not session.run({"x": x}).state["y"].any()
            continue
        with pytest.raises(Trap) as raised:
            session.run({"x": x})
        assert (raised.value.category, raised.value.instruction) == ("extent", 3)


def test_a_trap_in_the_middle_ends_the_run():
    """A scalar trap while the workers of some blocks are busy, and others have not begun."""
    text = CHAIN.format(n=20000).replace("    COPY z, y", "    ALU.div s2, s1, 0\n    COPY z, y")
    with pytest.raises(Trap) as raised:
        CpuSession(assemble(text), hopper=True).run({})
    assert raised.value.category == "arithmetic"


AHEAD = """
.input x : bf16[64, 1024]
.input w : bf16[1024, 1024]
.scratch a : bf16[64, 1024]
.scratch b : bf16[64, 1024]
.output y : bf16[64, 1024]
main:
    GEMM a, x, w
    GEMM b, a, w
    GEMM y, b, w
    HALT
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_hang_ends_although_weights_are_on_their_way(seed):
    """Stages that hold weights already, and still wait for what the weights are multiplied with."""
    session = CpuSession(assemble(AHEAD), hopper=True, seed=seed)
    rng = np.random.default_rng(seed)
    inputs = {name: values(rng, session.program.by_name[name].descriptor.bounds, DType.BF16) for name in "xw"}
    session.expected_base = 1
    with pytest.raises(Trap) as raised:
        session.run(inputs)
    assert raised.value.category == "timeout"


TRAP_BETWEEN_PAIRS = """
.input x : bf16[600, 640]
.input w : bf16[640, 256]
.input i : i32[64]
.output y : bf16[600, 256]
.output g : bf16[64, 256]
.output v : bf16[600, 256]
main:
    GEMM y, x, w
    GATHER g, y, i axis=0
    GEMM v, x, w
    HALT
"""


@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("seed", range(3))
def test_a_trap_in_one_block_of_a_pair_ends_the_other(monkeypatch, seed, columns):
    """Where a product waits for the other block's share of its stages, which will not come."""
    choice = Choice(Tile(128, columns), 1, "b")
    monkeypatch.setattr(tilings, "offers", lambda *_shape, **_which: (Offer(choice, 0.0),))
    session = CpuSession(assemble(TRAP_BETWEEN_PAIRS), hopper=True, seed=seed)
    rng = np.random.default_rng(seed)
    inputs = {name: values(rng, session.program.by_name[name].descriptor.bounds, DType.BF16) for name in "xw"}
    index = rng.integers(0, 600, 64).astype(np.int32)
    with pytest.raises(Trap) as raised:
        session.run(inputs | {"i": np.where(np.arange(64) == 10 * seed, 600, index).astype(np.int32)})
    assert (raised.value.category, raised.value.instruction) == ("index", 1)
    again = inputs | {"i": index}
    assert all(c.ok for c in compare(session.program, again, session.run(again)))


IN_BOXES = """
.input x : {dtype}[300, {depth}]
.input w : {dtype}[{weights}]
.input bias : {dtype}[520]
.input image : {dtype}[2, 12, 14, 40]
.input kernel : {dtype}[264, 3, 3, 40]
.scratch h : {dtype}[300, 520]
.scratch g : {dtype}[2, 12, 14, 264]
.output y : {dtype}[300, 520]
.output z : {dtype}[2, 12, 14, 264]
main:
    GEMM h, x, w{turned}{epilogue}
    EW.add y, h, h
    CONV g, image, kernel pads=[1, 1, 1, 1] act=relu
    EW.add z, g, g
    GEMM h, y[:, :{depth}], w{turned}{epilogue}
    EW.add y, y, h
    HALT
"""


@pytest.mark.parametrize(
    ("dtype", "depth", "choice", "turned", "epilogue", "checked"),
    [
        ("bf16", 328, Choice(tilings.TILES[0], 1, "b"), "", "", False),
        ("f16", 328, Choice(tilings.TILES[0], 1, "a"), ".T", " bias=bias act=gelu", False),
        ("bf16", 328, Choice(tilings.TILES[0], 1), ".T", " bias=bias act=relu", False),
        ("bf16", 40, Choice(tilings.TILES[0], 1, "b"), "", " bias=bias", False),
        ("bf16", 72, Choice(tilings.TILES[0], 1), ".T", "", False),
        ("f16", 40, Choice(tilings.TILES[0], 1, "a"), ".T", "", False),
        ("f16", 72, Choice(tilings.TILES[0], 1), "", " act=gelu", False),
        ("f16", 72, Choice(tilings.TILES[0], 1), ".T", " bias=bias", True),
        ("bf16", 328, Choice(tilings.TILES[0], 1, "b"), "", " act=gelu", True),
        ("bf16", 328, Choice(tilings.HIGHER_TILE, 1), "", " bias=bias act=gelu", False),
        ("f16", 328, Choice(tilings.HIGHER_TILE, 1), "", "", False),
        ("f16", 72, Choice(tilings.HIGHER_TILE, 1), ".T", " bias=bias act=relu", False),
        ("bf16", 40, Choice(tilings.HIGHER_TILE, 1), ".T", " act=gelu_tanh", False),
    ],
)
def test_results_that_leave_in_boxes(monkeypatch, dtype, depth, choice, turned, epilogue, checked):
    """The copy engine reads a tile's result while the next one is under way, and writes all before others read it."""
    plain = Choice(tilings.TILES[0], 1)

    def offered(*_shape, tiles, pairs=False, **_which):
        return (Offer(choice if choice.tile in tiles and (pairs or not choice.shared) else plain, 0.0),)

    monkeypatch.setattr(tilings, "offers", offered)
    weights = f"520, {depth}" if turned else f"{depth}, 520"
    program = assemble(IN_BOXES.format(dtype=dtype, depth=depth, weights=weights, turned=turned, epilogue=epilogue))
    rng = np.random.default_rng(5)
    inputs = {
        name: values(rng, program.by_name[name].descriptor.bounds, DType[dtype.upper()])
        for name in ("x", "w", "bias", "image", "kernel")
    }
    session = CpuSession(program, hopper=True, checked=checked)
    flags = [schedule.detail[3] for schedule in session.plan.schedules if schedule.path in (PATH_GEMM, PATH_CONV)]
    assert len(flags) == 3
    assert all(flag & OUT_IN_BOXES for flag in flags)
    products = [schedule.detail for schedule in session.plan.schedules if schedule.path == PATH_GEMM]
    assert [PRODUCT_SCHEDULE.values(detail)["tile_rows"] for detail in products] == [choice.tile.rows] * 2
    seen = []
    for session.seed in range(2):
        result = session.run(inputs)
        assert all(c.ok for c in compare(program, inputs, result))
        seen.append([result.outputs[name].tobytes() for name in "yz"])
    assert seen[0] == seen[1]


@cpu_machine.needs_compiler
@pytest.mark.parametrize("types", [("bf16", "f16"), ("f16", "bf16")])
@pytest.mark.parametrize("epilogue", ["", " bias=q", " bias=q act=gelu"])
def test_results_of_another_type_than_operands_in_large_tiles(monkeypatch, types, epilogue):
    """What workers make of sums is of the result's type."""
    monkeypatch.setattr(tilings, "offers", lambda *_, **__: (Offer(Choice(tilings.TILES[0], 1), 0.0),))
    given, made = types
    text = f"""
.input a : {given}[256, 72]
.input b : {given}[72, 520]
.input q : {made}[520]
.output y : {made}[256, 520]
main:
    GEMM y, a, b{epilogue}
    HALT
"""
    program, rng = assemble(text), np.random.default_rng(3)
    inputs = {t.name: values(rng, t.descriptor.bounds, t.descriptor.dtype) for t in program.in_segment(Segment.INPUT)}
    session = CpuSession(program, hopper=True)
    assert session.plan.schedules[0].path == PATH_GEMM
    assert all(c.ok for c in compare(program, inputs, session.run(inputs)))


@cpu_machine.needs_compiler
def test_as_many_loops_as_there_may_be():
    """Half of them in a function, called from within the others."""

    def around(body: str, first: int) -> str:
        begins = (f"    LOOP s{first + i}, 2\n" for i in range(MAX_LOOP_DEPTH // 2))
        return "".join(begins) + body + "    ENDLOOP\n" * (MAX_LOOP_DEPTH // 2)

    counted = f"    CMP.eq p0, s10, {2**MAX_LOOP_DEPTH}\n    ASSERT p0\n    FILL y, 1\n    HALT\n"
    main, called = around("    CALL f\n", 0), around("    ALU.add s10, s10, 1\n", MAX_LOOP_DEPTH // 2)
    program = assemble(f".output y : f32[1]\nmain:\n    MOV s10, 0\n{main}{counted}f:\n{called}    RET\n")
    verify(program)
    assert CpuSession(program, hopper=True).run({}).outputs["y"] == 1


def test_more_instructions_than_counters():
    """Independent instructions share counters round-robin; what depends on them comes after them all the same."""
    count = 1100
    lines = [f".output y : i32[{count}]", f".scratch a : i32[{count}]", "main:"]
    lines += [f"    FILL a[{i}:{i + 1}], {i}" for i in range(count)]
    lines += [f"    COPY y[{i}:{i + 1}], a[{i}:{i + 1}]" for i in reversed(range(count))]
    session = CpuSession(assemble("\n".join([*lines, "    HALT", ""])), hopper=True)
    np.testing.assert_array_equal(session.run({}).outputs["y"], np.arange(count))


@pytest.mark.parametrize("seed", range(10))
def test_sizes_that_may_be_zero_give_what_program_order_gives(overlapping_program, seed):
    """In whatever order blocks get on: those that have nothing to do keep nobody apart."""
    program = overlapping_program(seed, 40, control=seed % 2 == 1, sized=True, apart=True)
    golden, session = GoldenMachine().load(program), CpuSession(program, hopper=seed % 3 == 1)
    for n, m, half in ((0, 2, 1), (3, 0, 0), (0, 1, 0), (4, 2, 2)):
        dims = {"n": n, "m": m, "half": half}
        expected = golden.run({}, dims)["out"]
        for session.seed in range(3):
            assert session.run({}, dims).outputs["out"].tobytes() == expected.tobytes()
