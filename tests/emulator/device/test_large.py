"""Tensors large enough for the paths that small ones do not take: vectors, many tiles, long lines, big matrix tiles."""

from __future__ import annotations

import numpy as np
import pytest

from dla.assembler import assemble
from dla.emulator.compare import compare
from dla.emulator.device.machine import DeviceMachine
from dla.isa.descriptor import Segment
from dla.isa.dtypes import BY_TEXT, FLOATS
from dla.isa.program import Program

PROGRAMS = {
    "pointwise": """
.input x : T[301, 1024]
.input z : T[301, 1024]
.input row : T[1024]
.input column : T[301, 1]
.output a : T[301, 1024]
.output b : T[301, 1024]
.output c : T[301, 1024]
.output d : f32[301, 1024]
.output e : T[1024, 301]
.output f : T[301, 1024]
.output g : T[301, 256]
.output h : T[301, 256]
main:
    EW.add   a, x, z
    EW.mul   a, a, row
    EW.sub   b, x, column
    EW.max   b, b, 0.25
    ACT.gelu c, x
    COPY     d, x
    COPY     e, x.T
    ACT.selu f, x
    RNN.lstm g, h, x, z[:, :256]
    HALT
""",
    "lines": """
.input x : T[37, 5000]
.input gain : T[5000]
.output soft : T[37, 5000]
.output norm : T[37, 5000]
.output rms : T[37, 5000]
.output mean : f32[37]
.output all : f32[]
main:
    SOFTMAX     soft, x axis=-1
    NORM.layer  norm, x, gain
    NORM.rms    rms, x, gain
    REDUCE.mean mean, x axes=1
    REDUCE.l2   all, x axes=[0, 1]
    HALT
""",
    "products": """
.input x : T[2, 259, 520]
.input w : T[520, 264]
.input v : T[264, 520]
.input image : T[2, 30, 30, 64]
.input kernel : T[72, 3, 3, 64]
.input bias : T[264]
.output y : T[2, 259, 264]
.output t : T[2, 259, 264]
.output conv : T[2, 15, 15, 72]
.output u : T[2, 259, 132]
.output s : T[259, 132]
.output back : T[2, 61, 60, 72]
main:
    GEMM y, x, w   bias=bias act=relu
    GEMM t, x, v.T alpha=0.5
    GEMM.glu u, x, w unit=silu bias=bias[:132]
    GEMM.glu s, x[1], v.T unit=gelu alpha=0.25
    CONV conv, image, kernel strides=[2, 2] pads=[1, 1, 1, 1] act=silu
    CONV back, image, kernel gaps=[1, 1] pads=[2, 1, 2, 2]
    HALT
""",
    "places": """
.input x : T[700, 300]
.input line : T[50000]
.input slices : i32[520, 1]
.input own : i64[520, 300]
.input along : i32[700, 200]
.input many : i32[3000]
.input u : T[520, 300]
.input v : T[700, 200]
.input t : T[3000]
.output sums : T[700, 300]
.output products : T[700, 300]
.output last : T[700, 300]
.output largest : T[700, 300]
.output counts : T[50000]
main:
    SCATTER.add sums, x, slices.broadcast(520, 300), u
    SCATTER.mul products, x, own, u
    SCATTER.set last, x, along, v axis=1
    SCATTER.max largest, x, slices.broadcast(520, 300), u
    SCATTER.add counts, line, many, t
    HALT
""",
    "attention": """
.input q : T[2, 8, 133, 64]
.input k : T[2, 2, 133, 64]
.input v : T[2, 2, 133, 64]
.output full : T[2, 8, 133, 64]
.output causal : T[2, 8, 133, 64]
.output last : T[2, 8, 1, 64]
main:
    ATTENTION full, q, k, v
    ATTENTION causal, q, k, v causal
    ATTENTION last, q[:, :, 132:133], k, v causal
    HALT
""",
}


def inputs(program: Program) -> dict[str, np.ndarray]:
    """Normal random numbers for every input of floats; indices below 300."""
    rng = np.random.default_rng(0)
    given = {}
    for t in program.in_segment(Segment.INPUT):
        shape, dtype = t.descriptor.bounds, t.descriptor.dtype
        drawn = rng.normal(size=shape) if dtype.is_float else rng.integers(0, 300, shape)
        given[t.name] = drawn.astype(dtype.numpy)
    return given


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [d.text for d in FLOATS])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_large_tensors_stay_within_their_bounds(name, dtype):
    """Every output lies within the bound that follows from the rows; a second run gives the same bits."""
    program = assemble(PROGRAMS[name].replace(": T[", f": {BY_TEXT[dtype].text}["))
    given = inputs(program)
    session = DeviceMachine().load(program)
    result = session.run(given)
    failed = [c for c in compare(program, given, result) if not c.ok]
    assert failed == []
    again = session.run(given)
    assert all(result[n].tobytes() == again[n].tobytes() for n in result.outputs)
