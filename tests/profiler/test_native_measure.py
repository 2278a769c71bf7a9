"""Native kernels of whole programs: each kind of work once, with a time or a reason."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence

import pytest

import dla
from dla.profiler.profile import Native

torch = pytest.importorskip("torch", reason="native kernels are PyTorch's")

from dla.profiler.native import measure  # noqa: E402
from dla.profiler.native.clock import (  # noqa: E402
    FEWEST_MORE,
    LONG_SECONDS,
    MOST_MORE,
    PICKS,
    CpuClock,
    median,
)
from dla.profiler.native.given import Action  # noqa: E402
from dla.profiler.native.pytorch.clock import CudaClock  # noqa: E402
from dla.profiler.native.pytorch.library import WHY_NOT, PyTorch  # noqa: E402

TEXT = """
.program p
.input  x : f32[n <= 8, 16]
.input  w : f32[16, 16]
.input  i : i32[8, 1]
.input  t : f32[8, 1]
.scratch h : f32[n, 16]
.output y : f32[n, 16]
.output z : f32[8, 16]
main:
    MOV      s9, 1
    GEMM     h, x, w
    GEMM     y, h, w
    ACT.celu h, h alpha=0
    RESIZE   z, w[:8], i, t axis=0
    HALT
"""


def program() -> dla.Program:
    """Two equal products, a function that PyTorch refuses, and a row without a counterpart."""
    return dla.assemble(TEXT)


def test_equal_work_is_measured_once() -> None:
    """Wherever it lies; scalar instructions are not asked for."""
    steps: list[str] = []
    found = measure.natives(program(), {}, lambda index: True, steps.append, budget=0.01, library=PyTorch("golden"))
    assert steps == ["1 GEMM", "3 ACT.celu", "4 RESIZE"]
    assert sorted(found) == [1, 2, 3, 4]
    assert found[1] is found[2]
    assert found[4] == WHY_NOT["RESIZE"]
    product = found[1]
    assert isinstance(product, Native)
    assert product.agrees
    assert 0 <= product.error <= 1
    assert product.cold > 0
    assert product.warm is not None
    assert product.kernel.startswith("torch.mm")
    reason = found[3]
    assert isinstance(reason, str)
    assert reason.startswith("PyTorch does not take it: ")


def test_only_chosen_instructions_are_measured() -> None:
    """--instruction asks for one."""
    assert list(measure.natives(program(), {}, lambda index: index == 2, budget=0.01, library=PyTorch("golden"))) == [2]


def test_the_median_is_of_several_executions() -> None:
    """Three at least, however long each takes."""
    ran: list[int] = []
    clock = CpuClock()
    assert median(clock, lambda: ran.append(1), cold=True, budget=0.0) >= 0
    assert len(ran) == 4


class MadeUpGpu(CudaClock):
    """Launching a graph takes 5 us, a call what it says, half with warm caches; operands that were used are warm."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def _captured(self, actions: Sequence[Action]) -> Action:
        return lambda: (5e-6, [action() for action in actions], len(set(map(id, actions))))

    def once(self, action: Action, *, cold: bool) -> float:
        """A graph that uses the same operands again would be warm in part."""
        launch, calls, different = action()
        assert different == (len(calls) if cold else 1)
        return launch + sum(calls) * (1.0 if cold else 0.5)

    def make(self, seconds: float) -> Action:
        """One more call."""
        self.made.append(len(self.made))
        return lambda: seconds


def test_a_short_kernel_is_timed_among_others() -> None:
    """Without launching a graph, and each call on operands of its own; a long one is one call."""
    clock = MadeUpGpu()
    assert clock.times(lambda: clock.make(2e-6), 0.1) == pytest.approx((2e-6, 1e-6))
    assert len(clock.made) == PICKS + 1 + MOST_MORE, "as many as take long enough, up to a limit"
    clock = MadeUpGpu()
    assert clock.times(lambda: clock.make(LONG_SECONDS * 0.9), 0.1)[0] == pytest.approx(LONG_SECONDS * 0.9)
    assert len(clock.made) == PICKS + 1 + FEWEST_MORE
    clock = MadeUpGpu()
    assert clock.times(lambda: clock.make(2 * LONG_SECONDS), 0.1)[0] == pytest.approx(2 * LONG_SECONDS + 5e-6)
    assert len(clock.made) == PICKS + 1


def test_the_fastest_pick_counts() -> None:
    """Each in a thread that has asked nothing before; and an error in one is the caller's."""
    clock, threads = MadeUpGpu(), []

    def make() -> Action:
        def run() -> float:
            if threading.current_thread() not in threads:
                threads.append(threading.current_thread())
            return 2e-6 if threads.index(threading.current_thread()) == 20 else 2.3e-6

        return run

    assert clock.times(make, 0.1) == pytest.approx((2e-6, 1e-6))
    assert len(threads) == PICKS
    with pytest.raises(RuntimeError, match="asks the host"):
        clock.times(lambda: (_ for _ in ()).throw(RuntimeError("asks the host")), 0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")
def test_a_graph_keeps_its_operands() -> None:
    """It would go to their memory, which the next capture gives back to the driver."""
    clock = CudaClock()
    operand = torch.zeros(2**24, device="cuda")
    held, one = weakref.ref(operand), clock.prepared(functools.partial(operand.add_, 1))
    del operand
    clock.prepared(lambda: torch.zeros(8, device="cuda"))
    assert held() is not None
    assert clock.once(one, cold=True) > 0
    torch.cuda.synchronize()


def test_products_are_as_exact_as_asked() -> None:
    """tf32 only where the instruction says so, and everything as before afterwards."""
    instruction = dla.assemble(
        ".program p\n.input a : f32[2, 2]\n.output y : f32[2, 2]\nmain:\n    GEMM y, a, a math=tf32\n    HALT\n"
    ).instructions[0]
    torch.backends.cuda.matmul.allow_tf32 = False
    with PyTorch("golden").asked(instruction):
        assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
