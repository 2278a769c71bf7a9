"""Products of few rows: when they are streamed, and that what is streamed is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import plan
from dla.emulator.device.layout import PATH_GENERIC, PATH_STREAM, STREAM_SCHEDULE
from dla.emulator.device.machine import DeviceMachine
from dla.emulator.device.paths import Target
from dla.isa.descriptor import Segment
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.references import compare

BASES = {segment: segment.value << 40 for segment in Segment}


def planned(text: str) -> plan.Plan:
    """The plan of a program for a GPU with the hot paths."""
    return plan.build(assemble(text), BASES, Target(hopper=True))


def product(
    x: str = "bf16[2, 64]", w: str = "bf16[24, 64]", y: str = "bf16[2, 24]", code: str = "GEMM y, x, w.T"
) -> str:
    """A program of one product."""
    return f".input x : {x}\n.const w : {w} = 0\n.output y : {y}\nmain:\n    {code}\n    HALT\n"


def detail(made: plan.Plan, index: int = 0) -> dict[str, int]:
    """The numbers that the kernel is given for an instruction, but for the map's address and what follows."""
    return dict(zip((name for name, *_ in STREAM_SCHEDULE.fields[:-3]), made.schedules[index].detail, strict=False))


def test_constant_weights_need_not_wait():
    """Constants are read ahead of what the product waits for; what the program writes is not."""
    assert detail(planned(product()))["constant"] == 1
    written = product(code="COPY v, w\n    GEMM y, x, v.T").replace("main:", ".scratch v : bf16[24, 64]\nmain:")
    made = planned(written)
    assert made.schedules[1].path == PATH_STREAM
    assert detail(made, 1)["constant"] == 0


def test_state_that_nobody_writes_is_constant():
    """Of one tensor of state, what the program may write, as far as that is known, is not; the rest is."""
    text = """
.input x : bf16[1, 64]
.state w : bf16[2, 64, 64]
.output y : bf16[1, 64]
.output z : bf16[1, 64]
main:
    GEMM y, x, w[0].T
    GEMM z, x, w[1].T
    COPY w[1, 0:1], z
    HALT
"""
    made = planned(text)
    assert [detail(made, index)["constant"] for index in (0, 1)] == [1, 0]
    moved = planned(text.replace("w[1, 0:1]", "w[s1, 0:1]").replace("main:", "main:\n    MOV s1, 1"))
    assert [detail(moved, index)["constant"] for index in (1, 2)] == [0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"x": "f32[2, 64]", "w": "f32[24, 64]"},
        {"x": "bf16[2, 60]", "w": "bf16[24, 60]"},
        {"x": "bf16[k <= 2, 64]", "w": "bf16[24, 64]", "y": "bf16[k, 24]"},
        {"w": "bf16[64, 28]", "code": "GEMM y, x, w[:, :24]"},
        {"w": "bf16[64, 32]", "code": "GEMM y, x, w[:, 4:28]"},
        {"w": "bf16[64, 48]", "code": "GEMM y, x, w[:, ::2]"},
        {"x": "bf16[17, 64]", "y": "bf16[17, 24]"},
        {"x": "bf16[64, 2]", "code": "GEMM y, x.T, w.T"},
        {"w": "bf16[24, 72]", "code": "GEMM y, x, w[:, 4:68].T"},
    ],
)
def test_what_cannot_be_streamed_is_not(changes):
    """Other types, ragged chunks, many rows, unaligned or scattered views; while a dynamic number of rows is fine."""
    expected = PATH_STREAM if "k <=" in changes.get("x", "") else PATH_GENERIC
    path = planned(product(**changes)).schedules[0].path
    assert (path == PATH_STREAM) == (expected == PATH_STREAM)


def test_a_stage_is_as_deep_as_the_product():
    """Up to 1024 of the depth are a stage of 16 KB; more go in panels of 2048; ragged ones in boxes of 64."""
    for depth, expected in {
        64: (2, 1, 1),
        1024: (2, 1, 1),
        1032: (4, 32, 1),
        2048: (4, 1, 1),
        8192: (4, 1, 4),
        784: (2, 16, 1),
    }.items():
        d = detail(planned(product(x=f"bf16[2, {depth}]", w=f"bf16[24, {depth}]")))
        assert (d["granules"], d["boxes"], d["panels"]) == expected


def test_remainders_meet_different_blocks():
    """133 units on 132 blocks leave one over: the next product gives it to the block behind."""
    text = product(w="bf16[1064, 64]", y="bf16[2, 1064]", code="GEMM y, x, w.T\n    GEMM y, x, w.T\n    GEMM y, x, w.T")
    made = planned(text)
    first = int(made.headers["first_block"][0])
    assert list(made.headers["first_block"][:3]) == [first, first + 1, first + 2]


def test_a_map_covers_all_places_that_a_register_moves_its_tensor_to():
    """The kernel finds the column by the distance from the map's first one."""
    text = product(w="bf16[3, 24, 64]", y="bf16[3, 2, 24]", code="LOOP s0, 3\n    GEMM y[s0], x, w[s0].T\n    ENDLOOP")
    made = planned(text)
    assert detail(made, 1)["pitch"] == 128
    assert made.maps[detail(made, 1)["map"]].dims == (64, 72, 1)


def test_columns_that_lie_across_go_in_narrow_units_if_few_and_else_in_wide_ones():
    """16 columns by 1024 of the depth are a stage, or 32 by 512; more than 8 rows have room for narrow ones only.

    Of f32, as tiles of 16 rows, which may be cheaper, have results of 16 bits.
    """
    for (m, n, k), expected in {
        (1, 2048, 2048): (16, 2, 4, (16, 256, 1)),
        (8, 2120, 520): (32, 2, 4, (32, 128, 1)),
        (9, 2120, 520): (16, 1, 4, (16, 256, 1)),
        (1, 40, 8): (16, 1, 4, (16, 256, 1)),
    }.items():
        made = planned(product(f"bf16[{m}, {k}]", f"bf16[{k}, {n}]", f"f32[{m}, {n}]", "GEMM y, x, w"))
        d = detail(made)
        assert made.schedules[0].path == PATH_STREAM
        box = made.maps[d["map"]].box
        assert (d["unit"], d["panels"], d["granules"], box) == expected


def test_places_that_a_register_moves_lines_to_are_a_dim_of_the_map():
    """By whole matrices, or by some columns: the kernel finds the place by the distance from the map's first one."""
    loop = "LOOP s0, 3\n    GEMM y[s0], x, {}\n    ENDLOOP"
    for w, view, pitch, strides in (
        ("bf16[3, 64, 24]", "w[s0]", 64 * 48, (48, 64 * 48)),
        ("bf16[64, 40]", "w[:, s0*8:24+s0*8]", 16, (80, 16)),
    ):
        made = planned(product(w=w, y="bf16[3, 2, 24]", code=loop.format(view)))
        assert detail(made, 1)["pitch"] == pitch
        found = made.maps[detail(made, 1)["map"]]
        assert (found.dims, found.strides) == ((24, 64, 3), strides)
    made = planned(product(w="bf16[64, 26]", code="LOOP s0, 3\n    GEMM y, x, w[:, s0:24+s0]\n    ENDLOOP"))
    assert made.schedules[1].path == PATH_GENERIC


# ---- on the device, and on the emulated one ----

SHAPES = (
    (1, 2048, 2048), (2, 1024, 1024), (3, 1000, 784), (4, 37, 8), (5, 130, 1024), (6, 5000, 264), (7, 1, 4104),
    (8, 256, 2048), (9, 4099, 520), (10, 2304, 64), (16, 600, 3072), (1, 16384, 256), (16, 40, 8192), (1, 2056, 8192),
    (16, 2055, 2048),
)  # fmt: skip
FEW_BLOCKS_SHAPES = (
    (1, 40, 2048), (2, 61, 1096), (3, 300, 64), (5, 7, 8), (6, 130, 784), (9, 100, 264), (16, 33, 2056), (16, 1, 6152),
    (1, 33, 8192), (4, 50, 4104), (8, 120, 1544), (16, 300, 1064),
)  # fmt: skip


def random_inputs(program: Program) -> dict[str, np.ndarray]:
    """Normal random numbers, scaled such that products stay near 1."""
    rng = np.random.default_rng(0)
    return {
        t.name: (rng.normal(size=t.descriptor.bounds) / 8).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.INPUT)
    }


def check(text: str, *, on_gpu: bool) -> None:
    """Runs a program whose every GEMM is to be streamed; beside the golden machine's, and twice."""
    program = assemble(text)
    session = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    schedules = zip(program.instructions, session.plan.schedules, strict=True)
    assert {s.path for i, s in schedules if i.row.mnemonic == "GEMM"} == {PATH_STREAM}
    given = random_inputs(program)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
    if not on_gpu:
        session.seed = 1
    again = session.run(given)
    assert all(result.outputs[n].tobytes() == again.outputs[n].tobytes() for n in result.outputs)


ON_GPU = pytest.mark.parametrize(
    "on_gpu",
    [
        pytest.param(True, marks=(pytest.mark.gpu, pytest.mark.hopper), id="gpu"),
        pytest.param(False, marks=cpu_machine.needs_compiler, id="cpu"),
    ],
)
SHAPES_AND_MACHINES = pytest.mark.parametrize(
    ("shape", "on_gpu"),
    [pytest.param(shape, True, marks=(pytest.mark.gpu, pytest.mark.hopper), id=f"gpu-{shape}") for shape in SHAPES]
    + [pytest.param(shape, False, marks=cpu_machine.needs_compiler, id=f"cpu-{shape}") for shape in FEW_BLOCKS_SHAPES],
)


def stored(n: int, k: int, *, across: bool) -> tuple[str, str]:
    """The shape in which a matrix of k by n is stored, by rows or by columns, and how a product names such a `w`."""
    return (f"[{k}, {-(-n // 8) * 8}]", f"w[:, :{n}]") if across else (f"[{n}, {k}]", "w.T")


BOTH_WAYS = pytest.mark.parametrize("across", [pytest.param(False, id="packed"), pytest.param(True, id="across")])


@BOTH_WAYS
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@SHAPES_AND_MACHINES
def test_products_stay_within_their_bounds(shape, on_gpu, dtype, across):
    """All numbers of rows, ragged columns and depths."""
    m, n, k = shape
    w_shape, w = stored(n, k, across=across)
    check(
        f"""
.input x : {dtype}[{m}, {k}]
.input w : {dtype}{w_shape}
.input bias : {dtype}[{n}]
.output y : {dtype}[{m}, {n}]
.output z : f32[{m}, {n}]
main:
    GEMM y, x, {w} bias=bias act=relu
    GEMM z, x, {w} alpha=0.5
    HALT
""",
        on_gpu=on_gpu,
    )


@BOTH_WAYS
@ON_GPU
@pytest.mark.parametrize("m", [1, 6, 16])
def test_every_epilogue(m, on_gpu, across):
    """c, all steps in any order, glu, results of any type and stride."""
    w_shape, w = stored(600, 520, across=across)
    check(
        f"""
.input x : bf16[{m}, 520]
.input w : bf16{w_shape}
.input c : f32[{m}, 600]
.input bias : f16[600]
.input gate : bf16[{m}, 1]
.input residual : f32[{m}, 600]
.output a : f32[{m}, 600]
.output b : f16[600, {m}]
.output d : bf16[{m}, 300]
.output e : f32[{m}, 301]
main:
    GEMM     a, x, {w}   c=c alpha=2 beta=-0.5 residual=residual clamp=[-0.5, 0.75] gate=gate
    GEMM     b.T, x, {w} bias=bias act=gelu residual=residual gate=gate
    GEMM.glu d, x, {w}   unit=silu bias=bias[:300] residual=residual[:, 300:]
    GEMM.glu e[:, :300], x, {w} unit=gelu alpha=0.5 gate=gate
    COPY     e[:, 300:], c[:, :1]
    HALT
""",
        on_gpu=on_gpu,
    )


@ON_GPU
def test_views_batches_and_chains(on_gpu):
    """Rows far apart, batches that are rows, weights that the program writes, weights moved by a register."""
    check(
        """
.input x : bf16[2, 9, 160]
.input w : bf16[3, 700, 128]
.input v : bf16[128, 704]
.scratch written : bf16[700, 128]
.scratch h : bf16[6, 704]
.scratch g : bf16[6, 128]
.output y : bf16[2, 3, 700]
.output z : bf16[3, 6, 700]
.output t : bf16[6, 700]
.output u : bf16[3, 6, 120]
main:
    COPY written, w[2]
    GEMM y, x[:, 3:6, 16:144], w[1].T
    GEMM t, x[0, :6, 32:], written.T
    GEMM h[:, :700], x[1, 0:6, 16:144], written.T
    COPY h[:, 700:], v[:6, :4]
    GEMM g, h, v.T
    LOOP s0, 3
        GEMM z[s0], g, w[s0].T residual=t
        GEMM u[s0], h[:, :696], w[s0, :696, :120]
    ENDLOOP
    LOOP s0, 3
        GEMM u[s0], g, v[:, s0*8:120+s0*8] c=u[s0] beta=1
        COPY written[:128, :120], w[s0, 64:192, :120]
        GEMM u[s0], g, written[:128, 8:128] residual=u[s0]
    ENDLOOP
    HALT
""",
        on_gpu=on_gpu,
    )


@BOTH_WAYS
@ON_GPU
@pytest.mark.parametrize("batch", [0, 1, 4, 5, 13, 16])
def test_a_dynamic_number_of_rows(batch, on_gpu, across):
    """The same program for any number of rows up to its bound."""
    w = stored(512, 512, across=across)[1]
    program = assemble(f"""
.input x : bf16[batch <= 16, 512]
.input w : bf16[512, 512]
.scratch h : bf16[batch, 512]
.output y : f32[batch, 512]
main:
    GEMM h, x, {w} act=tanh
    GEMM y, h, {w}
    HALT
""")
    given = random_inputs(program)
    given["x"] = given["x"][:batch]
    session = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    result = session.run(given)
    outputs = {"y": np.asarray(result.outputs["y"])[:batch]}  # the emulated device answers at the bound
    assert [c for c in compare(program, given, SimpleNamespace(outputs=outputs, state={})) if not c.ok] == []


@BOTH_WAYS
@ON_GPU
def test_a_trap_ends_what_streams(on_gpu, across):
    """Copies under way when a trap is raised still land, nobody waits for ever, and the next run is right."""
    w = stored(1024, 1024, across=across)[1]
    text = f"""
.input x : bf16[2, 1024]
.input w : bf16[1024, 1024]
.input divisor : i64[1]
.scratch h : bf16[2, 1024]
.output y : bf16[2, 1024]
main:
    GEMM h, x, {w}
    LOADS s1, divisor[0]
    GEMM y, h, {w}
    ALU.div s2, 1, s1
    GEMM y, h, {w}
    HALT
"""
    program = assemble(text)
    session = DeviceMachine().load(program) if on_gpu else CpuSession(program, hopper=True)
    given = random_inputs(program)
    with pytest.raises(Trap) as raised:
        session.run(given | {"divisor": np.zeros(1, np.int64)})
    assert raised.value.category == "arithmetic"
    given["divisor"] = np.ones(1, np.int64)
    result = session.run(given)
    assert [c for c in compare(program, given, result) if not c.ok] == []
