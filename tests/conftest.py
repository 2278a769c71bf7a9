"""What every test shares: the `gpu` marker skips, visibly, where there is no CUDA device."""

from __future__ import annotations

import functools
import os

import pytest

# Test workers use every core already: more BLAS threads would only wait for each other. Read when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, with the reason, where they cannot run."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if marked else None
    for item in marked if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))
