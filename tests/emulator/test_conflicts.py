"""Dependencies from descriptor overlap: everything that truly conflicts is ordered, and little else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise, product

import pytest

import dla
from dla.emulator import conflicts as conflicts_module
from dla.emulator import timeline
from dla.emulator.conflicts import conflicts
from dla.emulator.golden.execution import Executed
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Descriptor, Segment, contiguous
from dla.isa.dtypes import DType
from dla.isa.instructions import BY_MNEMONIC
from dla.isa.program import Instruction, Program
from dla.isa.table import Role

MakeProgram = Callable[..., Program]


def touched(executed: Executed, program: Program) -> tuple[set[int], set[int]]:
    """Bytes of scratch (read, written) by one execution, from the resolved operands that the trace shows."""
    instruction = program.instructions[executed.index]
    bytes_of: dict[Role, set[int]] = {Role.IN: set(), Role.OUT: set()}
    texts = iter(executed.operands)
    for spec, d in zip(instruction.row.operands, instruction.operands, strict=True):
        if d is None:
            continue
        text = next(texts)
        segment, _, offset = text.rpartition(" ")[2].partition("+")
        if segment == "scratch":
            bytes_of[spec.role] |= addresses(d, shape_of(text), int(offset))
    return bytes_of[Role.IN], bytes_of[Role.OUT]


def shape_of(text: str) -> tuple[int, ...]:
    """The dims in "out: f32[64, 10] output+0"."""
    return tuple(int(n) for n in text.partition("[")[2].partition("]")[0].split(",") if n)


def addresses(d: Descriptor, shape: tuple[int, ...], offset: int) -> set[int]:
    """Every byte of a view."""
    starts = {offset}
    for n, stride in zip(shape, d.strides, strict=True):
        starts = {a + i * stride * d.dtype.itemsize for a in starts for i in range(n)}
    return {a + b for a in starts for b in range(d.dtype.itemsize)}


def missing_orders(program: Program, waits: list, dims: Mapping[str, int] | None = None) -> list[tuple[int, int]]:
    """Pairs of executions that truly conflict but that `waits` does not order, directly or through others.

    On a GPU, nobody takes part in an instruction without elements: so it waits for nobody, and is done at once.
    """
    trace: list[Executed] = []
    GoldenMachine(trace=trace.append).load(program).run({}, dims)
    accesses = [touched(e, program) for e in trace]
    executions: dict[int, list[int]] = {}
    before: list[int] = []  # bit k: execution k is complete when this one starts
    missing = []
    for now, executed in enumerate(trace):
        mask = 0
        for j in waits[executed.index]:
            for earlier in executions.get(j, ()):
                mask |= before[earlier] | 1 << earlier
        before.append(0 if any(0 in shape_of(text) for text in executed.operands) else mask)
        executions.setdefault(executed.index, []).append(now)
        reads, writes = accesses[now]
        for earlier in range(now):
            r, w = accesses[earlier]
            if (w & (reads | writes) or r & writes) and not mask >> earlier & 1:
                missing.append((trace[earlier].index, executed.index))
    return missing


@pytest.mark.parametrize("seed", range(40))
def test_straight_line_conflicts_are_all_ordered(overlapping_program: MakeProgram, seed: int) -> None:
    """Whatever touches the same byte, one of them writing, is ordered; checked byte by byte."""
    program = overlapping_program(seed, 60)
    assert missing_orders(program, conflicts(program)) == []


@pytest.mark.parametrize("seed", range(80))
def test_conflicts_through_loops_branches_and_calls_are_all_ordered(
    overlapping_program: MakeProgram, seed: int
) -> None:
    """Later trips, skipped code and functions called from several places: no true conflict goes unordered."""
    program = overlapping_program(seed, 40, control=True)
    assert missing_orders(program, conflicts(program)) == []


@pytest.mark.parametrize("seed", range(20))
def test_programs_of_too_many_paths_are_ordered_entirely(
    overlapping_program: MakeProgram, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the exact answer would take too long, a simpler one orders everything."""
    monkeypatch.setattr(conflicts_module, "EFFORT", 0)
    monkeypatch.setattr(conflicts_module, "_EFFORT_FREE", 0)
    program = overlapping_program(seed, 40, control=True)
    assert missing_orders(program, conflicts(program)) == []


@pytest.mark.parametrize("crowd", [3, timeline.CROWD])
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_conflicts_of_what_may_have_nothing_to_do_are_all_ordered(
    overlapping_program: MakeProgram, seed: int, control: bool, crowd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the sizes are in the run: nobody relies on an instruction that waits for nobody."""
    monkeypatch.setattr(timeline, "CROWD", crowd)
    program = overlapping_program(seed, 40, control=control, sized=True)
    waits = conflicts(program)
    for n, m, half in product((0, 3), (0, 2), (0, 1)):
        assert missing_orders(program, waits, {"n": n, "m": m, "half": half}) == []


def test_the_check_itself_finds_missing_orders(overlapping_program: MakeProgram) -> None:
    """Without any waits, the byte-by-byte check does complain."""
    program = overlapping_program(1, 30)
    assert missing_orders(program, [()] * len(program.instructions))


def ew(out: Descriptor, a: Descriptor, b: Descriptor) -> Instruction:
    """The instruction out = a + b."""
    return Instruction(BY_MNEMONIC["EW"], "add", (out, a, b))


def block(index: int, segment: Segment = Segment.SCRATCH) -> Descriptor:
    """The tensor number `index` of 64 floats."""
    return contiguous(segment, DType.F32, (64,), 256 * index)


def straight(*instructions: Instruction) -> list[tuple[int, ...]]:
    """Conflicts of these instructions followed by HALT, without the last."""
    program = Program("p", (*instructions, Instruction(BY_MNEMONIC["HALT"])), segment_bytes={Segment.SCRATCH: 1 << 20})
    return [tuple(c) for c in conflicts(program)][:-1]


def test_a_chain_waits_for_its_neighbour_only() -> None:
    """Dependencies that others imply are left out."""
    ping, pong = block(0), block(1)
    chain = [ew(ping, pong, pong) if i % 2 else ew(pong, ping, ping) for i in range(6)]
    assert straight(*chain) == [(), (0,), (1,), (2,), (3,), (4,)]


def test_independent_branches_do_not_wait() -> None:
    """Two uses of one tensor run side by side; the join waits for both."""
    assert straight(
        ew(block(1), block(0), block(0)),
        ew(block(2), block(0), block(0)),
        ew(block(3), block(1), block(2)),
    ) == [(), (), (0, 1)]


def test_read_only_segments_never_conflict() -> None:
    """Weights are read by everybody."""
    w = block(0, Segment.CONST)
    assert straight(ew(block(1), w, w), ew(block(2), w, w)) == [(), ()]


def test_writers_wait_for_readers() -> None:
    """Reusing memory waits for those who still read it (WAR), and for its writer through them (WAW)."""
    x, y, z = block(0), block(1), block(2)
    assert straight(ew(x, z, z), ew(y, x, x), ew(x, z, z)) == [(), (0,), (1,)]


def test_column_blocks_of_one_matrix_are_independent() -> None:
    """Views that interleave in memory but share no byte do not wait for each other; a reader of all waits for all."""
    columns = [Descriptor(Segment.SCRATCH, DType.F32, (8, 16), (64, 1), 64 * i) for i in range(4)]
    whole = contiguous(Segment.SCRATCH, DType.F32, (8, 64))
    w = Descriptor(Segment.CONST, DType.F32, (8, 16), (16, 1))
    copies = [ew(c, w, w) for c in columns]
    assert straight(*copies, ew(block(64), whole, whole)) == [(), (), (), (), (0, 1, 2, 3)]
    overlapping = Descriptor(Segment.SCRATCH, DType.F32, (8, 16), (64, 1), 32)
    assert straight(*copies, ew(overlapping, w, w))[-1] == (0, 1)


def test_a_gap_writer_does_not_hide_the_writer_before() -> None:
    """After even columns are overwritten, a reader of odd columns still waits for the first writer."""
    whole = contiguous(Segment.SCRATCH, DType.F32, (8, 8))
    even = Descriptor(Segment.SCRATCH, DType.F32, (8, 4), (8, 2), 0)
    odd = Descriptor(Segment.SCRATCH, DType.F32, (8, 4), (8, 2), 4)
    w = block(0, Segment.CONST)
    found = straight(ew(whole, w, w), ew(even, w, w), ew(block(9), odd, odd), ew(block(10), even, even))
    assert found == [(), (0,), (0,), (1,)]


def test_an_instruction_in_a_loop_may_wait_for_itself_and_later_ones() -> None:
    """An accumulation waits for its own last execution, and the first of a body for the last."""
    text = """
.program t
.const w : f32[4] = [1, 1, 1, 1]
.scratch a : f32[4]
.output y : f32[4]
main:
    FILL y, 0
    LOOP s0, 3
      EW.add a, y, w
      EW.add y, a, w
    ENDLOOP
    HALT
"""
    found = [tuple(c) for c in conflicts(dla.assemble(text))]
    assert found[0] == ()
    assert found[2] == (0, 3)
    assert found[3] == (2,)


def test_a_skipped_writer_does_not_hide_the_writer_before() -> None:
    """Where a branch may skip a write, readers behind it wait for both writers."""
    text = """
.program t
.input c : bool[]
.scratch a : f32[4]
.output y : f32[4]
main:
    FILL a, 0
    LOADS p0, c
    BR over if=p0
    FILL a, 1
over:
    COPY y, a
    HALT
"""
    assert tuple(conflicts(dla.assemble(text))[4]) == (0, 3)


def test_crowds_are_bounded() -> None:
    """Thousands of readers of one tensor do not make lists of thousands: some wait for the rest on their behalf."""
    shared = block(0)
    readers = [ew(block(1 + i), shared, shared) for i in range(2000)]
    found = straight(
        ew(shared, block(3000, Segment.CONST), block(3000, Segment.CONST)), *readers, ew(shared, *[block(1)] * 2)
    )
    assert max(len(c) for c in found) <= 40


def test_neighbours_of_a_window_are_still_ordered() -> None:
    """Transitive reduction stops at windows; order does not."""
    length = conflicts_module.WINDOW + 10
    ping, pong = block(0), block(1)
    chain = [ew(ping, pong, pong) if i % 2 else ew(pong, ping, ping) for i in range(length)]
    found = straight(*chain)
    assert all(a in c for (a, _), c in zip(pairwise(range(length)), found[1:], strict=True))


@pytest.mark.parametrize(
    ("rows", "paths", "waited"),
    [("s7", "few", (0, 1)), ("s7", "too many", (0, 1, 2)), ("5", "few", (1,)), ("5", "too many", (1,))],
)
def test_nobody_waits_for_the_sake_of_what_may_have_nothing_to_do(rows, paths, waited, monkeypatch):
    """Where n is 0, the copy waits for nothing, and is done before the product is."""
    if paths == "too many":
        monkeypatch.setattr(conflicts_module, "EFFORT", 0)
        monkeypatch.setattr(conflicts_module, "_EFFORT_FREE", 0)
    program = dla.assemble(f"""
.dim n s7 8
.input x : bf16[64, 64]
.output a : bf16[64, 64]
.scratch b : bf16[64, 64]
main:
    GEMM a, x, x
    COPY b[0:{rows}], a[0:{rows}]
    FILL a, 1
    HALT
""")
    assert conflicts(program)[2] == waited


OVERWRITTEN = """
.dim n s7 8
.dim m s6 8
.input x : f32[8, 8]
.output a : f32[8, 8]
.output b : f32[8, 8]
main:
    ALU.mul s5, s7, 3
    GEMM {product}, x{rows}, x
    FILL {filled}, 1
    COPY b, a
    HALT
"""


@pytest.mark.parametrize(
    ("product", "filled", "waited"),
    [
        ("a", "a[0:n]", (1, 2)),  # with n = 0, the fill waits for nobody
        ("a", "a", (2,)),
        ("a[0:n]", "a[0:n]", (2,)),  # so is the product without work then
        ("a[0:n]", "a[0:m]", (1, 2)),
        ("a[0:n]", "a[0:n, 0:m]", (1, 2)),
        ("a[0:s5]", "a[0:n]", (2,)),
    ],
)
def test_a_write_that_may_be_none_does_not_hide_the_writer_before(product, filled, waited) -> None:
    """It hides what has as little to do as itself whenever it has nothing."""
    rows = product.removeprefix("a")
    found = conflicts(dla.assemble(OVERWRITTEN.format(product=product, filled=filled, rows=rows)))
    assert found[3] == waited


@pytest.mark.parametrize("change", ["MOV s7, 5", "LOOP s7, 2\n    ENDLOOP"])
def test_a_register_that_changes_says_nothing_of_what_has_it_as_a_dim(change) -> None:
    """The fill may be of no rows where the product was of some."""
    text = OVERWRITTEN.format(product="a[0:n]", filled="a[0:n]", rows="[0:n]")
    found = conflicts(dla.assemble(text.replace("    FILL", f"    {change}\n    FILL")))
    assert set(found[-2]) == {1, len(found) - 3}


def test_many_writes_that_may_be_none_are_ordered_entirely() -> None:
    """Each would wait for all before."""
    count = 3000
    text = "    FILL a[0:s7], 1\n" * count
    program = dla.assemble(f".dim n s7 8\n.output a : f32[8]\nmain:\n{text}    MOV s7, 3\n    HALT\n")
    found = conflicts(program)
    assert all(index - 1 in found[index] for index in range(1, count))
    assert len({id(waits) for waits in found}) < 5


RANKS = """
.dim n s7 8
.input x : f32[8]
.output a : f32[8]
.output b : f32[8]
.output c : f32[8]
main:
{}
    HALT
"""


def test_collectives_wait_for_each_other_in_order() -> None:
    """They touch nothing of each other's, but the ranks meet in each; what is no collective waits for none."""
    text = "    ALLREDUCE.sum a, x\n    FILL b, 1\n    BROADCAST c, x\n    ALLREDUCE.max b, x"
    assert conflicts(dla.assemble(RANKS.format(text)))[:4] == [(), (), (0,), (1, 2)]


def test_the_order_of_collectives_goes_through_one_that_may_have_nothing_to_do() -> None:
    """Where n is 0, the second one is done before the first is."""
    text = "    ALLREDUCE.sum a, x\n    ALLREDUCE.sum b[0:s7], x[0:s7]\n    ALLREDUCE.max c, x"
    assert conflicts(dla.assemble(RANKS.format(text)))[:3] == [(), (0,), (0, 1)]


def test_collectives_of_loops_branches_and_calls_are_ordered() -> None:
    """A later trip waits for the one before; behind a branch, for either side; in a function, for who calls."""
    text = """\
    LOOP s0, 3
    ALLREDUCE.sum a, x
    ALLREDUCE.sum b, x
    ENDLOOP
    CMP.eq p0, s7, 8
    BR skip if=p0
    ALLREDUCE.sum c, x
skip:
    CALL more
    HALT
more:
    ALLREDUCE.max c, x
    RET"""
    found = conflicts(dla.assemble(RANKS.format(text).replace("    RET\n    HALT", "    RET")))
    assert [found[index] for index in (1, 2, 6, 9)] == [(2,), (1,), (2,), (2, 6)]


def test_many_collectives_that_may_have_nothing_to_do_are_ordered_entirely() -> None:
    """Naming all before each would take a square of them."""
    count = 2000
    text = "\n".join(["    ALLREDUCE.sum a[0:s7], x[0:s7]", "    ALLREDUCE.sum b[0:s7], x[0:s7]"] * (count // 2))
    program = dla.assemble(RANKS.format(text))
    found = conflicts(program)
    assert all(index - 1 in found[index] for index in range(1, count))
    assert len({id(waits) for waits in found}) < 5


def test_a_factor_of_zero_is_no_product_that_is_known() -> None:
    """It is the default, which instructions leave out."""
    program = dla.assemble(
        ".input x : f32[n <= 4]\n.output y : f32[n]\nmain:\n    ALU.mul s0, s1, 0\n    ALU.mul s2, 0, s1\n"
        "    EW.add y, x, x\n    HALT\n"
    )
    assert not conflicts(program)[2]
