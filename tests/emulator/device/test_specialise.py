"""Programs as they are for runs of one size: the same results, with fewer registers and smaller bounds."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device.specialise import Sizes, Specialiser
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Dynamic
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.program import Instruction, Program
from dla.isa.verifier import verify
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_batch import Batch
from dla.tests.emulator.device.random_instructions import draft
from dla.tests.emulator.device.test_differential import TENSOR_ROWS, run

TWO = """
.input x : f32[n <= 100, m <= 6]
.output y : f32[n, m]
main:
    ACT.relu y, x
    HALT
"""
COMPUTED = """
.input a : f32[n <= 64, 6]
.input b : f32[m <= 32, 6]
.state  y : f32[96, 6]
.state  z : f32[96, 6]
main:
    {early}
    ALU.add s0, n, m
    ALU.sub s1, n, m
    ALU.mul s2, s0, 2
    COPY z[:s0 <= 96], y[:s0 <= 96]
    COPY z[:s1 <= 64], y[:s1 <= 64]
    COPY z[:s2 <= {room}], y[:s2 <= {room}]
    COPY z[m], a[0]
    HALT
"""


LAYER = """
.input x : f32[n <= 40, 5, 64]
.const w : f32[64, 96] = 0.01
.const v : f32[96, 64] = 0.02
.scratch h : f32[n, 5, 96]
.scratch z : f32[n, 5, 64]
.output y : f32[n, 5, 64]
main:
    GEMM       h, x, w   act=gelu
    GEMM       z, h, v   residual=x
    NORM.layer y, z
    HALT
"""


def of(text: str, exact: bool, **dims: int) -> tuple[Program, Program]:
    """A program, and what it is for runs with these dims; not `exact`: at most these."""
    program = assemble(text)
    return program, Specialiser(program).program(Sizes(tuple(dims[x.name] for x in program.dims), exact))


def shape(instruction: Instruction, operand: str = "x") -> list[int | str]:
    """The dims of an operand, in text where they are in registers."""
    descriptor = instruction.operand(operand)
    assert descriptor is not None
    return [str(dim) if isinstance(dim, Dynamic) else dim for dim in descriptor.dims]


@pytest.mark.parametrize(
    ("n", "m", "bounds", "exact"),
    [
        (64, 4, (64, 4), True), (33, 4, (64, 4), False), (65, 5, (100, 6), False), (100, 6, (100, 6), True),
        (1, 1, (1, 1), True), (0, 1, (1, 1), False),
    ],
)  # fmt: skip
def test_sizes_are_powers_of_two_or_bounds(n, m, bounds, exact):
    """So that a few plans serve all."""
    specialiser = Specialiser(assemble(TWO))
    assert specialiser.sizes({"n": n, "m": m}) == (bounds, exact)
    assert specialiser.largest == ((100, 6), True)


def test_a_program_without_named_dims_is_one_for_all_runs():
    """There is one plan."""
    program = assemble(".output y : f32[4]\nmain:\nFILL y, 1\nHALT")
    specialiser = Specialiser(program)
    assert specialiser.sizes({}) == specialiser.largest == ((), True)
    assert specialiser.program(specialiser.largest) is program


def test_shapes_of_runs_with_known_dims_have_no_registers():
    """Tensors lie where they lay."""
    program, made = of(TWO, True, n=16, m=2)
    assert shape(made.instructions[0]) == [16, 2]
    assert made.instructions[0].operand("x").strides == (6, 1)
    assert made.tensors == program.tensors
    verify(made)


def test_shapes_of_other_runs_have_smaller_bounds():
    """The program says so, too."""
    _, made = of(TWO, False, n=16, m=2)
    assert shape(made.instructions[0]) == [f"s{x.register} <= {x.bound}" for x in made.dims]
    assert [x.bound for x in made.dims] == [16, 2]
    verify(made)


def test_what_is_computed_from_dims_is_known_as_they_are():
    """Sizes, and how far an offset goes."""
    program, made = of(COMPUTED.format(early="NOP", room=96), True, n=16, m=8)
    sums, differences, doubled, moved = made.instructions[4:8]
    assert (shape(sums), shape(differences), shape(doubled)) == ([24, 6], [8, 6], [48, 6])
    assert moved.operand("out").offset == program.instructions[7].operand("out").offset + 8 * 24
    assert not moved.operand("out").is_dynamic
    verify(made)


def test_what_grows_with_dims_has_the_bound_that_follows():
    """A difference does not; offsets stay in registers."""
    _, made = of(COMPUTED.format(early="NOP", room=96), False, n=16, m=8)
    sums, differences, doubled, moved = made.instructions[4:8]
    assert (shape(sums), shape(differences), shape(doubled)) == (
        ["s0 <= 24", 6],
        ["s1 <= 64", 6],
        ["s2 <= 48", 6],
    )
    assert moved.operand("out").offset_register is not None
    verify(made)


def test_a_size_beyond_its_bound_is_left_to_trap():
    """Also a negative one."""
    program, made = of(COMPUTED.format(early="NOP", room=32), True, n=16, m=20)
    assert shape(made.instructions[5]) == ["s1 <= 64", 6]
    assert shape(made.instructions[6]) == ["s2 <= 32", 6]
    inputs = {"a": np.zeros((16, 6), np.float32), "b": np.zeros((20, 6), np.float32)}
    traps = []
    for each in (program, made):
        with pytest.raises(Trap) as caught:
            GoldenMachine().load(each).run(inputs)
        traps.append((caught.value.category, caught.value.instruction))
    assert traps == [("extent", 5)] * 2


def test_an_offset_that_leaves_its_tensor_is_left_to_trap():
    """Of a run that is too long."""
    _, made = of(COMPUTED.format(early="NOP", room=96).replace("z[m]", "z[s2]"), True, n=64, m=32)
    assert made.instructions[7].operand("out").offset_register == 2


def test_what_is_used_before_it_is_computed_is_not_known():
    """It is 0 there."""
    _, made = of(COMPUTED.format(early="COPY y[:s0 <= 96], z[:s0 <= 96]", room=96), True, n=16, m=8)
    assert shape(made.instructions[0]) == ["s0 <= 96", 6]
    assert shape(made.instructions[4]) == [24, 6]


@pytest.mark.parametrize("late", ["ALU.add s0, s0, 1", "LOOP s0, 2\n    ENDLOOP"], ids=["again", "counter"])
def test_what_is_computed_twice_is_not_known(late):
    """Not even before the second time."""
    _, made = of(COMPUTED.format(early="NOP", room=96).replace("HALT", f"{late}\n    HALT"), True, n=16, m=8)
    assert shape(made.instructions[4]) == ["s0 <= 96", 6]


def test_what_is_computed_in_a_loop_is_not_known():
    """It may change from trip to trip; nothing after the first block of code is worked out."""
    _, made = of(COMPUTED.format(early="LOOP s9, 3\n    ENDLOOP", room=96), True, n=16, m=8)
    assert shape(made.instructions[5]) == ["s0 <= 96", 6]
    assert not made.instructions[8].operand("out").is_dynamic


@pytest.mark.parametrize("step", ["ALU.mul s0, n, 4611686018427387904", "ALU.add s0, n, 9223372036854775800"])
def test_a_number_that_wraps_is_no_bound(step):
    """At a bound of 16 it would be 0, or negative; at 5 it is not."""
    text = f"""
.input x : f32[n <= 100, 3]
.output y : f32[5, 3]
main:
    {step}
    ALU.min s1, s0, 5
    ALU.max s1, s1, 5
    COPY y[:s1 <= 5], x[:s1 <= 5]
    HALT
"""
    _, made = of(text, False, n=16)
    assert shape(made.instructions[3]) == ["s1 <= 5", 3]
    x = np.ones((15, 3), np.float32)
    assert GoldenMachine().load(made).run({"x": x})["y"].sum() == 15


@cpu_machine.needs_compiler
@pytest.mark.parametrize("hopper", [False, True], ids=["portable", "hopper"])
def test_runs_of_many_sizes_in_any_order(hopper):
    """On the emulated device, with plans for some sizes between those for others."""
    program = assemble(LAYER)
    session, golden = CpuSession(program, hopper=hopper), GoldenMachine().load(program)
    rng = np.random.default_rng(3)
    for n in (40, 8, 40, 33, 1, 0, 8, 32):
        inputs = {"x": rng.standard_normal((n, 5, 64)).astype(np.float32)}
        expected, found = golden.run(inputs)["y"], session.run(inputs).outputs["y"][:n]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert len(session._plans) == 6


def test_random_instructions_mean_the_same():
    """Of every row: with known dims, and with bounds between the dims and those declared. To the bit, here."""
    rng = np.random.default_rng(7)
    made = Batch(rng)
    for row in TENSOR_ROWS:
        for _ in range(12):
            sub = rng.choice([sub.name for sub in row.subs] or [""])
            drawn = draft(rng, row, str(sub), DType.F32) or draft(rng, row, str(sub), DType.I32)
            if drawn is not None:
                made.add(drawn)
    program = made.program()
    dynamic = [x for x in program.instructions if any(d is not None and d.is_dynamic for d in x.operands)]
    assert len(dynamic) > 20, "the test is about these"
    machine = GoldenMachine(watch=False)
    expected = run(machine.load(program), made)
    dims = tuple(made.dims()[symbol.name] for symbol in program.dims)
    for sizes in (Sizes(dims, True), Sizes(tuple(n + 1 for n in dims), False)):
        special = Specialiser(program).program(sizes)
        verify(special)
        found = run(machine.load(special), made)
        assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)
