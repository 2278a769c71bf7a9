"""Normalisations that products do themselves: when that is proved, and that what comes out is right."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_STREAM
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Context, Target, fusion
from dla.emulator.golden.machine import GoldenMachine
from dla.isa.descriptor import Segment
from dla.isa.errors import VerifyError
from dla.isa.program import Program
from dla.isa.reach import Reach
from dla.isa.verifier import verify
from dla.report_plan import planned
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare

BASES = {segment: segment.value << 40 for segment in Segment}
DECLARED = """
.input  x     : bf16[2, 64]
.const  w     : bf16[64, 64] = 0
.const  gain  : bf16[64] = 1
.const  bias  : bf16[64] = 0
.state  moved : bf16[64]
.scratch h    : bf16[2, 64]
.scratch g    : bf16[2, 64]
.output y     : bf16[2, 64]
.output z     : bf16[2, 64]
main:
"""


def fused(
    code: str, declared: str = DECLARED, *, hopper: bool = True, end: str = "    HALT\n"
) -> dict[int, tuple[int, ...]]:
    """The products that do each NORM."""
    program = assemble(declared + code + "\n" + end)
    made = plan.build(program, BASES, Target(hopper=hopper))
    return {index: tuple(products) for index, products in made.fused.items()}


def test_what_only_streamed_products_read_is_theirs_to_make():
    """One product or several, as long as they follow in the same code."""
    assert fused("NORM.rms h, x, gain\n GEMM y, h, w.T") == {0: (1,)}
    assert fused("NORM.layer h, x, gain, bias\n GEMM y, h, w.T\n GEMM.glu z[:, :32], h, w") == {0: (1, 2)}
    assert fused("NORM.rms h, x\n GEMM y, h, w.T residual=x") == {0: (1,)}


def test_a_function_at_the_end_returns_to_readers():
    """What follows its RET is what follows the CALL."""
    call = "CALL f\n {} HALT\nf:\n NORM.rms h, x\n GEMM y, h, w.T\n RET"
    assert fused(call.format("COPY z, h\n"), end="") == {}
    assert fused(call.format(""), end="") == {2: (3,)}


def test_without_hopper_paths_nobody_streams():
    """Other GPUs execute every NORM."""
    assert fused("NORM.rms h, x\n GEMM y, h, w.T", hopper=False) == {}


@pytest.mark.parametrize(
    "code",
    [
        "NORM.rms h, x\n GEMM y, h, w.T\n COPY z, h",
        "NORM.rms h, x\n GEMM y, h, w.T residual=h",
        "NORM.rms h, x\n GEMM y, h[:, :32], w[:, :32].T",
        "NORM.rms h, x\n GEMM y[:1], h[1:], w.T\n GEMM y[1:], h[:1], w.T",
        "NORM.rms y, x\n GEMM z, y, w.T",
        "NORM.rms h, x\n COPY h[:, :32], x[:, 32:]\n GEMM y, h, w.T",
        "COPY g, x\n NORM.rms h, g\n COPY g, x\n GEMM y, h, w.T",
        "COPY g, x\n NORM.rms h, g\n GEMM g, h, w.T\n COPY y, g",
        "NORM.rms h, x\n BR skip if=p0\n GEMM y, h, w.T\nskip:",
        "NORM.rms h, x\n GEMM y, h, w.T\n LOOP s0, 2\n GEMM z, h, w.T\n ENDLOOP",
        "NORM.rms h, x\n GEMM y, h, w.T\n BR skip if=p0\n COPY z, h\nskip:",
        "COPY h, x\n LOOP s0, 2\n COPY y, h\n NORM.rms h, x\n GEMM z, h, w.T\n ENDLOOP",
        "NORM.rms h, x, moved\n GEMM y, h, w.T\n COPY moved, x[0]",
        "NORM.rms h, x\n GEMM y, x, w.T",
        "NORM.batch h, x, mean=gain var=gain\n GEMM y, h, w.T",
    ],
)
def test_what_is_not_proved_is_left_alone(code):
    """Other readers, now or on any later way; parts; what is written in between; what the gain or the result is."""
    assert fused(code) == {}


def test_control_flow_behind_the_products_is_followed():
    """Loops, branches and calls that write the result before they read it do not keep it alive."""
    assert fused("LOOP s0, 2\n NORM.rms h, x\n GEMM y, h, w.T\n ENDLOOP") == {1: (2,)}
    assert fused("NORM.rms h, x\n GEMM y, h, w.T\n BR skip if=p0\n COPY h, x\n COPY z, h\nskip:") == {0: (1,)}
    assert fused("CALL f\n HALT\nf:\n NORM.rms h, x\n GEMM y, h, w.T\n RET") == {2: (3,)}
    assert fused("CALL f\n COPY z, h\n HALT\nf:\n NORM.rms h, x\n GEMM y, h, w.T\n RET") == {}


def test_types_and_sizes_that_a_block_can_do():
    """16-bit floats of one type, of up to 8 KB, in whole chunks."""
    code = "NORM.rms h, x\n GEMM y, h, w.T"
    for dtype, rows, depth, expected in (
        ("bf16", 1, 4096, True), ("f16", 2, 2048, True), ("bf16", 16, 256, True), ("bf16", 1, 4104, False),
        ("bf16", 3, 1024, True), ("bf16", 3, 1032, False), ("f32", 1, 64, False), ("bf16", 1, 60, False),
    ):  # fmt: skip
        declared = f"""
.input x : {dtype}[{rows}, {depth}]
.const w : {dtype}[8, {depth}] = 0
.scratch h : {dtype}[{rows}, {depth}]
.output y : {dtype}[{rows}, 8]
main:
"""
        assert bool(fused(code, declared)) is expected, (dtype, rows, depth)
    declared = DECLARED.replace("input  x     : bf16", "input  x     : f32")
    assert fused(code, declared) == {}


def test_products_wait_for_what_the_normalisation_waited_for():
    """And what comes after waits for the products: the plan is that of a program without the NORM."""
    program = assemble(DECLARED + "COPY g, x\n NORM.rms h, g\n GEMM y, h, w.T\n COPY g, y\n COPY z, g\n HALT\n")
    made, steps = planned(program, 132, hopper=True)
    waits = {step.instruction: step.waits_for for step in steps}
    assert waits == {0: (), 1: (), 2: (0,), 3: (2,), 4: (3,)}
    assert made.before[2] == (0,)
    assert [(s.path, s.how) for s in steps[1:3]] == [
        ("fused", "done by 2"), ("stream", "streamed in units of 8 columns, packed; does NORM 1"),
    ]  # fmt: skip


# ---- random programs ----

RANDOM = """
.input   x : bf16[{rows}, 64]
.input   w : bf16[64, 64]
.state   kept : bf16[{rows}, 64]
.scratch a : bf16[{all}, 64]
.scratch t : bf16[{rows}, 64]
.output  y : bf16[4, {rows}, 64]
main:
    COPY kept, x
"""


def random_code(rng: random.Random, half: int) -> str:
    """Normalisations, products, copies of views that overlap, loops and branches; a NOP in front of each product.

    Of views of 2 * `half` rows.
    """
    lines = [f"    COPY a[{k * half}:{(k + 2) * half}], x" for k in range(0, 8, 2)]
    lines += [f"    COPY y[{k}], x" for k in range(4)]
    lines.append(f"    CMP.eq p0, s31, {rng.randrange(2)}")
    ends: list[str] = []

    def view(*others: str) -> str:
        row = rng.choice([0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5])
        return rng.choice([f"a[{row * half}:{(row + 2) * half}]"] * 6 + ["kept", *others])

    def result() -> str:
        return rng.choice([view(), f"y[{rng.randrange(4)}]"])

    for number in range(rng.randrange(3, 12)):
        match rng.choice(["norm"] * 4 + ["copy", "copy", "loop", "branch", "end"]):
            case "norm":
                h = view()
                lines.append(f"    NORM.{rng.choice(['rms', 'layer'])} {h}, {rng.choice([h, view('x'), view('x')])}")
                lines += [f"    COPY {view()}, {view('x')}"] * (rng.random() < 0.3)
                for _ in range(rng.choice([1, 1, 2])):
                    residual = f" residual={view('x')}" if rng.random() < 0.4 else ""
                    lines += ["    NOP", f"    GEMM {result()}, {rng.choice([h] * 9 + [view()])}, w.T{residual}"]
            case "copy":
                lines.append(f"    COPY {result()}, {view('x')}")
            case "loop":
                lines.append(f"    LOOP s{number}, 2")
                ends.append("    ENDLOOP")
            case "branch":
                lines.append(f"    BR skip{number} if=p0")
                ends.append(f"skip{number}:")
            case _:
                lines += [ends.pop()] if ends else []
    return "\n".join([*lines, *reversed(ends), "    HALT\n"])


def written_out(program: Program, made: fusion.Fused) -> Program:
    """What the blocks execute, as a program: in front of each product that does a NORM stands one for it alone.

    Or for others, too, where the product stores the result.
    """
    code = list(made.program.instructions)
    alone = program.by_name["t"].descriptor
    for at, norm in made.norms.items():
        given, product = program.instructions[norm.instruction], program.instructions[at]
        if at in made.stored:
            code[at - 1], code[at] = given, product
            continue
        out, a, *others = product.operands
        code[at - 1] = replace(given, operands=(alone, *given.operands[1:]))
        code[at] = replace(product, operands=(out, replace(a, offset=alone.offset), *others))
    return replace(program, instructions=tuple(code))


@pytest.mark.parametrize(("half", "expected"), [(1, 30), (16, 60)])
def test_random_programs_mean_the_same(half, expected):
    """Whatever views overlap and wherever control goes: the golden machine gives the same bits of outputs and state."""
    done = 0
    for seed in range(150):
        program = assemble(RANDOM.format(rows=2 * half, all=8 * half) + random_code(random.Random(seed), half))
        try:
            verify(program)
        except VerifyError:
            continue
        made = fusion.find(program, Context(Target(hopper=True), BASES, Reach(program)))
        done += len(made.norms)
        rng = np.random.default_rng(seed)
        given = {
            t.name: rng.normal(size=t.descriptor.bounds).astype(t.descriptor.dtype.numpy)
            for t in program.in_segment(Segment.INPUT)
        }
        first, second = (GoldenMachine().load(p).run(given) for p in (program, written_out(program, made)))
        assert first.outputs["y"].tobytes() == second.outputs["y"].tobytes(), seed
        assert first.state["kept"].tobytes() == second.state["kept"].tobytes(), seed
    assert done > expected


# ---- on the device, and on the emulated one ----

SHAPES = ((1, 300, 2048), (1, 2056, 4096), (2, 64, 2048), (3, 40, 1000), (4, 4104, 1024), (5, 100, 512), (16, 96, 256))
FEW_BLOCKS_SHAPES = (
    (1, 40, 2048), (1, 33, 4096), (2, 40, 264), (3, 41, 1000), (5, 24, 64), (7, 40, 8), (9, 56, 136), (16, 40, 256),
)  # fmt: skip
SHAPES_AND_MACHINES = pytest.mark.parametrize(
    ("shape", "on_gpu"),
    [pytest.param(shape, True, marks=(pytest.mark.gpu, pytest.mark.hopper), id=f"gpu-{shape}") for shape in SHAPES]
    + [pytest.param(shape, False, marks=cpu_machine.needs_compiler, id=f"cpu-{shape}") for shape in FEW_BLOCKS_SHAPES],
)

CHAIN = """
.input x : {dtype}[{m}, {k}]
.input w : {dtype}[{n}, {k}]
.input v : {dtype}[{k}, {n8}]
.input gain : {dtype}[{k}]
.input bias : {dtype}[{k}]
.scratch t : {dtype}[{m}, {k}]
.scratch h : {dtype}[1, {m}, {k}]
.output a : {dtype}[{m}, {n}]
.output b : f32[{m}, {n}]
.output c : {dtype}[{m}, {n8}]
.output d : f32[{m}, {half}]
.output e : f32[{m}, {n}]
main:
    NORM.rms   t, x, gain
    NORM.rms   h[0], t, gain eps=0.001
    GEMM       a, h[0], w.T
    GEMM       b, h[0], w.T bias=b2 act=silu
    NORM.layer h[0], t, gain, bias
    GEMM       c, h[0], v residual=c2
    GEMM.glu   d, h[0], w.T[:, :{even}] unit=silu
    NORM.layer t, t
    GEMM       e, t, w.T
    HALT
"""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@SHAPES_AND_MACHINES
def test_results_are_those_of_the_normalisation_and_the_product(shape, on_gpu, dtype):
    """Within the bounds of the golden machine's, the same in every run; with and without gain and bias, in place."""
    m, n, k = shape
    text = CHAIN.format(dtype=dtype, m=m, n=n, k=k, n8=-(-n // 8) * 8, half=n // 2, even=n // 2 * 2)
    text = text.replace("bias=b2", "bias=w[:, 0]").replace("residual=c2", "residual=v[0]")
    program = assemble(text)
    session = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    assert {i: tuple(p) for i, p in session.plan.fused.items()} == {1: (2, 3), 4: (5, 6), 7: (8,)}
    assert {session.plan.schedules[i].path for i in (2, 3, 5, 6, 8)} == {PATH_STREAM}
    rng = np.random.default_rng(0)
    given = {
        t.name: (rng.normal(size=t.descriptor.bounds) / 8).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.INPUT)
    }
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    if not on_gpu:
        session.seed = 1
    again = session.run(given)
    assert all(result.outputs[name].tobytes() == again.outputs[name].tobytes() for name in result.outputs)
