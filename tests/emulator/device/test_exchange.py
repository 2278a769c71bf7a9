"""Results that the next product takes as they come: when they are, what is waited for then, and that they are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.device import exchange, plan
from dla.emulator.device.layout import PATH_STREAM, PLAIN_FEW, STREAM_SCHEDULE
from dla.emulator.device.paths import Target
from dla.emulator.device.paths.stream import PLAIN_AT
from dla.isa.descriptor import Segment
from dla.isa.dtypes import DType
from dla.isa.errors import Trap
from dla.isa.program import Program
from dla.tests.emulator.device import cpu_machine
from dla.tests.emulator.device.cpu_machine import CpuSession
from dla.tests.emulator.device.random_instructions import values
from dla.tests.emulator.device.references import compare

BASES = {segment: segment.value << 40 for segment in Segment}
on_cpu = cpu_machine.needs_compiler

HEAD = """
.input x : bf16[{rows}, {width}]
.input w : bf16[{width}, {width}]
.input c : bf16[{width}]
.scratch a : bf16[{rows}, {width}]
.scratch b : bf16[{rows}, {width}]
.output y : bf16[{rows}, {width}]
main:
"""


def text(body: str, rows: int = 1, width: int = 64) -> str:
    """A program of products on tensors of one size."""
    return HEAD.format(rows=rows, width=width) + body + "    HALT\n"


def chain(length: int, ending: str = "") -> str:
    """Products, each of the result of the one before, which take turns with two buffers."""
    names = ["x", *("ab"[i % 2] for i in range(length - 1)), "y"]
    return "".join(f"    GEMM {names[i + 1]}, {names[i]}, w{ending}\n" for i in range(length))


def takers(source: str) -> dict[int, int]:
    """Of each instruction that takes results as they come, whose."""
    made = plan.build(assemble(source), BASES, Target(hopper=True))
    found = {}
    for index, chosen in enumerate(made.schedules):
        if "takes a from " in chosen.summary:
            found[index] = int(chosen.summary.split("takes a from ")[1].split()[0])
    return found


def test_what_a_taker_waits_for():
    """For what the giver waits for and, as that may be a taker, for whom that has taken from. Others wait for both."""
    made = plan.build(assemble(text(chain(5) + "    FILL a, 0\n")), BASES, Target(hopper=True))

    def waits(index: int) -> list[int]:
        first, count = (int(n) for n in made.waits[index, :2])
        return made.wait_lists[first : first + count].tolist()

    assert [waits(index) for index in range(6)] == [[], [], [0], [0, 1], [1, 2], [2, 3]]
    assert made.exchange_bytes == 4 * 1024


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_few_rows_that_are_a_power_of_two_go_through_the_exchange(rows):
    """Two neighbours, which lie in one warp, are a word."""
    assert takers(text(chain(3), rows=rows)) == ({1: 0, 2: 1} if rows in (1, 2, 4) else {})


@pytest.mark.parametrize(
    "body",
    [
        "    GEMM a, x, w\n    CMP.gt p0, s0, 1\n    BR skip if=p0\nskip:\n    GEMM y, a, w\n",
        "    GEMM a, x, w\n    GEMM y, a, w residual=a\n",
        "    GEMM a, x, w\n    FILL a[:, 3:5], 1\n    GEMM y, a, w\n",
        "    GEMM a, x, w\n    GEMM y[:, :32], a[:, :32], w[:32, :32]\n",
        "    GEMM a, x, w\n    ACT.relu b, a\n    GEMM y, b, w\n",
    ],
)
def test_what_does_not_go_through_the_exchange(body):
    """What is behind a branch, what is read or written otherwise too, and what is not the whole result."""
    assert takers(text(body)) == {}


def test_deep_products_read_a_again():
    """Their warps do not keep all of a."""
    assert takers(text(chain(2, ".T"), width=4096)) == {1: 0}
    assert takers(text(chain(2), width=4096)) == {}
    assert takers(text(chain(2, ".T"), width=8192)) == {1: 0}
    assert takers(text(chain(2, ".T"), width=8200)) == {}


def drawn(program: Program, seed: int) -> dict[str, Any]:
    """Inputs of a program."""
    rng = np.random.default_rng(seed)
    tensors = program.in_segment(Segment.INPUT)
    return {t.name: values(rng, t.descriptor.bounds, DType.BF16) for t in tensors}


@on_cpu
@pytest.mark.parametrize("ending", ["", ".T", " bias=c act=relu", ".T bias=c residual=x"])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (2, 136), (4, 40)])
def test_results_are_those_of_the_ordinary_way(monkeypatch, rows, width, ending):
    """In whatever order warps come, and in each of the two turns."""
    program = assemble(text(chain(5, ending), rows=rows, width=width))
    inputs = drawn(program, rows)
    session = CpuSession(program, hopper=True)
    assert session.plan.exchange_bytes > 0
    results = []
    for session.seed in range(3):
        results.append(session.run(inputs))
    assert all(c.ok for c in compare(program, inputs, results[0]))
    monkeypatch.setattr(exchange, "MOST_BYTES", 0)
    ordinary = CpuSession(program, hopper=True)
    assert ordinary.plan.exchange_bytes == 0
    results.append(ordinary.run(inputs))
    assert len({r.outputs["y"].tobytes() for r in results}) == 1


@on_cpu
def test_nan_is_a_result():
    """The word that says that nothing is there is none that a product has, whatever its operands are."""
    program = assemble(text(chain(3)))
    inputs = drawn(program, 0)
    for bits in (0x7FC0, 0xFFFF, 0x7F80):
        inputs["x"].view(np.uint16)[:] = bits
        assert np.isnan(CpuSession(program, hopper=True).run(inputs).outputs["y"].astype(np.float32)).all()


@on_cpu
@pytest.mark.parametrize("ending", ["", ".T"])
def test_half_floats(ending):
    """The other type of 16 bits, and products whose last unit is not whole."""
    source = text(chain(3, ending + " act=silu"), rows=2, width=72).replace("bf16", "f16")
    program = assemble(source)
    rng = np.random.default_rng(0)
    inputs = {t.name: values(rng, t.descriptor.bounds, DType.F16) for t in program.in_segment(Segment.INPUT)}
    session = CpuSession(program, hopper=True)
    assert session.plan.exchange_bytes == 2048
    assert all(c.ok for c in compare(program, inputs, session.run(inputs)))


@on_cpu
@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("ending", ["", ".T"])
def test_products_with_few_and_with_many_results_follow_each_other(ending, checked):
    """The waiter finishes the ones and the workers the others, in whatever order warps come."""
    program = assemble(f"""
.input x : bf16[1, 64]
.input w : bf16[64, 64]
.input v : bf16[{"256, 64" if ending else "64, 256"}]
.input u : bf16[{"64, 256" if ending else "256, 64"}]
.scratch a : bf16[1, 64]
.scratch b : bf16[1, 64]
.scratch c : bf16[1, 256]
.output y : bf16[1, 64]
.output z : bf16[1, 256]
main:
    GEMM a, x, w{ending} residual=x
    GEMM b, a, w{ending}
    GEMM c, b, v{ending}
    GEMM a, c, u{ending}
    GEMM b, a, w{ending} act=relu
    EW.add a, b, x
    GEMM y, a, w{ending}
    GEMM z, y, v{ending}
    HALT
""")
    session = CpuSession(program, hopper=True, checked=checked)
    few = [bool(s.detail[PLAIN_AT] & PLAIN_FEW) for s in session.plan.schedules if s.path == PATH_STREAM]
    assert few == [True, True, False, True, True, True, False]
    inputs = drawn(program, 0)
    results = [session.run(inputs) for session.seed in range(4)]
    assert len({r.outputs["y"].tobytes() + r.outputs["z"].tobytes() for r in results}) == 1
    assert all(c.ok for c in compare(program, inputs, results[0]))


@on_cpu
def test_products_of_one_panel_and_of_two_follow_each_other():
    """Packed columns of at most 2048 elements have code of their own, for one panel; some of those are a whole one."""
    program = assemble("""
.input x : bf16[1, 64]
.input u : bf16[2112, 64]
.input v : bf16[64, 2112]
.input w : bf16[2048, 64]
.input r : bf16[64, 2048]
.scratch a : bf16[1, 64]
.scratch b : bf16[1, 64]
.scratch c : bf16[1, 2112]
.scratch d : bf16[1, 2048]
.output y : bf16[1, 64]
main:
    GEMM c, x, u.T
    GEMM a, c, v.T
    GEMM d, a, w.T
    GEMM b, d, r.T
    GEMM d, b, w.T act=relu
    GEMM a, d, r.T
    GEMM c, a, u.T
    GEMM y, c, v.T
    HALT
""")
    session = CpuSession(program, hopper=True)
    at = [name for name, *_ in STREAM_SCHEDULE.fields].index("panels")
    assert [s.detail[at] for s in session.plan.schedules if s.path == PATH_STREAM] == [1, 2, 1, 1, 1, 1, 1, 2]
    inputs = drawn(program, 0)
    results = [session.run(inputs) for session.seed in range(3)]
    assert len({r.outputs["y"].tobytes() for r in results}) == 1
    assert all(c.ok for c in compare(program, inputs, results[0]))


@on_cpu
def test_products_of_both_types_follow_each_other():
    """Each has code of its own, which a warp leaves for the other."""
    head = """
.input x : bf16[1, 64]
.input w : bf16[64, 64]
.input u : f16[1, 64]
.input v : f16[64, 64]
.scratch a : bf16[1, 64]
.scratch b : f16[1, 64]
.output y : bf16[1, 64]
.output z : f16[1, 64]
main:
"""
    order = ("a, x, w", "b, u, v", "y, a, w", "z, b, v", "a, y, w", "b, z, v", "z, b, v", "y, a, w")
    program = assemble(head + "".join(f"    GEMM {operands}.T\n" for operands in order) + "    HALT\n")
    rng = np.random.default_rng(0)
    inputs = {
        t.name: (rng.standard_normal(t.descriptor.bounds) / 8).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.INPUT)
    }
    session = CpuSession(program, hopper=True)
    results = [session.run(inputs) for session.seed in range(8)]
    assert len({r.outputs["y"].tobytes() + r.outputs["z"].tobytes() for r in results}) == 1
    assert all(c.ok for c in compare(program, inputs, results[0]))


@on_cpu
@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
def test_products_of_all_kinds_follow_each_other(checked):
    """Packed, across, and what is no product: in whatever order warps come, in the checked build as well."""
    body = "    GEMM a, x, w\n    GEMM b, a, w.T\n    GEMM a, b, w bias=c\n    EW.add b, a, x\n    GEMM a, b, w.T\n"
    program = assemble(text(body + "    GEMM y, a, w\n    EW.add y, y, x\n", rows=2, width=136))
    session = CpuSession(program, hopper=True, checked=checked)
    inputs = drawn(program, 0)
    assert len({session.run(inputs).outputs["y"].tobytes() for session.seed in range(4)}) == 1
    assert all(c.ok for c in compare(program, inputs, session.run(inputs)))


@on_cpu
def test_a_batch_of_at_most_one():
    """One row, or none: then there is nothing to give and nothing to take."""
    source = text(chain(4, " bias=c act=relu")).replace("x : bf16[1,", "x : bf16[n <= 1,")
    for name in "aby":
        source = source.replace(f"{name} : bf16[1,", f"{name} : bf16[n,")
    program = assemble(source)
    inputs = drawn(program, 0)
    session = CpuSession(program, hopper=True)
    assert session.plan.exchange_bytes == 3 * 1024
    for given in (inputs, inputs | {"x": inputs["x"][:0]}, inputs):
        assert all(c.ok for c in compare(program, given, session.run(given)) if len(given["x"]))


def test_a_batch_that_may_be_two_takes_the_ordinary_way():
    """How many rows there are decides who has which."""
    source = text(chain(4), rows=2).replace("x : bf16[2,", "x : bf16[n <= 2,")
    for name in "aby":
        source = source.replace(f"{name} : bf16[2,", f"{name} : bf16[n,")
    assert takers(source) == {}


@on_cpu
def test_launches_take_turns_whatever_becomes_of_them():
    """A launch leaves the other one's set without results, also where it ends in a trap and nobody clears anything."""
    program = assemble(text(chain(4)))
    session = CpuSession(program, hopper=True)
    for seed, base in enumerate((0, 1, 1, 0, 1, 0, 0)):
        session.seed, session.expected_base = seed, base
        inputs = drawn(program, seed)
        if base:
            with pytest.raises(Trap) as raised:
                session.run(inputs)
            assert raised.value.category == "timeout"
        else:
            assert all(c.ok for c in compare(program, inputs, session.run(inputs)))


BLOCK = """
.input x : {dtype}[1, {width}]
.input o : {dtype}[{width}, {width}]
.input gain : {dtype}[{width}]
.input up : {dtype}[{double}, {width}]
.input down : {dtype}[{width}, {hidden}]
.input last : {dtype}[{width}, {width}]
.scratch h : {dtype}[1, {width}]
.scratch t : {dtype}[1, {width}]
.scratch g : {dtype}[1, {hidden}]
.output y : {dtype}[1, {width}]
main:
    GEMM h, x, o.T residual=x
    NORM.{norm} t, h, gain
    GEMM.glu g, t, up.T unit=silu
    GEMM h, g, down.T residual=h
    NORM.{norm} t, h, gain
    GEMM y, t, last.T
    HALT
"""


@on_cpu
@pytest.mark.parametrize(
    ("width", "hidden", "norm", "dtype"),
    [(64, 136, "rms", "bf16"), (2048, 24, "layer", "bf16"), (72, 8192, "rms", "f16"), (2056, 24, "rms", "bf16")],
)
def test_normalisations_and_gated_units_between_products(monkeypatch, width, hidden, norm, dtype):
    """A block of a transformer, all of whose products are plain; rows of more than 2048 do not come so."""
    sizes = {"width": width, "hidden": hidden, "double": 2 * hidden, "norm": norm, "dtype": dtype}
    source = BLOCK.format(**sizes)
    assert takers(source) == ({2: 0, 3: 2, 5: 3} if width <= 2048 else {3: 2})
    program = assemble(source)
    rng = np.random.default_rng(width)
    inputs = {
        t.name: (rng.normal(size=t.descriptor.bounds) / 8).astype(t.descriptor.dtype.numpy)
        for t in program.in_segment(Segment.INPUT)
    }
    session = CpuSession(program, hopper=True)
    results = [session.run(inputs) for session.seed in range(2)]
    assert [c for c in compare(program, inputs, results[0]) if not c.ok] == []
    monkeypatch.setattr(exchange, "MOST_BYTES", 0)
    results.append(CpuSession(program, hopper=True).run(inputs))
    assert len({r.outputs["y"].tobytes() for r in results}) == 1
