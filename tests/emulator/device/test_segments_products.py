"""Products on Hopper's paths in programs whose launches end at collectives: what is fetched or taken ahead of time."""

from __future__ import annotations

import numpy as np

from dla.assembler import assemble
from dla.emulator.device.layout import FIRST_PRODUCT
from dla.emulator.device.machine import DeviceMachine
from dla.isa.dtypes import DType, convert
from dla.tests.emulator.device import emulated_gpus
from dla.tests.emulator.device.cpu_machine import needs_compiler
from dla.tests.emulator.device.golden_ranks import golden

PRODUCTS = """
.world 2
.input x : bf16[1, 64]
.input w : bf16[64, 64]
.scratch a : bf16[1, 64]
.scratch b : bf16[1, 64]
.output y : bf16[1, 64]
main:
    GEMM a, x, w
    GEMM b, a, w
    ALLREDUCE.max y, x
    GEMM a, b, w
    GEMM b, a, w
    LOOP s0, 6
        GEMM a, b, w
        ALLREDUCE.min y, y
        GEMM b, a, w
        GEMM a, b, w
        GEMM b, a, w
    ENDLOOP
    LOOP s0, 9
        GEMM a, b, w
        GEMM b, a, w
    ENDLOOP
    ALLREDUCE.max y, b
    HALT
"""


@needs_compiler
def test_products_that_take_results_as_they_come_do_so_inside_a_segment(monkeypatch):
    """On Hopper: a launch that goes on has nothing of what the one before left in the exchange."""
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, connected=False, hopper=True)
    program = assemble(PRODUCTS)
    session = DeviceMachine(gpus=(0, 1)).load(program)
    plan = session._sessions[0].plan
    takers = {i for i, chosen in enumerate(plan.schedules) if "takes a from" in chosen.summary}
    assert takers == {1, 4, 14}
    w = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    x = np.random.default_rng(1).standard_normal((2, 1, 64))
    inputs = {name: convert(array, DType.BF16) for name, array in (("x", x), ("w", w))}
    reference = golden(program).run(inputs)["y"].astype(np.float32)
    for _ in range(3):
        np.testing.assert_allclose(session.run(inputs)["y"].astype(np.float32), reference, rtol=0.05, atol=0.05)


@needs_compiler
def test_only_the_first_launch_begins_with_the_first_product(monkeypatch):
    """On Hopper, the loader fetches what a program begins with ahead of everything else."""
    emulated_gpus.install(monkeypatch, blocks=4, gpus=2, connected=False, hopper=True)
    program = assemble("""
.world 2
.input x : bf16[256, 320]
.input w : bf16[320, 512]
.scratch a : bf16[256, 320]
.scratch c : bf16[256, 512]
.output y : bf16[256, 512]
main:
    GEMM c, x, w
    ALLREDUCE.max a, c[:, :320]
    GEMM y, a, w
    ALLREDUCE.min y, y
    HALT
""")
    session = DeviceMachine(gpus=(0, 1)).load(program)
    assert session._sessions[0].plan.first_work == FIRST_PRODUCT
    rng = np.random.default_rng(0)
    drawn = {"x": rng.standard_normal((2, 256, 320)), "w": rng.standard_normal((320, 512)) / 18}
    inputs = {name: convert(array, DType.BF16) for name, array in drawn.items()}
    reference = golden(program).run(inputs)["y"].astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(session.run(inputs)["y"].astype(np.float32), reference, rtol=0.05, atol=0.05)
