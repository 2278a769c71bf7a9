"""What every test shares: the `gpu` marker skips, visibly, where there is no CUDA device; which machine GPUs run."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator

import pytest

# Test workers use every core already: more BLAS threads would only wait for each other. Read when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from dla.emulator.device import build  # noqa: E402  # imports NumPy
from dla.emulator.device.gpu import HOPPER  # noqa: E402


@functools.cache
def _why_no_gpu() -> str | None:
    try:
        import cupy
    except ImportError:
        return "no GPU: CuPy is not installed"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {error}"
    return None if count else "no GPU: no CUDA device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest -m gpu --architecture compute_80`: the portable paths, on any GPU."""
    parser.addoption("--architecture", metavar="NAME", help="build the machine for NAME, not for the GPU that is there")


def pytest_configure(config: pytest.Config) -> None:
    """Let every machine of this process be built for the architecture that was asked for."""
    architecture: str | None = config.getoption("--architecture")
    if architecture is not None:
        build.native_architecture = lambda cupy: architecture


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and thousands of tests come and stay: looking for garbage among them takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` and `hopper`, with the reason, where they cannot run."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if marked else None
    for item in marked if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))
    if marked and not reason and (target := build.native_architecture(build.import_cupy())) != HOPPER:
        for item in marked:
            if item.get_closest_marker("hopper"):
                item.add_marker(pytest.mark.skip(reason=f"the machine is built for {target}"))
