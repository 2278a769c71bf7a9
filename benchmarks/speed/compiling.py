"""torch.compile, as natives go through it."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def optimised(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """`function`, compiled for the very shapes that it is first called with."""
    _prepare()
    reset_precision()
    torch.compiler.reset()  # other rows compile the same functions for other sizes
    return torch.compile(function, mode=mode, dynamic=False, fullgraph=True)


def reset_precision() -> None:
    """Have products of f32 as a new process has them.

    How these are to be worked out is part of what torch.compile finds its results by, also where there are none; and
    "never with tf32", which comparisons ask for, is not the same to it as nothing asked for.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False  # the older of the two names for it, which must not say otherwise
    matmul.fp32_precision = "none"


@functools.cache
def _prepare() -> None:
    """Let processors compile what max-autotune chooses from at the same time: all of them, unless told otherwise."""
    threads = int(os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(os.cpu_count())))
    from torch._inductor import async_compile, config

    config.compile_threads = threads
    async_compile.AsyncCompile.wait_pool_ready()


def take_turns(lock: Path) -> None:
    """Let processes time kernels on the GPU one after the other, so that none is timed while another one is.

    What a process does there besides is not kept apart: copying weights, in its first seconds, and the first run of
    each kernel. That run loads the kernel, which takes longer than timing it: turns would last ten times as long.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    held = lock.open("w")
    measure = benchmarker.benchmark_gpu

    @functools.wraps(measure)
    def alone(kernel: Callable[[], Any], *given: Any, **options: Any) -> Any:
        kernel()
        torch.cuda.synchronize()
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            return measure(kernel, *given, **options)
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)

    benchmarker.benchmark_gpu = alone  # type: ignore[method-assign]


def artifacts() -> bytes:
    """What this process compiled, to be loaded by another one."""
    made = torch.compiler.save_cache_artifacts()
    assert made is not None, "torch.compile made nothing that can be kept"
    return made[0]


def load(made: bytes) -> None:
    """Have what `artifacts` returned at hand, so that compiling the same again takes seconds."""
    torch.compiler.load_cache_artifacts(made)
