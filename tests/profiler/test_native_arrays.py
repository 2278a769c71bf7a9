"""Native kernels where there is no PyTorch: NumPy's on whole programs, and CuPy's clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dla
from dla.isa.dtypes import DType
from dla.isa.program import Program
from dla.profiler.native import measure
from dla.profiler.native.arrays.clock import LONG_START_CYCLES, CupyClock
from dla.profiler.native.arrays.library import Arrays, cupy_library
from dla.profiler.native.clock import HEAD_START_CYCLES, LONG_SECONDS, WARMING, CpuClock
from dla.profiler.native.library import Library, library_for
from dla.profiler.profile import Native

BLOCK = """
.program block
.input  x : {0}[n <= 8, 16]
.input  g : f32[16]
.input  w : {0}[16, 16]
.input  q : i8[8, 16]
.input  i : i32[3]
.scratch h : {0}[n, 16]
.scratch r : {0}[n, 16]
.output y : {0}[n, 16]
.output z : {0}[3, 16]
.output p : i32[8, 8]
.output t : {0}[n, 4]
.output k : i32[n, 4]
main:
    NORM.rms     h, x, g
    GEMM         r, h, w.T bias=g act=silu
    EW.add       y, r, x
    GATHER       z, w, i axis=0
    GEMM         p, q, q.T
    TOPK         t, y indices=k
    SCAN.sum     y, y axis=1 reverse exclusive
    ACT.gelu     h, h
    HALT
"""


def block(dtype: str) -> Program:
    """A bit of everything."""
    return dla.assemble(BLOCK.format(dtype))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported."""
    monkeypatch.setitem(sys.modules, "torch", None)


def measured(program: Program, library: Library) -> dict[int, Native | str]:
    """All natives of a program."""
    return measure.natives(program, {}, lambda index: True, budget=0.01, library=library)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_numpy_stands_in_for_pytorch(dtype: str) -> None:
    """Every kernel is right, and named after what it calls; halves are multiplied in f32, the type that BLAS has."""
    library = library_for("golden")
    assert (library.name, library.instead[:26]) == ("NumPy", "PyTorch cannot be imported")
    *found, gelu = measured(block(dtype), library).values()
    assert gelu == "NumPy has no erf"
    kernels = [native.kernel if isinstance(native, Native) else native for native in found]
    assert all(isinstance(native, Native) and native.agrees and native.cold > 0 for native in found), found
    wide = "astype, " * (dtype != "f32")
    assert kernels == [
        f"numpy.{wide}square, mean, add, sqrt, divide, multiply",
        f"numpy.{wide}matmul, add, negative, exp, divide",
        "numpy.add",
        "numpy.take",
        "numpy.astype, matmul",
        "numpy.argsort, take_along_axis, astype",
        "numpy.flip, full_like, concatenate, cumsum" + ", astype" * (dtype != "f32"),
    ]


def test_a_fast_wrong_kernel_is_caught() -> None:
    """As with PyTorch's."""
    wrong = SimpleNamespace(**vars(np) | {"matmul": lambda a, b: np.matmul(a, b) * 1.01, "asnumpy": np.asarray})
    text = ".program p\n.input a : f32[32, 32]\n.output y : f32[32, 32]\nmain:\n    GEMM y, a, a\n    HALT\n"
    native = measured(dla.assemble(text), Arrays("NumPy", "", (wrong,), CpuClock))[0]
    assert isinstance(native, Native)
    assert not native.agrees
    assert native.error > 1


# -- CuPy


class FakeCupy(SimpleNamespace):
    """NumPy with CuPy's names for a GPU whose products cannot be captured; `log` has what the stream was given."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.capturing = False
        fake = self

        class Stream:
            """That is given work."""

            def __init__(self, non_blocking: bool = False) -> None:
                assert non_blocking, "work on the default stream would wait for it"

            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...
            def synchronize(self) -> None: ...

            def begin_capture(self) -> None:
                fake.capturing = True

            def end_capture(self) -> Any:
                fake.capturing = False
                return SimpleNamespace(launch=lambda: fake.log.append("graph"))

        class Event:
            """That has a time."""

            def record(self) -> None:
                fake.log.append("event")

            def synchronize(self) -> None: ...

        def waiting(_: str, name: str) -> Callable[..., None]:
            return lambda grid, block, cycles: fake.log.append((name, int(cycles[0])))

        def matmul(a: Any, b: Any) -> Any:
            if fake.capturing:
                raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
            fake.log.append("matmul")
            return np.matmul(a, b)

        runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
        pool = SimpleNamespace(malloc=None)
        super().__init__(
            cuda=SimpleNamespace(
                Stream=Stream, Event=Event, MemoryPool=lambda: pool, using_allocator=lambda malloc: nullcontext(),
                Device=lambda: SimpleNamespace(synchronize=lambda: None), runtime=runtime,
                get_elapsed_time=lambda began, ended: 2e3 * LONG_SECONDS,
            ),
            RawKernel=waiting, asnumpy=np.asarray, matmul=matmul, __name__="cupy", __path__=[],
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """In CuPy's place."""
    fake, scipy = FakeCupy(), SimpleNamespace(special=SimpleNamespace(erf=np.tanh))
    monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[arg-type]  # it has what is imported
    for name, module in {"cupyx": SimpleNamespace(scipy=scipy), "cupyx.scipy": scipy,
                         "cupyx.scipy.special": scipy.special}.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    return fake


@pytest.mark.usefixtures("no_torch")
def test_cupy_stands_in_for_pytorch_beside_a_gpu(cupy: FakeCupy) -> None:
    """Under its own name, by its own clock, with functions that NumPy has not; the wrong one of these is caught."""
    library = library_for("gpu")
    assert library.name == "CuPy"
    assert isinstance(library.clock(), CupyClock)
    _, product, add, *_, gelu = measured(block("f16"), library).values()
    assert isinstance(product, Native)
    assert isinstance(add, Native)
    assert isinstance(gelu, Native)
    assert (product.kernel, product.agrees) == ("cupy.matmul, add, negative, exp, divide, astype", True)
    assert (add.kernel, add.cold, add.agrees) == ("cupy.add", pytest.approx(2 * LONG_SECONDS), True)
    assert (gelu.kernel, gelu.agrees) == ("cupy.astype, multiply, erf, add", False)
    tf32 = ".program p\n.input a : f32[2, 2]\n.output y : f32[2, 2]\nmain:\n    GEMM y, a, a math=tf32\n    HALT\n"
    assert measured(dla.assemble(tf32), library)[0] == "CuPy multiplies in f32 here, not in tf32"


def test_a_pytorch_that_sees_no_gpu_is_no_pytorch_there(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a CPU beside those of a GPU would say nothing."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    library = library_for("gpu")
    assert library.name == "CuPy"
    assert library.instead.startswith(f"this PyTorch ({torch.__version__}) does not see the GPU (install PyTorch")


def test_what_can_be_captured_is_a_graph(cupy: FakeCupy) -> None:
    """And what cannot is enqueued behind a wait that is long enough for the host."""
    clock = CupyClock(cupy)
    ran: list[int] = []
    graph = clock.prepared(lambda: ran.append(1))
    assert len(ran) == WARMING + 1
    cupy.log.clear()
    assert clock.once(graph, cold=True) == pytest.approx(2 * LONG_SECONDS)
    assert cupy.log == [("wait", HEAD_START_CYCLES), "event", "graph", "event"]
    product = clock.prepared(lambda: cupy.matmul(np.eye(2), np.eye(2)))
    assert not cupy.capturing
    cupy.log.clear()
    clock.once(product, cold=False)
    assert cupy.log == ["matmul", ("wait", LONG_START_CYCLES), "event", "matmul", "event"]


@pytest.mark.gpu
def test_cupys_kernels_agree_on_a_gpu() -> None:
    """And their times are those of a GPU."""
    real = pytest.importorskip("cupy")
    if not real.cuda.is_available():
        pytest.skip("CuPy sees no GPU")
    library = cupy_library("")
    found = measured(block("f16"), library) | {100 + k: n for k, n in measured(block("f32"), library).items()}
    for native in found.values():
        assert isinstance(native, Native), native
        assert native.agrees, native
        assert native.kernel.startswith("cupy.")
        assert 0 <= min(native.cold, native.warm) < 1e-3  # in either, another process may have had the GPU
    assert library.numpy(library.normal(4, DType.F16, 1)).dtype == np.float16
